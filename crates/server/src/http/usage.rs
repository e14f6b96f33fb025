//! `GET /v1/usage`: what was admitted, merged over all regions.

use super::query::{Parameters, Subject, rfc3339};
use crate::ask::subject_of;
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use crate::node::{Counts, PeriodUsage};
use apportion_core::{Attributes, Region, StoreMs};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::collections::BTreeMap;

/// Most keys in one answer.
const MAX_KEYS: usize = 1000;

#[derive(Serialize)]
struct OneKey<'a> {
    policy: &'a str,
    key: Attributes,
    periods: Vec<Period>,
}

#[derive(Serialize)]
struct AllKeys<'a> {
    policy: &'a str,
    keys: Vec<KeyPeriods>,
    /// There are more keys than one answer holds.
    truncated: bool,
}

#[derive(Serialize)]
struct KeyPeriods {
    key: Attributes,
    periods: Vec<Period>,
}

#[derive(Serialize)]
struct Period {
    start: String,
    end: String,
    admitted: u64,
    refunded: u64,
    refused: u64,
    by_region: BTreeMap<Region, RegionCounts>,
    complete: bool,
    low: u64,
    high: u64,
}

#[derive(Serialize)]
struct RegionCounts {
    admitted: u64,
    refunded: u64,
    refused: u64,
    /// The region's counts are known up to here, on its own clock.
    through: String,
}

pub(super) async fn usage<L: Limiter>(
    State(face): State<Face<L>>,
    uri: Uri,
) -> Result<Response, Failure> {
    let parameters = Parameters::read(&uri, &["policy", "from", "to"])?;
    let policies = face.limiter.policies();
    let policy = parameters.policy(&policies)?;
    let (from, to) = parameters.span()?;
    let limiter = &face.limiter;
    let failed = |error| face.explained(Failure::of_read(&error, limiter.region()));

    match parameters.subject(&policy, &policies.subject_hash)? {
        Subject::One { values, key } => {
            let periods = limiter
                .usage(&policy, &key, from, to)
                .await
                .map_err(failed)?;
            Ok(Json(OneKey {
                policy: &policy.name,
                key: values,
                periods: periods.into_iter().map(Period::from).collect(),
            })
            .into_response())
        }
        Subject::All => {
            let mut found = limiter
                .usage_keys(&policy, MAX_KEYS + 1)
                .await
                .map_err(failed)?;
            found.sort();
            let truncated = found.len() > MAX_KEYS;
            found.truncate(MAX_KEYS);
            let mut keys = Vec::with_capacity(found.len());
            for key in found {
                let periods = limiter
                    .usage(&policy, &key, from, to)
                    .await
                    .map_err(failed)?;
                if !periods.is_empty() {
                    keys.push(KeyPeriods {
                        key: subject_of(&policy, &key),
                        periods: periods.into_iter().map(Period::from).collect(),
                    });
                }
            }
            Ok(Json(AllKeys {
                policy: &policy.name,
                keys,
                truncated,
            })
            .into_response())
        }
    }
}

impl From<PeriodUsage> for Period {
    fn from(usage: PeriodUsage) -> Self {
        let Counts {
            admitted,
            refunded,
            refused,
        } = usage.total;
        Self {
            start: rfc3339(usage.start),
            end: rfc3339(usage.end),
            admitted,
            refunded,
            refused,
            by_region: usage
                .by_region
                .into_iter()
                .map(|(region, slot)| (region, slot.into()))
                .collect(),
            complete: usage.complete,
            low: usage.low,
            high: usage.high,
        }
    }
}

impl From<(Counts, StoreMs)> for RegionCounts {
    fn from((counts, through): (Counts, StoreMs)) -> Self {
        Self {
            admitted: counts.admitted,
            refunded: counts.refunded,
            refused: counts.refused,
            through: rfc3339(through),
        }
    }
}
