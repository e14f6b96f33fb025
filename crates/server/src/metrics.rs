//! Every metric's name, what it means, and the recorder that `/metrics` renders.
//!
//! No metric is labelled by anything that a caller chooses: labels are policies, regions and words from a fixed
//! list. Several regions may share one process, so the region is always a label. `docs/METRICS.md` is for people.

use crate::errors::Failure;
use crate::face::outcome_name;
use crate::node::Status;
use apportion_core::{PolicySet, Region};
use apportion_engine::{DecidedBy, Decision, LimitReport, Outcome};
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Counter. What policies said, by `policy`, `region` and `outcome`. Peeks are not counted.
pub const DECISIONS: &str = "apportion_decisions_total";
/// Counter. Refusals that no store was asked for, by `policy` and `region`.
pub const DENIED_CACHE: &str = "apportion_denied_cache_refusals_total";
/// Counter. Requests refused because too many subjects of the policy were new in that second, by `policy` and `region`.
pub const NEW_SUBJECTS_REFUSED: &str = "apportion_new_subjects_refused_total";
/// Counter. Units admitted beyond the region's rights, on its part of the overdraft, by `policy` and `region`.
pub const OVERDRAFT_UNITS: &str = "apportion_overdraft_units_total";
/// Counter. Units that peers admitted while the limit was used up, as far as the region knew, by `policy` and `region`.
pub const OVERSHOOT_UNITS: &str = "apportion_overshoot_units_total";
/// Counter. Requests that were answered as before because of their request id, by `region`.
pub const REPLAYS: &str = "apportion_replayed_requests_total";
/// Histogram, seconds. From a parsed request to its decision, by `region` and `protocol`.
pub const CHECK_SECONDS: &str = "apportion_check_duration_seconds";
/// Counter. Checks that could not be decided, by `region` and `code`.
pub const CHECK_FAILURES: &str = "apportion_check_failures_total";
/// Gauge, 0 or 1, by `region`.
pub const READY: &str = "apportion_ready";
/// Gauge, 0 or 1, by `region`.
pub const STORE_UP: &str = "apportion_store_up";
/// Gauge, 0 or 1, by `region` and `peer`.
pub const PEER_REACHABLE: &str = "apportion_peer_reachable";
/// Gauge, seconds, by `region` and `peer`. Absent until a peer was heard.
pub const PEER_LAG_SECONDS: &str = "apportion_peer_lag_seconds";
/// Gauge, by `region`. The revision of the policies that the node goes by.
pub const REVISION: &str = "apportion_policies_revision";
/// Gauge, by `region`. The oldest revision that still counts: below the former while a roll-out is under way.
pub const REVISION_OLDEST: &str = "apportion_policies_revision_oldest";
/// Gauge, by `region`. Regions that the roll-out waits for.
pub const ROLLOUT_WAITS_FOR: &str = "apportion_rollout_waits_for_regions";
/// Gauge, by `region` and `peer`. The newest revision that a peer goes by. Absent until it was heard.
pub const PEER_REVISION: &str = "apportion_peer_policies_revision";
/// Gauge, 0 or 1, by `region` and `peer`. The peer's policies, or its loan term, are others: nothing is traded with it.
pub const PEER_POLICIES_DIFFER: &str = "apportion_peer_policies_differ";
/// Gauge, 0 or 1, by `region` and `peer`. The peer has other policies under the same revision.
pub const PEER_REVISION_CONFLICTS: &str = "apportion_peer_revision_conflicts";
/// Gauge. Open connections, by `region` and `protocol`.
pub const CONNECTIONS: &str = "apportion_connections";
/// Gauge, always 1, by `version`.
pub const BUILD_INFO: &str = "apportion_build_info";

/// Upper bounds, seconds: from a decision in memory to a store that times out.
const CHECK_BUCKETS: &[f64] = &[
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 1.0,
];

const UPKEEP: Duration = Duration::from_secs(5);

/// Which face a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// Handles of one region's faces, so that a check looks up no label.
pub(crate) struct FaceMetrics {
    region: String,
    policies: HashMap<String, PolicyCounters>,
    replays: Counter,
    http_seconds: Histogram,
    grpc_seconds: Histogram,
    ready: Gauge,
    store_up: Gauge,
}

struct PolicyCounters {
    outcomes: [Counter; 4],
    denied_cache: Counter,
    new_subjects_refused: Counter,
    overdraft_units: Counter,
}

/// Makes this process's metrics renderable; the first call installs the recorder, later ones share it.
///
/// What is counted before the first call is lost.
pub fn install() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), CHECK_BUCKETS)
            .expect("the buckets are not empty")
            .build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics will stay empty");
        }
        describe();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        handle
    })
}

/// Keeps histograms from growing between scrapes, until `shutdown`.
pub(crate) async fn upkeep(shutdown: CancellationToken) {
    let handle = install();
    let mut tick = tokio::time::interval(UPKEEP);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        handle.run_upkeep();
    }
}

fn describe() {
    describe_counter!(
        DECISIONS,
        "What policies said of the requests put to them; peeks are not counted."
    );
    describe_counter!(
        DENIED_CACHE,
        "Refusals that the node gave without asking the store."
    );
    describe_counter!(
        NEW_SUBJECTS_REFUSED,
        "Requests refused because too many subjects of the policy were new in that second."
    );
    describe_counter!(
        OVERDRAFT_UNITS,
        "Units admitted beyond the region's rights, on its part of the overdraft."
    );
    describe_counter!(
        OVERSHOOT_UNITS,
        "Units that peers admitted while the limit was used up, as far as the region knew."
    );
    describe_counter!(
        REPLAYS,
        "Requests answered as before because of their request id."
    );
    describe_histogram!(
        CHECK_SECONDS,
        Unit::Seconds,
        "Time from a parsed request to its decision."
    );
    describe_counter!(CHECK_FAILURES, "Checks that could not be decided.");
    describe_gauge!(READY, "Whether the region's node is ready to serve.");
    describe_gauge!(STORE_UP, "Whether the region's store answers its node.");
    describe_gauge!(
        PEER_REACHABLE,
        "Whether the peer answered when last spoken to."
    );
    describe_gauge!(
        PEER_LAG_SECONDS,
        Unit::Seconds,
        "Time since the peer was last heard."
    );
    describe_gauge!(
        REVISION,
        "The revision of the policies that the node goes by."
    );
    describe_gauge!(
        REVISION_OLDEST,
        "The oldest revision of the policies that still counts in the region."
    );
    describe_gauge!(
        ROLLOUT_WAITS_FOR,
        "Regions whose word a roll-out of policies waits for."
    );
    describe_gauge!(
        PEER_REVISION,
        "The newest revision of the policies that the peer goes by."
    );
    describe_gauge!(
        PEER_POLICIES_DIFFER,
        "Whether nothing is traded with the peer, because its policies or its loan term are others."
    );
    describe_gauge!(
        PEER_REVISION_CONFLICTS,
        "Whether the peer has other policies under the same revision."
    );
    describe_gauge!(CONNECTIONS, "Open connections.");
    describe_gauge!(BUILD_INFO, "Always 1; the version is a label.");
}

// === impl Protocol ===

impl Protocol {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

// === impl FaceMetrics ===

impl FaceMetrics {
    pub(crate) fn new(region: &Region, policies: &PolicySet) -> Self {
        install();
        let region = region.as_str().to_owned();
        let seconds = |protocol: Protocol| histogram!(CHECK_SECONDS, "region" => region.clone(), "protocol" => protocol.name());
        Self {
            policies: policies
                .policies
                .iter()
                .map(|policy| {
                    let counters = PolicyCounters::new(&region, &policy.name);
                    (policy.name.clone(), counters)
                })
                .collect(),
            replays: counter!(REPLAYS, "region" => region.clone()),
            http_seconds: seconds(Protocol::Http),
            grpc_seconds: seconds(Protocol::Grpc),
            ready: gauge!(READY, "region" => region.clone()),
            store_up: gauge!(STORE_UP, "region" => region.clone()),
            region,
        }
    }

    pub(crate) fn decided(&self, decision: &Decision) {
        if decision.replayed {
            self.replays.increment(1);
            return;
        }
        for limit in &decision.limits {
            match self.policies.get(&limit.policy.name) {
                Some(counters) => counters.count(limit),
                // A policy that came with a reload.
                None => PolicyCounters::new(&self.region, &limit.policy.name).count(limit),
            }
        }
    }

    pub(crate) fn failed(&self, failure: &Failure) {
        counter!(CHECK_FAILURES, "region" => self.region.clone(), "code" => failure.kind().code)
            .increment(1);
    }

    pub(crate) fn took(&self, protocol: Protocol, time: Duration) {
        match protocol {
            Protocol::Http => self.http_seconds.record(time),
            Protocol::Grpc => self.grpc_seconds.record(time),
        }
    }

    pub(crate) fn connections(&self, protocol: Protocol) -> Gauge {
        gauge!(CONNECTIONS, "region" => self.region.clone(), "protocol" => protocol.name())
    }

    pub(crate) fn observe(&self, ready: bool, status: &Status) {
        self.ready.set(f64::from(u8::from(ready)));
        self.store_up.set(f64::from(u8::from(status.store_ok)));
        let region = || self.region.clone();
        gauge!(REVISION, "region" => region()).set(status.rollout.revision as f64);
        if let Some(oldest) = status.rollout.oldest {
            gauge!(REVISION_OLDEST, "region" => region()).set(oldest as f64);
        }
        gauge!(ROLLOUT_WAITS_FOR, "region" => region()).set(status.rollout.waits_for.len() as f64);
        for (peer, peer_status) in &status.peers {
            let peer = peer.as_str().to_owned();
            let of_peer =
                |name: &'static str| gauge!(name, "region" => region(), "peer" => peer.clone());
            if let Some(revision) = peer_status.revision {
                of_peer(PEER_REVISION).set(revision as f64);
            }
            of_peer(PEER_POLICIES_DIFFER).set(f64::from(u8::from(peer_status.policies_differ)));
            of_peer(PEER_REVISION_CONFLICTS).set(f64::from(u8::from(peer_status.conflicts)));
            gauge!(PEER_REACHABLE, "region" => self.region.clone(), "peer" => peer.clone())
                .set(f64::from(u8::from(peer_status.reachable)));
            if let Some(lag_ms) = peer_status.lag_ms {
                gauge!(PEER_LAG_SECONDS, "region" => self.region.clone(), "peer" => peer)
                    .set(Duration::from_millis(lag_ms).as_secs_f64());
            }
        }
    }
}

impl std::fmt::Debug for FaceMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaceMetrics")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

// === impl PolicyCounters ===

impl PolicyCounters {
    fn new(region: &str, policy: &str) -> Self {
        let named = |name: &'static str| counter!(name, "policy" => policy.to_owned(), "region" => region.to_owned());
        Self {
            outcomes: OUTCOMES.map(|outcome| decisions(region, policy, outcome)),
            denied_cache: named(DENIED_CACHE),
            new_subjects_refused: named(NEW_SUBJECTS_REFUSED),
            overdraft_units: named(OVERDRAFT_UNITS),
        }
    }

    fn count(&self, limit: &LimitReport) {
        self.outcomes[index(limit.outcome)].increment(1);
        if limit.decided_by == DecidedBy::DeniedCache {
            self.denied_cache.increment(1);
        }
        if limit.crowded {
            self.new_subjects_refused.increment(1);
        }
        if limit.overdrawn > 0 {
            self.overdraft_units.increment(limit.overdrawn);
        }
    }
}

/// Counts what was heard of a key to be beyond its limit.
pub(crate) fn overshot(region: &Region, policy_id: &str, units: u64) {
    let policy = policy_id
        .split_once('@')
        .map_or(policy_id, |(name, _)| name);
    counter!(
        OVERSHOOT_UNITS,
        "policy" => policy.to_owned(),
        "region" => region.as_str().to_owned(),
    )
    .increment(units);
}

const OUTCOMES: [Outcome; 4] = [
    Outcome::Allowed,
    Outcome::Refused,
    Outcome::ShadowRefused,
    Outcome::NotCharged,
];

fn index(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Allowed => 0,
        Outcome::Refused => 1,
        Outcome::ShadowRefused => 2,
        Outcome::NotCharged => 3,
    }
}

fn decisions(region: &str, policy: &str, outcome: Outcome) -> Counter {
    counter!(
        DECISIONS,
        "policy" => policy.to_owned(),
        "region" => region.to_owned(),
        "outcome" => outcome_name(outcome),
    )
}
