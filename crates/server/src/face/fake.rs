//! A limiter whose answers are scripted.

use super::Limiter;
use crate::node::{Counts, PeerStatus, PeriodUsage, ReadError, RegionShare, Status};
use crate::retire::RetireError;
use apportion_core::{Epoch, Key, Life, Policy, PolicySet, Region, StoreMs};
use apportion_engine::{CheckError, CheckRequest, DecidedBy, Decision, LimitReport, Outcome};
use apportion_sync::{CloseError, ClosingStatus, OpenError, Opened, Progress, RolloutView};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Policies, as every test has them: `api` by tenant, `search` by tenant and route, `all` by nothing.
const POLICIES: &str = r#"
regions = ["us-east", "eu-west"]

[[policy]]
name = "api"
key = ["tenant"]
algorithm = "fixed-window"
limit = 1000
per = "1m"
usage = "1h"

[[policy]]
name = "search"
match = { route = "/v1/search*" }
key = ["tenant", "route"]
algorithm = "token-bucket"
limit = 600
per = "1m"
burst = 60

[[policy]]
name = "all"
key = []
algorithm = "fixed-window"
limit = 100000
per = "1m"
usage = "1h"
"#;

/// Says `Allowed` of `api` unless told otherwise.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Inner>);

struct Inner {
    region: Region,
    policies: Arc<PolicySet>,
    answer: Mutex<Answer>,
    last: Mutex<Option<CheckRequest>>,
    asked: AtomicU64,
    ready: AtomicBool,
    store_ok: AtomicBool,
    delay: Mutex<Duration>,
    closed: Mutex<Option<ClosingStatus>>,
}

type Answer = Box<dyn Fn(&Fake) -> Result<Decision, CheckError> + Send>;

impl Fake {
    pub(crate) fn new() -> Self {
        Self::in_region("us-east")
    }

    pub(crate) fn in_region(region: &str) -> Self {
        let policies = PolicySet::parse(POLICIES, "policies.toml").expect("the policies are good");
        Self(Arc::new(Inner {
            region: Region::new(region),
            policies: Arc::new(policies),
            answer: Mutex::new(Box::new(|fake| {
                Ok(fake.decision([fake.report("api", Outcome::Allowed)]))
            })),
            last: Mutex::default(),
            asked: AtomicU64::new(0),
            ready: AtomicBool::new(true),
            store_ok: AtomicBool::new(true),
            delay: Mutex::default(),
            closed: Mutex::default(),
        }))
    }

    pub(crate) fn answering(
        self,
        answer: impl Fn(&Fake) -> Result<Decision, CheckError> + Send + 'static,
    ) -> Self {
        *self.0.answer.lock().expect("no test panics in here") = Box::new(answer);
        self
    }

    pub(crate) fn delayed(self, delay: Duration) -> Self {
        *self.0.delay.lock().expect("no test panics in here") = delay;
        self
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Relaxed);
    }

    pub(crate) fn set_closed(&self, progress: Option<Progress>) {
        let closed = progress.map(|progress| ClosingStatus {
            life: Life::from_random(1),
            number: 1,
            progress,
            unconfirmed: vec![Region::new("eu-west")],
            closing_peers: Vec::new(),
        });
        *self.0.closed.lock().expect("no test panics in here") = closed;
    }

    pub(crate) fn lose_store(&self) {
        self.0.store_ok.store(false, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn last(&self) -> CheckRequest {
        let last = self.0.last.lock().expect("no test panics in here");
        last.clone().expect("it was asked")
    }

    pub(crate) fn policy(&self, name: &str) -> Arc<Policy> {
        let named = |policy: &&Arc<Policy>| policy.name == name;
        Arc::clone(self.0.policies.policies.iter().find(named).expect("known"))
    }

    pub(crate) fn report(&self, policy: &str, outcome: Outcome) -> LimitReport {
        let refused = outcome == Outcome::Refused;
        let policy = self.policy(policy);
        LimitReport {
            limit: policy.limits.limit,
            policy,
            outcome,
            remaining: if refused { 0 } else { 412 },
            reset_ms: 1200,
            retry_after_ms: if refused { 1200 } else { 0 },
            decided_by: DecidedBy::Store,
            crowded: false,
            overdrawn: 0,
        }
    }

    pub(crate) fn decision(&self, limits: impl IntoIterator<Item = LimitReport>) -> Decision {
        let limits: Vec<_> = limits.into_iter().collect();
        Decision {
            allowed: limits.iter().all(|l| l.outcome != Outcome::Refused),
            region: self.0.region.clone(),
            decided_at: StoreMs(1_764_444_444_444),
            limits,
            reservation: None,
            replayed: false,
        }
    }

    pub(crate) fn unavailable(&self, outcome_unknown: bool) -> CheckError {
        CheckError::StoreUnavailable {
            region: self.0.region.clone(),
            reason: "redis://10.1.2.3:6379 is not for callers to see".into(),
            outcome_unknown,
        }
    }

    fn readable(&self) -> Result<(), ReadError> {
        if self.0.store_ok.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(ReadError::StoreUnavailable("redis://10.1.2.3:6379".into()))
        }
    }
}

impl Limiter for Fake {
    fn region(&self) -> &Region {
        &self.0.region
    }

    fn policies(&self) -> Arc<PolicySet> {
        Arc::clone(&self.0.policies)
    }

    async fn check(&self, request: CheckRequest) -> Result<Decision, CheckError> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        *self.0.last.lock().expect("no test panics in here") = Some(request);
        let delay = *self.0.delay.lock().expect("no test panics in here");
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let answer = self.0.answer.lock().expect("no test panics in here");
        answer(self)
    }

    async fn release(&self, reservation: &str) -> Result<bool, CheckError> {
        match reservation {
            "taken" => Ok(true),
            "over" => Ok(false),
            _ => Err(CheckError::Invalid {
                field: "reservation",
                message: "unreadable".into(),
            }),
        }
    }

    fn limit_of(&self, policy: &Policy, _key: &Key) -> u64 {
        policy.limits.limit
    }

    async fn usage(
        &self,
        policy: &Policy,
        _key: &Key,
        from: Option<StoreMs>,
        _to: Option<StoreMs>,
    ) -> Result<Vec<PeriodUsage>, ReadError> {
        self.readable()?;
        let Some(length) = policy.usage_ms else {
            return Ok(Vec::new());
        };
        let start = from.unwrap_or(StoreMs(1_764_442_800_000));
        let total = Counts {
            admitted: 100,
            refunded: 0,
            refused: 800,
        };
        let east = Counts {
            admitted: 34,
            ..total
        };
        Ok(vec![PeriodUsage {
            start,
            end: start.plus(length),
            total,
            by_region: BTreeMap::from([(self.0.region.clone(), (east, start.plus(5)))]),
            complete: false,
            low: 100,
            high: 100,
        }])
    }

    async fn usage_keys(&self, policy: &Policy, limit: usize) -> Result<Vec<Key>, ReadError> {
        self.readable()?;
        let key = |tenant: &str| {
            let values = policy
                .key
                .iter()
                .map(|name| (name.clone(), tenant.to_owned()))
                .collect();
            Key::of(policy, &values, &self.0.policies.subject_hash)
                .expect("short values make a key")
        };
        Ok(["globex", "acme"]
            .map(key)
            .into_iter()
            .take(limit)
            .collect())
    }

    async fn shares(
        &self,
        _policy: &Policy,
        _key: &Key,
    ) -> Result<BTreeMap<Region, RegionShare>, ReadError> {
        self.readable()?;
        let east = RegionShare {
            base: 500.0,
            lent: 0.0,
            borrowed: 33.25,
            given: 0,
            received: 7,
            in_force: 533.25,
            used: 412.0,
            as_of: Some(StoreMs(1_764_444_444_444)),
        };
        let west = RegionShare {
            base: 500.0,
            ..RegionShare::default()
        };
        Ok(BTreeMap::from([
            (Region::new("us-east"), east),
            (Region::new("eu-west"), west),
        ]))
    }

    fn status(&self) -> Status {
        let west = PeerStatus {
            reachable: true,
            lag_ms: Some(1250),
            actor: None,
            revision: Some(1),
            policies_differ: false,
            conflicts: false,
        };
        let south = PeerStatus {
            reachable: false,
            lag_ms: None,
            actor: None,
            revision: None,
            policies_differ: false,
            conflicts: false,
        };
        Status {
            region: self.0.region.clone(),
            life: Some(Life::from_random(1)),
            epoch: Epoch(0),
            standing: "first",
            store_ok: self.0.store_ok.load(Ordering::Relaxed),
            closed: self
                .0
                .closed
                .lock()
                .expect("no test panics in here")
                .clone(),
            rollout: RolloutView {
                revision: 1,
                oldest: Some(1),
                ..RolloutView::default()
            },
            peers: BTreeMap::from([
                (Region::new("eu-west"), west),
                (Region::new("ap-south"), south),
            ]),
        }
    }

    async fn retire(&self, region: &str, force: bool) -> Result<Region, RetireError> {
        let region = Region::new(region);
        match region.as_str() {
            "ap-south" => Ok(region),
            "eu-west" if !force => Err(RetireError::Reachable(region)),
            _ => Err(RetireError::Unknown {
                name: region.to_string(),
                known: "ap-south, eu-west, us-east".into(),
            }),
        }
    }

    fn ready(&self) -> bool {
        self.0.ready.load(Ordering::Relaxed)
    }

    async fn close(&self) -> Result<(), CloseError> {
        if !self.0.store_ok.load(Ordering::Relaxed) {
            return Err(CloseError::Unconfirmed(vec![Region::new("eu-west")]));
        }
        self.set_closed(Some(Progress::Closed));
        Ok(())
    }

    async fn open(&self, as_lost: bool) -> Result<Opened, OpenError> {
        if !self.0.store_ok.load(Ordering::Relaxed) && !as_lost {
            self.set_closed(Some(Progress::Opening));
            return Err(OpenError::Unconfirmed(vec![Region::new("eu-west")]));
        }
        self.set_closed(None);
        Ok(Opened {
            life: Life::from_random(1),
            lost: as_lost,
        })
    }
}
