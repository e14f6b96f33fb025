//! What the server refuses, what can't be read, and what it says of itself.

use super::*;

#[tokio::test]
async fn a_server_that_will_not_write_rejects_and_charges_nothing() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    let refusals = [
        (["maxmemory", "1"], ["maxmemory", "0"], "OOM"),
        (
            ["min-replicas-to-write", "1"],
            ["min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    for ([name, on], [_, off], code) in refusals {
        run(&server, &["CONFIG", "SET", name, on]);
        match store.one(op.clone()).await {
            Err(StoreError::Rejected(why)) => assert!(why.contains(code), "{why}"),
            other => panic!("answered {other:?}"),
        }
        run(&server, &["CONFIG", "SET", name, off]);
    }
    assert_eq!(admitted(&store, &op, 10).await, 3);

    run(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    match store.one(op).await {
        Err(StoreError::Rejected(why)) => assert!(why.contains("READONLY"), "{why}"),
        other => panic!("answered {other:?}"),
    }
}

#[tokio::test]
async fn what_can_not_be_read_is_rejected_by_the_name_of_its_key() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let partition = tenant.partition();
    let mut one = of_three();
    one.usage_ms = Some(HOUR_MS);
    let charge = decide(fence, Mode::Charge, vec![one]);
    let id = MeterId {
        key: tenant.clone(),
        label: None,
    };
    let read = Op::Read {
        fence,
        partition,
        ids: vec![id],
    };
    let meter = named(&fence, &tenant, "");
    let traded = named(&fence, &tenant, "T");
    for (name, value) in [
        (&meter, vec!["SET", "1,2"]),
        (&meter, vec!["SET", "\x01\x02"]),
        (&meter, vec!["SET", "\x01\x02\x03\x04\x05"]),
        (&meter, vec!["SET", "\x09\x02\x03\x04"]),
        (&meter, vec!["SET", "\x11\x02\x03\x04\x05\x06"]),
        (&meter, vec!["SET", "\x04\x02\x03\x09\x05"]),
        (&meter, vec!["SET", "\x04\x02\x03"]),
        (&meter, vec!["SET", "\x06\x02\x03"]),
        (&meter, vec!["SET", "\x05\x02\x03\x04\x05\x06"]),
        (&meter, vec!["SET", "12345"]),
        (&meter, vec!["SET", "1234567890"]),
        (&meter, vec!["SET", "12345678901234567890"]),
        (&meter, vec!["SET", "1234567890,1"]),
        (&meter, vec!["SET", ""]),
        (&meter, vec!["RPUSH", "1"]),
        (&traded, vec!["HSET", "v", "one"]),
        (&traded, vec!["HSET", "v", "1", "s", "b1;2;3"]),
        (&traded, vec!["HSET", "v", "1", "s", "\x01\x02\x03"]),
        (&traded, vec!["HSET", "v", "1", "s", "\x01\x02\x03\x04"]),
        (&traded, vec!["HSET", "v", "1", "s", "\x02\x02\x03"]),
        (&traded, vec!["HSET", "n", "some"]),
        (&traded, vec!["SET", "1"]),
    ] {
        let (command, rest) = value.split_first().unwrap();
        let mut connection = server.connection();
        let mut write = redis::cmd(command);
        write.arg(name).arg(rest).exec(&mut connection).unwrap();
        match store.one(read.clone()).await {
            Err(StoreError::Rejected(why)) => assert!(why.contains(name.as_str()), "{why}"),
            other => panic!("{value:?}: answered {other:?}"),
        }
        // A decision may take a number that is too large for the largest there is; it may not do worse.
        match store.one(charge.clone()).await {
            Err(StoreError::Rejected(why)) => assert!(why.contains(name.as_str()), "{why}"),
            Ok(Reply::Decided(_)) => {}
            other => panic!("{value:?}: answered {other:?}"),
        }
        run(&server, &["DEL", name]);
    }

    let record = format!("ap{{{:02x}}}r", partition.0);
    run(&server, &["SET", &record, "what"]);
    match store.one(charge).await {
        Err(StoreError::Rejected(why)) => assert!(why.contains(&record), "{why}"),
        other => panic!("answered {other:?}"),
    }
}

#[tokio::test]
async fn numbers_that_redis_can_not_count_are_rejected_unsent() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let mut huge = of_three();
    huge.cost = (1 << 53) + 1;
    let replies = store
        .call(vec![
            decide(fence, Mode::Charge, vec![huge]),
            decide(fence, Mode::Charge, vec![of_three()]),
        ])
        .await;
    assert!(matches!(replies[0], Err(StoreError::Rejected(_))));
    assert!(decided(replies[1].clone()).admitted);
}

#[tokio::test]
async fn a_store_says_whether_it_may_evict() {
    let server = Server::start();
    let store = server.store();
    let inspected = store.inspect().await.unwrap();
    assert!(
        inspected.version.starts_with(|c: char| c >= '7'),
        "{inspected:?}"
    );
    assert_eq!(inspected.role, "master");
    assert_eq!(inspected.maxmemory_policy.as_deref(), Some("noeviction"));
    assert_eq!(inspected.min_replicas_to_write, Some(0));
    assert_eq!(inspected.min_replicas_max_lag_s, Some(10));
    assert_eq!(inspected.repl_backlog_ttl_s, Some(3_600));
    run(
        &server,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    let inspected = store.inspect().await.unwrap();
    assert_eq!(inspected.maxmemory_policy.as_deref(), Some("allkeys-lru"));
}

#[tokio::test]
async fn a_store_with_replicas_decides_nothing_outside_the_span() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    for (replicated, span, expected) in [
        (false, Span::never(), true),
        (true, fence.span, true),
        (true, Span::never(), false),
        (true, Span::after(fence.span.until.plus(1)), false),
    ] {
        let fence = Fence {
            replicated,
            span,
            ..fence
        };
        let charge = charge(&key("api@1:acme"), window_rule(100, HOUR_MS), 0);
        for mode in [Mode::Charge, Mode::Peek] {
            let reply = store.one(decide(fence, mode, vec![charge.clone()])).await;
            match expected {
                true => assert!(decided(reply).admitted),
                false => assert_eq!(reply, Err(StoreError::OutOfSpan)),
            }
        }
    }
}

#[tokio::test]
async fn a_store_says_what_it_is_to_its_replicas_and_whether_it_was_one() {
    let (first, second) = (Server::start(), Server::start());
    let (store, other) = (first.store(), second.store());
    let run_of = |looked: &Looked| looked.fingerprint.split(':').next().unwrap().to_owned();
    let alone = look(&store).await;
    assert_eq!(alone.replication, Replication::none());
    run(&first, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let port = first.port().to_string();
    run(&second, &["REPLICAOF", "127.0.0.1", &port]);
    let began = Instant::now();
    let followed = loop {
        let looked = look(&store).await;
        if !looked.replication.lags_ms.is_empty() {
            break looked;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{looked:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(run_of(&followed), run_of(&alone));
    assert_ne!(followed.fingerprint, alone.fingerprint, "its first replica");
    assert!(followed.replication.is_master && !followed.replication.was_promoted);
    assert_eq!(followed.replication.replicas, 1);

    let follower = look(&other).await;
    assert!(!follower.replication.is_master);
    run(&second, &["REPLICAOF", "NO", "ONE"]);
    let promoted = look(&other).await;
    assert_eq!(run_of(&promoted), run_of(&follower));
    assert!(promoted.replication.is_master && promoted.replication.was_promoted);
}
