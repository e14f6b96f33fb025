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
    run(
        &server,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    let inspected = store.inspect().await.unwrap();
    assert_eq!(inspected.maxmemory_policy.as_deref(), Some("allkeys-lru"));
}
