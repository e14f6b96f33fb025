//! Many decisions in one script call.

use super::*;

fn tenant(n: usize) -> Key {
    key(&format!("api@1:tenant-{n}"))
}

fn of_ten(n: usize) -> Charge {
    charge(&tenant(n), bucket_rule(1, HOUR_MS, 10), 1)
}

/// What a bucket of ten has left.
async fn left(store: &RedisStore, fence: apportion_core::fence::Fence, n: usize) -> u64 {
    let peek = decide(fence, Mode::Peek, vec![of_ten(n)]);
    let decided = decided(store.one(peek).await);
    decided.answers[0].reading.available() / 1_000_000
}

#[tokio::test]
async fn decisions_of_many_partitions_are_one_call() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    run(&server, &["CONFIG", "RESETSTAT"]);
    let ops = (0..64).map(|n| decide(fence, Mode::Charge, vec![of_ten(n % 40)]));
    for reply in store.call(ops.collect()).await {
        assert!(decided(reply).admitted);
    }
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .unwrap();
    assert!(stats.contains("cmdstat_evalsha:calls=1,"), "{stats}");
    for n in 0..40 {
        let twice = n < 24;
        assert_eq!(left(&store, fence, n).await, if twice { 8 } else { 9 });
    }
}

#[tokio::test]
async fn a_flush_of_the_scripts_under_a_batch_loses_and_doubles_nothing() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let batch: Vec<Op> = (0..100)
        .map(|n| decide(fence, Mode::Charge, vec![of_ten(n)]))
        .collect();
    let mut charged = 0;
    for round in 0..10 {
        let flushed = async {
            tokio::time::sleep(Duration::from_micros(round * 150)).await;
            let mut connection = server.connection();
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec(&mut connection)
                .unwrap();
        };
        let (replies, ()) = tokio::join!(store.call(batch.clone()), flushed);
        for run in replies.chunks(64) {
            let lost = run
                .iter()
                .filter(|r| **r == Err(StoreError::LookAgain))
                .count();
            assert!(lost == 0 || lost == run.len(), "one call has one outcome");
            if lost == 0 {
                charged += run
                    .iter()
                    .filter(|r| decided((*r).clone()).admitted)
                    .count();
            }
        }
        assert_eq!(
            store.one(batch[0].clone()).await,
            Err(StoreError::LookAgain)
        );
        attach(&store, fence.record.life).await;
    }
    let mut gone = 0;
    for n in 0..100 {
        gone += 10 - left(&store, fence, n).await;
    }
    assert_eq!(gone, charged as u64);
}

#[tokio::test]
async fn what_can_not_be_read_fails_only_its_request() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let bad = named(&fence, &tenant(3), "");
    run(&server, &["SET", &bad, "what"]);
    // The request's first charge is readable, its second isn't: neither is charged.
    let other = charge(&key("other@1:tenant-3"), bucket_rule(1, HOUR_MS, 10), 1);
    let two = decide(fence, Mode::Charge, vec![other, of_ten(3)]);
    let mut ops: Vec<Op> = (0..8)
        .map(|n| decide(fence, Mode::Charge, vec![of_ten(n)]))
        .collect();
    ops.push(two);
    let replies = store.call(ops).await;
    for (n, reply) in replies.iter().enumerate() {
        match reply {
            Err(StoreError::Rejected(why)) if n == 3 || n == 8 => {
                assert!(why.contains(&bad), "{why}");
            }
            reply => assert!(n != 3 && n != 8 && decided(reply.clone()).admitted),
        }
    }
    for n in [0, 1, 2, 4, 5, 6, 7] {
        assert_eq!(left(&store, fence, n).await, 9);
    }
    let exists: bool = redis::cmd("EXISTS")
        .arg(named(&fence, &key("other@1:tenant-3"), ""))
        .query(&mut server.connection())
        .unwrap();
    assert!(!exists, "what was admitted in part was charged in part");
}

#[tokio::test]
async fn a_partition_that_is_fenced_fails_only_its_requests() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let partition = tenant(2).partition();
    let name = format!("ap{{{:02x}}}r", partition.0);
    run(&server, &["DEL", &name]);
    let ops = (0..8).map(|n| decide(fence, Mode::Charge, vec![of_ten(n)]));
    for (n, reply) in store.call(ops.collect()).await.into_iter().enumerate() {
        if tenant(n).partition() == partition {
            assert_eq!(reply, Err(StoreError::Fenced(None)));
        } else {
            assert!(decided(reply).admitted);
        }
    }
}

#[tokio::test]
async fn a_batch_that_the_server_will_not_write_charges_nothing() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    run(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let mut ops: Vec<Op> = (0..8)
        .map(|n| decide(fence, Mode::Charge, vec![of_ten(n)]))
        .collect();
    // A look is no write.
    ops.insert(4, decide(fence, Mode::Peek, vec![of_ten(4)]));
    for (n, reply) in store.call(ops).await.into_iter().enumerate() {
        match reply {
            Err(StoreError::Rejected(why)) => assert!(why.contains("OOM"), "{why}"),
            reply => assert!(n == 4 && decided(reply).admitted),
        }
    }
    run(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    for n in 0..8 {
        assert_eq!(left(&store, fence, n).await, 10);
    }
}

#[tokio::test]
async fn one_request_may_have_more_charges_than_a_script_has_stack() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let charges = (0..1_000).map(|n| {
        let key = key(&format!("policy-{n}@1:acme"));
        charge(&key, bucket_rule(1, HOUR_MS, 2 + n), 1)
    });
    let op = decide(fence, Mode::Charge, charges.collect());
    let first = decided(store.one(op.clone()).await);
    assert!(first.admitted && first.answers.len() == 1_000);
    assert!(decided(store.one(op.clone()).await).admitted);
    assert!(!decided(store.one(op).await).admitted);
}

#[tokio::test]
async fn a_timeout_after_a_batch_was_executed_is_unknown_and_charged_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), Duration::from_millis(200), "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    assert_eq!(left(&store, fence, 0).await, 10);
    let batch: Vec<Op> = (0..8)
        .map(|n| decide(fence, Mode::Charge, vec![of_ten(n)]))
        .collect();
    proxy.stall();
    for reply in store.call(batch).await {
        assert!(matches!(reply, Err(StoreError::Unknown(_))), "{reply:?}");
    }
    proxy.go_on();
    for n in 0..8 {
        assert_eq!(left(&store, fence, n).await, 9);
    }
}
