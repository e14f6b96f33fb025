//! A region in one process for tests: an embedded store, a clock that is moved by hand, and faults between them.

use crate::{CheckError, CheckRequest, Decision, DeniedCache, Engine, Outlook, Pressure, Shared};
use apportion_core::allotment::Timing;
use apportion_core::fence::Span;
use apportion_core::lives::{OnEmpty, RegionState};
use apportion_core::{Key, Life, Policy, PolicySet, Regime, Region, StoreMs};
use apportion_store::{Memory, MemoryStore, Op, Reply, Store, StoreError};
use arc_swap::{ArcSwap, ArcSwapOption};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc};

/// When every test begins: a minute begins too.
pub(crate) const START: StoreMs = StoreMs(1_000_020_000_000);
pub(crate) const INTERVAL_MS: u64 = 2_000;
const TIMING: Timing = Timing { term_ms: 10_000 };

/// One unit a second for each tenant, up to 10; 60 units a minute for all of them.
pub(crate) const BUCKET_AND_POOL: &str = r#"
regions = ["us-east"]

[[policy]]
name = "api"
key = ["tenant"]
algorithm = "token-bucket"
limit = 60
per = "1m"
burst = 10

[[policy]]
name = "pool"
key = []
algorithm = "fixed-window"
limit = 60
per = "1m"
"#;

/// A node with its store.
pub(crate) struct Node {
    pub(crate) engine: Arc<Engine<TestStore>>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) shared: Shared,
    pub(crate) pressure: mpsc::Receiver<Pressure>,
}

/// A [`MemoryStore`] that keeps what was asked of it, and fails when it is told to.
pub(crate) struct TestStore {
    inner: MemoryStore,
    clock: Arc<AtomicU64>,
    calls: Mutex<Vec<Vec<Op>>>,
    faults: Mutex<VecDeque<Fault>>,
}

/// What befalls one call. The number is that of the operation in it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    None,
    /// So many milliseconds pass first.
    Wait(u64),
    NotSent(usize),
    /// It is executed, and the reply is lost.
    Lost(usize),
    LookAgain(usize),
    /// The first is turned away, and the reply to the second is lost.
    LookAgainAndLost,
}

/// A region's first life, with `policies` as in a file.
pub(crate) async fn open(region: &str, text: &str) -> Node {
    open_with(region, policies(text)).await
}

/// The same with policies that are made here.
pub(crate) async fn open_with(region: &str, policies: Arc<PolicySet>) -> Node {
    let clock = Arc::new(AtomicU64::new(START.0));
    let ticks = clock.clone();
    let inner = MemoryStore::new(Memory::new("test"), move || {
        StoreMs(ticks.load(Ordering::SeqCst))
    });
    let regime = regime_at(region, START, policies.revision);
    put_state(&inner, 0, &regime).await;
    let store = Arc::new(TestStore {
        inner,
        clock,
        calls: Mutex::default(),
        faults: Mutex::default(),
    });
    let denied = store.denied_cache();
    node(region, policies, store, regime, denied)
}

/// A node of the region that `store` is of.
fn node(
    region: &str,
    policies: Arc<PolicySet>,
    store: Arc<TestStore>,
    regime: Regime,
    denied: DeniedCache,
) -> Node {
    let (sender, pressure) = mpsc::channel(1_000);
    let shared = Shared {
        policies: Arc::new(ArcSwap::new(policies)),
        regime: Arc::new(ArcSwapOption::from_pointee(regime)),
        outlook: Arc::new(Outlook::default()),
        denied: Arc::new(denied),
        look_again: Arc::new(Notify::new()),
        pressure: sender,
    };
    let engine = Engine::new(
        Region::new(region),
        store.clone(),
        INTERVAL_MS,
        shared.clone(),
    );
    Node {
        engine: Arc::new(engine),
        store,
        shared,
        pressure,
    }
}

pub(crate) fn policies(text: &str) -> Arc<PolicySet> {
    Arc::new(PolicySet::parse(text, "policies.toml").unwrap())
}

/// A file's policies, changed where the file can't say it yet.
pub(crate) fn changed(text: &str, change: impl Fn(&mut Policy)) -> Arc<PolicySet> {
    let mut set = (*policies(text)).clone();
    for policy in &mut set.policies {
        change(Arc::make_mut(policy));
    }
    Arc::new(set)
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// The regime of a first life that begins at `now`.
pub(crate) fn regime_at(region: &str, now: StoreMs, revision: u64) -> Regime {
    let life = Life::from_random(7);
    let state = RegionState::on_empty(&Region::new(region), life, "test", now, OnEmpty::New, &[]);
    Regime {
        state: Arc::new(state),
        span: Span::after(now),
        revision,
        timing: TIMING,
    }
}

/// Writes the state of `regime` over version `expect`, and has every partition go by it.
pub(crate) async fn put_state(store: &impl Store, expect: u64, regime: &Regime) {
    let state = &regime.state;
    let looked = store.one(Op::Look).await.unwrap();
    let Reply::Looked(looked) = looked else {
        panic!("{looked:?}");
    };
    assert_eq!(looked.state.map_or(0, |(version, _)| version), expect);
    let ops = vec![
        Op::PutState {
            expect,
            value: state.to_bytes(),
        },
        Op::Attach {
            life: state.life,
            fingerprint: state.fingerprint.clone(),
        },
        Op::Adopt {
            state_version: expect + 1,
            record: state.record(regime.revision),
        },
    ];
    for reply in store.call(ops).await {
        reply.unwrap();
    }
}

pub(crate) fn ask(tenant: &str, cost: u64) -> CheckRequest {
    CheckRequest {
        attributes: [("tenant".to_owned(), tenant.to_owned())].into(),
        cost,
        ..CheckRequest::default()
    }
}

// === impl Node ===

impl Node {
    pub(crate) fn now(&self) -> StoreMs {
        StoreMs(self.store.clock.load(Ordering::SeqCst))
    }

    /// Time passes, and a node vouches for it.
    pub(crate) fn advance(&self, ms: u64) {
        self.store.wait(ms);
        self.anchor();
    }

    pub(crate) fn regime(&self) -> Arc<Regime> {
        self.shared.regime.load_full().unwrap()
    }

    pub(crate) fn anchor(&self) {
        let before = self.regime();
        let now = self.now();
        let state = (*before.state).clone().anchored(now);
        self.shared.regime.store(Some(Arc::new(Regime {
            state: Arc::new(state),
            span: Span::after(now),
            ..(*before).clone()
        })));
    }

    /// Another node of the same region.
    pub(crate) fn another(&self) -> Self {
        self.beside(self.store.denied_cache())
    }

    /// The same, but it asks the store about every request.
    pub(crate) fn forgetful(&self) -> Self {
        self.beside(DeniedCache::off())
    }

    fn beside(&self, denied: DeniedCache) -> Self {
        let policies = self.shared.policies.load_full();
        let (region, regime) = (self.engine.region(), (*self.regime()).clone());
        node(
            region.as_str(),
            policies,
            self.store.clone(),
            regime,
            denied,
        )
    }

    pub(crate) async fn check(&self, tenant: &str, cost: u64) -> Decision {
        self.try_check(tenant, cost).await.unwrap()
    }

    pub(crate) async fn try_check(&self, tenant: &str, cost: u64) -> Result<Decision, CheckError> {
        self.engine.check(ask(tenant, cost)).await
    }

    pub(crate) async fn peek(&self, tenant: &str, cost: u64) -> Decision {
        let request = CheckRequest {
            peek: true,
            ..ask(tenant, cost)
        };
        self.engine.check(request).await.unwrap()
    }

    /// What each policy has left for a tenant.
    pub(crate) async fn remaining(&self, tenant: &str) -> Vec<u64> {
        let decision = self.peek(tenant, 1).await;
        decision.limits.iter().map(|l| l.remaining).collect()
    }
}

// === impl TestStore ===

impl TestStore {
    pub(crate) fn wait(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    /// One that goes by this store's clock.
    fn denied_cache(&self) -> DeniedCache {
        let ticks = self.clock.clone();
        DeniedCache::with_clock(move || ticks.load(Ordering::SeqCst))
    }

    /// What befalls the calls from now on, one after the other.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().extend(faults);
    }

    async fn lose(&self, op: Op) -> Result<Reply, StoreError> {
        let _ = self.inner.one(op).await;
        Err(StoreError::Unknown("no answer in time".into()))
    }

    /// What was asked since this was last called.
    pub(crate) fn calls(&self) -> Vec<Vec<Op>> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Store for TestStore {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        // The others' calls may come in between, as they do where there is a network.
        tokio::task::yield_now().await;
        self.calls.lock().unwrap().push(ops.clone());
        let fault = self.faults.lock().unwrap().pop_front();
        let mut replies = Vec::with_capacity(ops.len());
        if let Some(Fault::Wait(ms)) = fault {
            self.wait(ms);
        }
        for (i, op) in ops.into_iter().enumerate() {
            replies.push(match (fault, i) {
                (Some(Fault::NotSent(at)), _) if at == i => {
                    Err(StoreError::NotSent("broken".into()))
                }
                (Some(Fault::LookAgain(at)), _) if at == i => Err(StoreError::LookAgain),
                (Some(Fault::LookAgainAndLost), 0) => Err(StoreError::LookAgain),
                (Some(Fault::Lost(at)), _) if at == i => self.lose(op).await,
                (Some(Fault::LookAgainAndLost), 1) => self.lose(op).await,
                _ => self.inner.one(op).await,
            });
        }
        replies
    }
}
