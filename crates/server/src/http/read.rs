//! `GET /v1/shares`, `/v1/status` and `/v1/policies`: how things stand.

use super::query::{Parameters, Subject};
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use crate::node::{RegionShare, Status};
use apportion_core::policy::{Class, Standing};
use apportion_core::{Algorithm, Attributes, Limits, Period, Policy, PolicySet, Region};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Number;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Serialize)]
struct Shares<'a> {
    policy: &'a str,
    key: Attributes,
    limit: u64,
    regions: BTreeMap<Region, Share>,
}

/// In units of the limit; all but `base` are null for a region that couldn't be asked.
#[derive(Serialize)]
struct Share {
    base: Number,
    lent: Option<Number>,
    borrowed: Option<Number>,
    given: Option<u64>,
    received: Option<u64>,
    in_force: Option<Number>,
    used: Option<Number>,
    as_of_ms: Option<u64>,
}

#[derive(Serialize)]
struct StatusView<'a> {
    region: &'a str,
    ready: bool,
    life: Option<String>,
    epoch: u32,
    standing: &'a str,
    closed: bool,
    store: StoreView,
    peers: BTreeMap<&'a Region, PeerView>,
    policies: Vec<PolicyName<'a>>,
    rollout: RolloutStatus<'a>,
}

#[derive(Serialize)]
struct RolloutStatus<'a> {
    revision: u64,
    /// The oldest revision that still counts here.
    oldest: Option<u64>,
    /// Regions whose word is waited for.
    waits_for: &'a BTreeSet<Region>,
    retired: &'a BTreeSet<Region>,
}

#[derive(Serialize)]
struct StoreView {
    ok: bool,
    /// Null: this version has no breaker in front of the store.
    breaker: Option<&'static str>,
}

#[derive(Serialize)]
struct PeerView {
    reachable: bool,
    lag_ms: Option<u64>,
    revision: Option<u64>,
    /// Nothing is traded with it: its policies, or its loan_term, are others.
    policies_differ: bool,
    /// It has other policies under this node's revision.
    revision_conflicts: bool,
}

#[derive(Serialize)]
struct PolicyName<'a> {
    name: &'a str,
    version: u32,
    digest: String,
}

#[derive(Serialize)]
struct Policies<'a> {
    revision: u64,
    regions: &'a [Region],
    policies: Vec<PolicyView<'a>>,
}

#[derive(Serialize)]
struct PolicyView<'a> {
    #[serde(flatten)]
    name: PolicyName<'a>,
    r#match: BTreeMap<&'a str, &'a str>,
    key: &'a [String],
    algorithm: &'static str,
    #[serde(flatten)]
    limits: LimitsView,
    /// Left out for concurrency, which has no period, and for calendar periods, which have no one length.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_ms: Option<u64>,
    /// `month`, the calendar's.
    #[serde(skip_serializing_if = "Option::is_none")]
    per: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plans: Option<PlansView<'a>>,
    /// How many subjects have limits of their own.
    #[serde(skip_serializing_if = "is_zero")]
    overrides: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    priority: Vec<ClassView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<PoolView<'a>>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    sensitive: &'a BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_subjects_per_second: Option<u32>,
    weights: &'a BTreeMap<Region, u64>,
    usage_ms: Option<u64>,
    shadow: bool,
}

#[derive(Serialize)]
struct LimitsView {
    limit: u64,
    /// Of buckets alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
}

#[derive(Serialize)]
struct PlansView<'a> {
    by: &'a str,
    #[serde(flatten)]
    plans: BTreeMap<&'a str, LimitsView>,
}

#[derive(Serialize)]
struct ClassView<'a> {
    class: &'a str,
    /// In parts per hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    refuse_below_percent: Option<f64>,
    exempt: bool,
}

#[derive(Serialize)]
struct PoolView<'a> {
    by: &'a str,
    default_weight: u32,
    weights: &'a BTreeMap<String, u32>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

pub(super) async fn shares<L: Limiter>(
    State(face): State<Face<L>>,
    uri: Uri,
) -> Result<Response, Failure> {
    let parameters = Parameters::read(&uri, &["policy"])?;
    let policies = face.limiter.policies();
    let policy = parameters.policy(&policies)?;
    let (values, key) = match parameters.subject(&policy, &policies.subject_hash)? {
        Subject::One { values, key } => (values, key),
        Subject::All => {
            return Err(Failure::invalid(
                format!("key.{}", policy.key[0]),
                format!(
                    "missing; the key attributes of policy {:?} are {}",
                    policy.name,
                    policy.key.join(", ")
                ),
            ));
        }
    };
    let regions = face
        .limiter
        .shares(&policy, &key)
        .await
        .map_err(|error| face.explained(Failure::of_read(&error, face.limiter.region())))?;
    Ok(Json(Shares {
        policy: &policy.name,
        key: values,
        limit: face.limiter.limit_of(&policy, &key),
        regions: regions
            .into_iter()
            .map(|(region, share)| (region, share.into()))
            .collect(),
    })
    .into_response())
}

pub(super) async fn status<L: Limiter>(State(face): State<Face<L>>) -> Response {
    let policies = face.limiter.policies();
    let Status {
        region,
        life,
        epoch,
        standing,
        store_ok,
        closed,
        peers,
        rollout,
    } = face.limiter.status();
    Json(StatusView {
        region: region.as_str(),
        ready: face.ready(),
        life: life.map(|life| life.to_string()),
        epoch: epoch.0,
        standing,
        closed: closed.is_some(),
        store: StoreView {
            ok: store_ok,
            breaker: None,
        },
        peers: peers
            .iter()
            .map(|(peer, status)| {
                let view = PeerView {
                    reachable: status.reachable,
                    lag_ms: status.lag_ms,
                    revision: status.revision,
                    policies_differ: status.policies_differ,
                    revision_conflicts: status.conflicts,
                };
                (peer, view)
            })
            .collect(),
        policies: names(&policies),
        rollout: RolloutStatus {
            revision: rollout.revision,
            oldest: rollout.oldest,
            waits_for: &rollout.waits_for,
            retired: &rollout.retired,
        },
    })
    .into_response()
}

pub(super) async fn policies<L: Limiter>(State(face): State<Face<L>>) -> Response {
    let set = face.limiter.policies();
    Json(Policies {
        revision: set.revision,
        regions: &set.regions,
        policies: set
            .policies
            .iter()
            .map(|policy| PolicyView::new(&set, policy))
            .collect(),
    })
    .into_response()
}

fn names(set: &PolicySet) -> Vec<PolicyName<'_>> {
    set.policies
        .iter()
        .map(|policy| PolicyName::new(set, policy))
        .collect()
}

/// Whole numbers without a fraction, as everywhere else in the API.
fn units(value: f64) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return Number::from(value as i64);
    }
    Number::from_f64(value).unwrap_or_else(|| Number::from(0))
}

impl<'a> PolicyName<'a> {
    fn new(set: &PolicySet, policy: &'a Policy) -> Self {
        Self {
            name: &policy.name,
            version: policy.version,
            digest: format!("{:016x}", set.policy_digest(policy)),
        }
    }
}

impl<'a> PolicyView<'a> {
    fn new(set: &PolicySet, policy: &'a Policy) -> Self {
        let limits = |limits: &Limits| LimitsView {
            limit: limits.limit,
            burst: policy.algorithm.is_bucket().then_some(limits.burst),
        };
        let (per_ms, per) = match policy.algorithm.period() {
            Some(Period::Every { per_ms, .. }) => (Some(per_ms), None),
            Some(Period::Month) => (None, Some("month")),
            None => (None, None),
        };
        Self {
            name: PolicyName::new(set, policy),
            r#match: policy
                .attributes
                .iter()
                .map(|(name, pattern)| (name.as_str(), pattern.as_str()))
                .collect(),
            key: &policy.key,
            algorithm: policy.algorithm.name(),
            limits: limits(&policy.limits),
            per_ms,
            per,
            buckets: match policy.algorithm {
                Algorithm::SlidingWindow { buckets, .. } => Some(buckets),
                _ => None,
            },
            slot_ttl_ms: match policy.algorithm {
                Algorithm::Concurrency { slot_ttl_ms } => Some(slot_ttl_ms),
                _ => None,
            },
            plans: policy.plans.as_ref().map(|plans| PlansView {
                by: &plans.by,
                plans: plans
                    .plans
                    .iter()
                    .map(|(name, plan)| (name.as_str(), limits(plan)))
                    .collect(),
            }),
            overrides: policy.overrides.len(),
            priority: policy.classes.iter().map(ClassView::from).collect(),
            pool: policy.pool.as_ref().map(|pool| PoolView {
                by: &pool.by,
                default_weight: pool.default_weight,
                weights: &pool.weights,
            }),
            sensitive: &policy.sensitive,
            new_subjects_per_second: policy.new_subjects_per_s,
            weights: &policy.weights,
            usage_ms: policy.usage_ms,
            shadow: policy.shadow,
        }
    }
}

impl<'a> From<&'a Class> for ClassView<'a> {
    fn from(class: &'a Class) -> Self {
        let percent = match class.standing {
            Standing::Leaves { ppm } => Some(f64::from(ppm) / 10_000.0),
            Standing::Exempt => None,
        };
        Self {
            class: &class.name,
            refuse_below_percent: percent,
            exempt: percent.is_none(),
        }
    }
}

impl From<RegionShare> for Share {
    fn from(share: RegionShare) -> Self {
        let known = share.as_of.is_some();
        let number = |value| known.then(|| units(value));
        Self {
            base: units(share.base),
            lent: number(share.lent),
            borrowed: number(share.borrowed),
            given: known.then_some(share.given),
            received: known.then_some(share.received),
            in_force: number(share.in_force),
            used: number(share.used),
            as_of_ms: share.as_of.map(|at| at.0),
        }
    }
}
