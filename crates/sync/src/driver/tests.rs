use super::*;
use crate::transport::client::Options;
use crate::transport::serve;
use crate::transport::tests::{Knows, region};
use apportion_core::allotment::Timing;
use apportion_core::lives::OnEmpty;
use apportion_core::{PolicySet, StoreMs};
use apportion_store::{Memory, MemoryStore};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::time::Instant;

const POLICIES: &str = r#"
regions = ["eu-west", "us-east"]

[[policy]]
name = "exports"
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
"#;

/// A store that can be switched off: then calls have no reply for as long as it takes.
#[derive(Clone)]
struct Switched {
    inner: MemoryStore,
    on: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Store for Switched {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told to");
        if !self.on.load(Ordering::Relaxed) {
            return vec![Err(StoreError::NotSent("it is off".into())); ops.len()];
        }
        self.inner.call(ops).await
    }
}

fn a_store() -> Switched {
    let began = Instant::now();
    let clock = move || StoreMs(1_728_000_000_000 + began.elapsed().as_millis() as u64);
    Switched {
        inner: MemoryStore::new(Memory::new("one"), clock),
        on: Arc::new(AtomicBool::new(true)),
        panics: Arc::new(AtomicBool::new(false)),
        calls: Arc::new(AtomicU64::new(0)),
    }
}

/// A driver of us-east, whose peer eu-west is at `peer`.
fn us_east(store: Switched, peer: &str) -> (Handle, JoinHandle<()>, CancellationToken) {
    let peers = Peers::new([(region("eu-west"), peer.to_owned())], Options::default());
    let shutdown = CancellationToken::new();
    let (handle, task) = spawn(Setup {
        machine: machine::Config {
            region: region("us-east"),
            peers: vec![region("eu-west")],
            policies: Arc::new(PolicySet::parse(POLICIES, "policies.toml").unwrap()),
            interval_ms: 200,
            timing: Timing { term_ms: 1_000 },
            on_empty: OnEmpty::New,
            seed: 1,
        },
        store,
        peers: peers.unwrap(),
        used_up: Arc::new(|_, _, _| {}),
        shutdown: shutdown.clone(),
    });
    (handle, task, shutdown)
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

const NOBODY: &str = "http://127.0.0.1:9";

#[tokio::test]
async fn a_peer_that_never_answers_has_four_calls_in_the_air_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut incoming) = mpsc::channel(64);
    let peers = BTreeSet::from([region("us-east")]);
    let service = SyncService::new(region("eu-west"), peers, sender, Arc::new(Knows));
    tokio::spawn(serve(listener, service, CancellationToken::new()));
    let (_handle, _task, _shutdown) = us_east(a_store(), &address);
    // Greetings go out five times a second, and an answer is waited for much longer.
    let mut kept = Vec::new();
    for _ in 0..IN_FLIGHT_MAX {
        let next = timeout(Duration::from_secs(20), incoming.recv()).await;
        kept.push(next.expect("it is greeted"));
    }
    let more = timeout(Duration::from_millis(1_000), incoming.recv()).await;
    assert!(more.is_err(), "a fifth call");
    kept.pop();
    timeout(Duration::from_secs(20), incoming.recv())
        .await
        .expect("what waited goes out when a call has ended");
}

#[tokio::test]
async fn a_store_that_comes_back_is_found() {
    let store = a_store();
    store.on.store(false, Ordering::Relaxed);
    let (handle, _task, _shutdown) = us_east(store.clone(), NOBODY);
    eventually("it tries on", || store.calls.load(Ordering::Relaxed) > 2).await;
    assert!(!handle.status().store_ok);
    assert!(handle.regime().load().is_none());
    store.on.store(true, Ordering::Relaxed);
    eventually("it is found", || handle.status().store_ok).await;
    assert_eq!(handle.status().standing, "first");
    assert!(handle.regime().load().is_some());
    store.on.store(false, Ordering::Relaxed);
    eventually("it is missed", || !handle.status().store_ok).await;
}

#[tokio::test]
async fn a_hint_to_look_again_is_followed_at_once() {
    let store = a_store();
    let (handle, _task, _shutdown) = us_east(store.clone(), NOBODY);
    eventually("it is found", || handle.status().store_ok).await;
    let before = store.calls.load(Ordering::Relaxed);
    handle.look_again().notify_one();
    let hinted = Instant::now();
    eventually("it looks", || store.calls.load(Ordering::Relaxed) > before).await;
    assert!(hinted.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_store_that_panics_ends_the_driver_for_all_to_see() {
    let store = a_store();
    let (handle, task, _shutdown) = us_east(store.clone(), NOBODY);
    eventually("it is found", || handle.status().store_ok).await;
    store.panics.store(true, Ordering::Relaxed);
    assert!(task.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn shutdown_ends_the_driver_at_once() {
    let (_handle, task, shutdown) = us_east(a_store(), NOBODY);
    shutdown.cancel();
    timeout(Duration::from_secs(1), task)
        .await
        .expect("it ends in time")
        .expect("it ends well");
}
