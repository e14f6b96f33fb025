//! Admissions, by the clock of Redis.

use super::*;

#[tokio::test]
async fn a_bucket_admits_what_it_holds_and_no_more() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 10).await, 3);
}

#[tokio::test]
async fn a_bucket_refills_by_the_clock_of_redis() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let rule = bucket_rule(10, 1_000, 1);
    let op = decide(
        fence,
        Mode::Charge,
        vec![charge(&key("api@1:acme"), rule, 1)],
    );
    assert_eq!(admitted(&store, &op, 1).await, 1);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(admitted(&store, &op, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_callers_over_four_nodes_get_exactly_the_hundred_that_there_are() {
    let server = Server::start();
    let nodes: Vec<RedisStore> = (0..4).map(|_| server.store()).collect();
    let fence = begin(&nodes[0], record(1)).await;
    for node in &nodes[1..] {
        attach(node, fence.record.life).await;
    }
    let rule = bucket_rule(1, 24 * HOUR_MS, 100);
    let op = decide(
        fence,
        Mode::Charge,
        vec![charge(&key("api@1:acme"), rule, 1)],
    );
    let callers: Vec<_> = (0..200)
        .map(|n| {
            let (node, op) = (nodes[n % 4].clone(), op.clone());
            tokio::spawn(async move { decided(node.one(op).await).admitted })
        })
        .collect();
    let mut admitted = 0;
    for caller in callers {
        admitted += usize::from(caller.await.unwrap());
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let other = Life::from_random(99);
    let mut stale = fence;
    stale.record.life = other;
    let ops = vec![
        Op::Look,
        decide(fence, Mode::Charge, vec![of_three()]),
        decide(stale, Mode::Charge, vec![of_three()]),
        Op::Marks { life: other },
        decide(fence, Mode::Peek, vec![of_three()]),
    ];
    let replies = store.call(ops).await;
    assert!(matches!(replies[0], Ok(Reply::Looked(_))));
    assert!(matches!(replies[1], Ok(Reply::Decided(_))));
    assert_eq!(replies[2], Err(StoreError::LookAgain));
    assert_eq!(replies[3], Ok(Reply::Marks(vec![])));
    assert!(decided(replies[4].clone()).admitted);
}
