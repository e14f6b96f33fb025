//! What the store promises on a real Redis, beyond what the differential tests compare.

mod common;

use apportion_store::{Mode, Op, Reply, Store, StoreError};
use common::*;

#[tokio::test]
async fn a_bucket_admits_what_it_holds_and_no_more() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let one = charge(&tenant, bucket_rule(1, 3_600_000, 3), 1);
    for expected in [true, true, true, false] {
        let op = decide(fence, Mode::Charge, vec![one.clone()]);
        assert_eq!(decided(store.one(op).await).admitted, expected);
    }
}

#[tokio::test]
async fn scripts_that_the_server_lost_are_never_loaded_again_unlooked() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let one = charge(&tenant, bucket_rule(1, 3_600_000, 3), 1);
    let ask = || decide(fence, Mode::Charge, vec![one.clone()]);

    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .exec(&mut server.connection())
        .unwrap();
    for _ in 0..3 {
        assert_eq!(store.one(ask()).await, Err(StoreError::LookAgain));
    }
    attach(&store, fence.record.life).await;
    for expected in [true, true, true, false] {
        assert_eq!(decided(store.one(ask()).await).admitted, expected);
    }
}
