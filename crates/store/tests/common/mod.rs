//! A real Redis for a test, and what several tests need.
#![allow(dead_code)]

pub(crate) mod proxy;

use apportion_core::fence::{Fence, Missing, Span};
use apportion_core::meter::{Part, Rule, Slack};
use apportion_core::schedule::{PPB, Shares};
use apportion_core::{Algorithm, Epoch, Key, Life, Limits, Period, Record, StoreMs};
use apportion_store::{
    Charge, Decide, Decided, Looked, Mode, Op, RedisStore, Reply, Store, StoreError,
};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// A redis-server that keeps nothing, killed when dropped.
pub(crate) struct Server {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Between looking for a free port and using it, another process may.
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            if let Some(child) = spawn(port, &dir) {
                return Self { child, port, dir };
            }
        }
        panic!("redis-server doesn't start");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn store(&self) -> RedisStore {
        RedisStore::new(&self.url(), TIMEOUT, "ap").unwrap()
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_connection().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Another process on the same port, with nothing in it.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir).expect("redis-server starts again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `None` where it ends at once, as it does when the port is taken.
fn spawn(port: u16, dir: &TempDir) -> Option<Child> {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let mut child = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--enable-debug-command", "yes"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        let pong = client
            .get_connection()
            .and_then(|mut c| redis::cmd("PING").exec(&mut c));
        if pong.is_ok() {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().ok();
    child.wait().ok();
    None
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn record(life: u64) -> Record {
    Record {
        life: Life::from_random(life),
        epoch: Epoch(1),
        revision: 1,
    }
}

/// Trusts the store's clock around `now`.
pub(crate) fn fence(record: Record, now: StoreMs) -> Fence {
    Fence {
        record,
        span: Span {
            from: now.minus(60_000),
            until: now.plus(600_000),
        },
        epoch_began: now.minus(60_000),
        missing: Missing::Full,
        closed_before: StoreMs(0),
        replicated: false,
    }
}

/// A whole share of an algorithm's limit.
pub(crate) fn rule(algorithm: Algorithm, limit: u64, burst: u64) -> Rule {
    let part = match algorithm {
        Algorithm::FixedWindow { .. } => Part::Base {
            units: limit,
            from: StoreMs(0),
        },
        Algorithm::Concurrency { .. } => Part::Whole,
        _ => Part::Shares(Shares::constant(PPB)),
    };
    Rule {
        algorithm,
        limits: Limits { limit, burst },
        by_plan: false,
        fill_ms: 0,
        part,
        slack: Slack::Nothing,
    }
}

pub(crate) fn bucket_rule(limit: u64, per_ms: u64, burst: u64) -> Rule {
    rule(Algorithm::TokenBucket { per_ms }, limit, burst)
}

pub(crate) fn window_rule(limit: u64, per_ms: u64) -> Rule {
    let period = Period::every(per_ms);
    rule(Algorithm::FixedWindow { period }, limit, limit)
}

pub(crate) fn charge(key: &Key, rule: Rule, units: u64) -> Charge {
    let cost = match rule.algorithm.is_bucket() {
        true => units * 1_000_000,
        false => units,
    };
    Charge {
        key: key.clone(),
        rule: Arc::new(rule),
        cost,
        units,
        reserve_ppm: 0,
        denied: 0,
        usage_ms: None,
        shadow: false,
        newcomers_max: None,
        member: None,
    }
}

pub(crate) fn request(fence: Fence, mode: Mode, charges: Vec<Charge>) -> Decide {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    Decide {
        fence,
        partition: charges[0].key.partition(),
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        mode,
        charges,
        remember: None,
    }
}

pub(crate) fn decide(fence: Fence, mode: Mode, charges: Vec<Charge>) -> Op {
    Op::Decide(request(fence, mode, charges))
}

pub(crate) async fn look(store: &impl Store) -> Looked {
    match store.one(Op::Look).await {
        Ok(Reply::Looked(looked)) => looked,
        other => panic!("looked: {other:?}"),
    }
}

pub(crate) async fn attach(store: &impl Store, life: Life) -> Looked {
    let looked = look(store).await;
    let fingerprint = looked.fingerprint.clone();
    let attached = store.one(Op::Attach { life, fingerprint }).await;
    assert_eq!(attached, Ok(Reply::Done));
    looked
}

/// Begins a region: its state, its record, an attachment, and a fence that trusts the clock.
pub(crate) async fn begin(store: &impl Store, record: Record) -> Fence {
    let looked = attach(store, record.life).await;
    let expect = looked.state.map_or(0, |(version, _)| version);
    let value = b"state".to_vec();
    let put = store.one(Op::PutState { expect, value }).await;
    assert_eq!(put, Ok(Reply::Put(expect + 1)));
    let state_version = expect + 1;
    let adopt = Op::Adopt {
        state_version,
        record,
    };
    assert_eq!(store.one(adopt).await, Ok(Reply::Done));
    fence(record, looked.now)
}

pub(crate) fn decided(reply: Result<Reply, StoreError>) -> Decided {
    match reply {
        Ok(Reply::Decided(decided)) => decided,
        other => panic!("decided: {other:?}"),
    }
}
