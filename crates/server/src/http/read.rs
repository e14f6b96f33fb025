//! `GET /v1/shares`, `/v1/status` and `/v1/policies`: how things stand.

use super::query::{Parameters, Subject};
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use crate::node::{RegionShare, Status};
use apportion_core::{Algorithm, Attributes, Policy, PolicySet, Region};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Number;
use std::collections::BTreeMap;

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
    store: StoreView,
    peers: BTreeMap<&'a Region, PeerView>,
    policies: Vec<PolicyName<'a>>,
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
    limit: u64,
    per_ms: u64,
    /// Of the token bucket alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    weights: &'a BTreeMap<Region, u64>,
    usage_ms: Option<u64>,
    shadow: bool,
}

pub(super) async fn shares<L: Limiter>(
    State(face): State<Face<L>>,
    uri: Uri,
) -> Result<Response, Failure> {
    let parameters = Parameters::read(&uri, &["policy"])?;
    let policy = parameters.policy(&face.limiter.policies())?;
    let (values, key) = match parameters.subject(&policy)? {
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
        .map_err(|error| Failure::of_read(&error, face.limiter.region()))?;
    Ok(Json(Shares {
        policy: &policy.name,
        key: values,
        limit: policy.limit(),
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
        peers,
    } = face.limiter.status();
    Json(StatusView {
        region: region.as_str(),
        ready: face.ready(),
        life: life.map(|life| life.to_string()),
        epoch: epoch.0,
        standing,
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
                };
                (peer, view)
            })
            .collect(),
        policies: names(&policies),
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
            .map(|policy| PolicyView::from(policy.as_ref()))
            .collect(),
    })
    .into_response()
}

fn names(set: &PolicySet) -> Vec<PolicyName<'_>> {
    set.policies
        .iter()
        .map(|policy| PolicyName::from(policy.as_ref()))
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

impl<'a> From<&'a Policy> for PolicyName<'a> {
    fn from(policy: &'a Policy) -> Self {
        Self {
            name: &policy.name,
            version: policy.version,
            digest: format!("{:016x}", policy.digest()),
        }
    }
}

impl<'a> From<&'a Policy> for PolicyView<'a> {
    fn from(policy: &'a Policy) -> Self {
        let (algorithm, per_ms, burst) = match policy.algorithm {
            Algorithm::FixedWindow { per_ms, .. } => ("fixed-window", per_ms, None),
            Algorithm::TokenBucket { per_ms, burst, .. } => ("token-bucket", per_ms, Some(burst)),
        };
        Self {
            name: policy.into(),
            r#match: policy
                .attributes
                .iter()
                .map(|(name, pattern)| (name.as_str(), pattern.as_str()))
                .collect(),
            key: &policy.key,
            algorithm,
            limit: policy.limit(),
            per_ms,
            burst,
            weights: &policy.weights,
            usage_ms: policy.usage_ms,
            shadow: policy.shadow,
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
