//! Requests that are known by their names.

use super::*;

fn named_request(fence: apportion_core::fence::Fence, content: u128) -> Op {
    let mut request = request(fence, Mode::Charge, vec![of_three()]);
    request.remember = Some(Remember {
        id: "a request, \u{e9}\n}{".into(),
        content,
        others: vec![1, 2, 255],
    });
    Op::Decide(request)
}

#[tokio::test]
async fn a_request_is_known_again_over_another_connection_and_attachment() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), Duration::from_millis(200), "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let peek = decide(fence, Mode::Peek, vec![of_three()]);
    assert!(decided(store.one(peek).await).admitted);

    proxy.stall();
    let unknown = store.one(named_request(fence, 7)).await;
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    proxy.cut();
    proxy.go_on();
    tokio::time::sleep(Duration::from_millis(50)).await;

    let again = decided(store.one(named_request(fence, 7)).await);
    assert!(again.admitted);
    assert_eq!(again.replayed, Some(vec![1, 2, 255]));
    assert_eq!(again.answers[0].reading.available(), 2_000_000);

    let other = server.store();
    attach(&other, fence.record.life).await;
    assert_eq!(decided(other.one(named_request(fence, 7)).await), again);
    let reused = other.one(named_request(fence, 8)).await;
    assert_eq!(reused, Err(StoreError::RequestIdReused));

    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 10).await, 2, "it was charged once");
}

#[tokio::test]
async fn a_request_in_one_batch_twice_is_charged_once() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let ops = vec![named_request(fence, 7); 5];
    let replies = store.call(ops).await;
    let replayed = |r: &Result<Reply, StoreError>| decided(r.clone()).replayed.is_some();
    assert_eq!(replies.iter().filter(|r| replayed(r)).count(), 4);
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 10).await, 2);
}

#[tokio::test]
async fn what_is_kept_of_a_request_and_can_not_be_read_admits_nothing() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    assert!(decided(store.one(named_request(fence, 7)).await).admitted);
    let mut connection = server.connection();
    let names: Vec<String> = redis::cmd("KEYS")
        .arg("*I*")
        .query(&mut connection)
        .unwrap();
    let name = names.iter().find(|n| n.contains("a request")).unwrap();
    let mut value = 7u128.to_le_bytes().to_vec();
    value.extend(b"what");
    redis::cmd("SET")
        .arg(name)
        .arg(&value)
        .exec(&mut connection)
        .unwrap();
    let answer = store.one(named_request(fence, 7)).await;
    assert!(matches!(answer, Err(StoreError::Rejected(_))), "{answer:?}");
    run(&server, &["DEL", name]);
    run(&server, &["RPUSH", name, "1"]);
    let answer = store.one(named_request(fence, 7)).await;
    assert!(matches!(answer, Err(StoreError::Rejected(_))), "{answer:?}");
}

#[tokio::test]
async fn who_was_here_in_the_window_before_is_not_new_in_this_one() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let per_ms = 400;
    let window = apportion_core::meter::Rule {
        algorithm: apportion_core::Algorithm::FixedWindow {
            period: apportion_core::Period::every(per_ms),
        },
        part: apportion_core::meter::Part::Base {
            units: 1_000_000,
            from: StoreMs(0),
        },
        ..bucket_rule(1_000_000, 1_000, 1_000_000)
    };
    let mut known = charge(&key("api@1:known"), window, 1);
    known.newcomers_max = Some(1);
    let (mut last, mut windows) = (None, 0);
    while windows < 8 {
        let told = decided(
            store
                .one(decide(fence, Mode::Charge, vec![known.clone()]))
                .await,
        );
        let label = told.now.0 / per_ms;
        // After a stall of a whole window it would be new.
        if last.is_some_and(|last| label <= last + 1) {
            assert!(!told.answers[0].crowded);
        }
        windows += u32::from(last.is_some_and(|last| label > last));
        last = (!told.answers[0].crowded).then_some(label);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
