//! Links that stall, break or are not there: what is known of an outcome, and that nothing is sent twice.

use super::*;

#[tokio::test]
async fn an_answer_that_never_comes_is_unknown_and_charged_at_most_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let timeout = Duration::from_millis(200);
    let store = RedisStore::new(&proxy.url(), timeout, "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);

    proxy.stall();
    let began = Instant::now();
    let unknown = store.one(op.clone()).await;
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    assert!(began.elapsed() < 3 * timeout, "it waited too long");
    proxy.go_on();

    assert_eq!(admitted(&store, &op, 10).await, 1, "1 + 1 unknown + 1");
}

#[tokio::test]
async fn a_connection_cut_before_the_answer_is_unknown_and_charged_at_most_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), TIMEOUT, "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);

    proxy.stall();
    let (unknown, ()) = tokio::join!(store.one(op.clone()), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut();
    });
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    proxy.go_on();

    assert_eq!(admitted(&store, &op, 10).await, 1, "1 + 1 unknown + 1");
}

#[tokio::test]
async fn decisions_do_not_wait_behind_other_work() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), Duration::from_millis(300), "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);

    proxy.stall_connection(0);
    let (looked, admitted) = tokio::join!(store.one(Op::Look), admitted(&store, &op, 3));
    assert_eq!(admitted, 3);
    assert!(matches!(looked, Err(StoreError::Unknown(_))));
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), Duration::from_millis(200), "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);

    proxy.stall_connection(1);
    let began = Instant::now();
    let mut charged_at_most = 1;
    loop {
        match store.one(op.clone()).await {
            Ok(Reply::Decided(_)) => break,
            Err(StoreError::Unknown(_)) => charged_at_most += 1,
            other => panic!("answered {other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(10), "never replaced");
    }
    assert!(
        charged_at_most > 5,
        "it wasn't given up at the first timeout"
    );
}

#[tokio::test]
async fn a_store_that_is_not_there_is_not_hammered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let proxy = Proxy::to(port).await;
    let store = RedisStore::new(&proxy.url(), TIMEOUT, "ap").unwrap();
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < Duration::from_secs(1) {
        let callers: Vec<_> = (0..20).map(|_| store.one(Op::Look)).collect();
        for caller in callers {
            let looked = caller.await;
            assert!(matches!(looked, Err(StoreError::NotSent(_))), "{looked:?}");
            calls += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(calls > 500, "{calls} calls: callers wait for attempts");
    assert!(proxy.accepted() < 12, "{} attempts", proxy.accepted());
}
