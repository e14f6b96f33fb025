//! Another store, or the same one emptied: nothing is admitted until somebody looked.

use super::*;

#[tokio::test]
async fn scripts_that_the_server_lost_are_never_loaded_again_unlooked() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    run(&server, &["SCRIPT", "FLUSH"]);
    for _ in 0..3 {
        assert_eq!(store.one(op.clone()).await, Err(StoreError::LookAgain));
    }
    attach(&store, fence.record.life).await;
    assert_eq!(admitted(&store, &op, 10).await, 3, "nothing was charged");
}

#[tokio::test]
async fn a_server_that_restarted_empty_admits_nothing_until_it_is_adopted_again() {
    let mut server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 3).await, 3);
    let before = look(&store).await.fingerprint;

    server.restart();
    let mut answered = 0;
    for _ in 0..20 {
        match store.one(op.clone()).await {
            Err(StoreError::LookAgain) => answered += 1,
            Err(StoreError::NotSent(_) | StoreError::Unknown(_)) => {}
            other => panic!("answered {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(answered > 0, "it never got there");

    let life = fence.record.life;
    let attach_as = |fingerprint: &str| Op::Attach {
        life,
        fingerprint: fingerprint.into(),
    };
    let attached = store.one(attach_as(&before)).await;
    assert_eq!(attached, Err(StoreError::LookAgain));
    assert_eq!(store.one(op.clone()).await, Err(StoreError::LookAgain));

    attach(&store, life).await;
    assert_eq!(store.one(op).await, Err(StoreError::Fenced(None)));
}

#[tokio::test]
async fn an_emptied_store_is_fenced() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 3).await, 3);
    run(&server, &["FLUSHALL"]);
    assert_eq!(store.one(op).await, Err(StoreError::Fenced(None)));
}

#[tokio::test]
async fn a_node_behind_the_record_is_told_what_it_is() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let mut ahead = fence;
    ahead.record.epoch = Epoch(7);
    let op = decide(ahead, Mode::Charge, vec![of_three()]);
    let fenced = Err(StoreError::Fenced(Some(fence.record)));
    assert_eq!(store.one(op).await, fenced);
}

#[tokio::test]
async fn a_broken_connection_to_the_same_process_needs_no_new_attachment() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);
    run(
        &server,
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(admitted(&store, &op, 9).await, 2);
}
