//! What an answer's headers tell of the tightest limit.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-11: Lists (RFC 9651) of a String,
//! the policy's name, with Integer parameters. The `X-RateLimit-*` fields are the older custom, in delta-seconds.
//! Times are rounded up: a caller that waits as told is never early.

use apportion_core::Period;
use apportion_engine::{Decision, LimitReport, Outcome};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use std::cmp::Ordering;

pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Quota, in units.
const Q: &KeyRef = KeyRef::constant("q");
/// Window, in seconds.
const W: &KeyRef = KeyRef::constant("w");
/// Remaining units.
const R: &KeyRef = KeyRef::constant("r");
/// Seconds to the full quota.
const T: &KeyRef = KeyRef::constant("t");

/// The limit that a caller should mind: the one that refuses, for longest if there are several; else the one with the
/// least of its limit remaining. Shadow policies never refuse, so callers are not told of them.
pub fn tightest(decision: &Decision) -> Option<&LimitReport> {
    let minded = || decision.limits.iter().filter(|limit| !limit.policy.shadow);
    // `max_by_key` takes the last of equals; reversed, it is the first in the order of the file.
    minded()
        .rev()
        .filter(|limit| limit.outcome == Outcome::Refused)
        .max_by_key(|limit| limit.retry_after_ms)
        .or_else(|| minded().min_by(|a, b| by_part_remaining(a, b)))
}

/// The time after which every policy that refused could admit; 0 if none did.
pub fn retry_after_ms(decision: &Decision) -> u64 {
    decision
        .limits
        .iter()
        .filter(|limit| limit.outcome == Outcome::Refused)
        .map(|limit| limit.retry_after_ms)
        .max()
        .unwrap_or(0)
}

/// All that the headers say of a decision.
pub fn rate_limit_headers(decision: &Decision) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(limit) = tightest(decision) {
        let reset_s = limit.reset_ms.div_ceil(1000);
        if let Ok(name) = StringRef::from_str(&limit.policy.name) {
            put(&mut headers, RATELIMIT_POLICY, policy_field(name, limit));
            put(&mut headers, RATELIMIT, limit_field(name, limit, reset_s));
        }
        headers.insert(X_RATELIMIT_LIMIT, limit.limit.into());
        headers.insert(X_RATELIMIT_REMAINING, limit.remaining.into());
        headers.insert(X_RATELIMIT_RESET, reset_s.into());
    }
    if !decision.allowed {
        let seconds = retry_after_ms(decision).div_ceil(1000).max(1);
        headers.insert(RETRY_AFTER, seconds.into());
    }
    headers
}

fn policy_field(name: &StringRef, limit: &LimitReport) -> Option<String> {
    let mut list = ListSerializer::new();
    let item = list.bare_item(name).parameter(Q, integer(limit.limit));
    if let Some(seconds) = window_s(limit) {
        let _ = item.parameter(W, integer(seconds));
    }
    list.finish()
}

fn limit_field(name: &StringRef, limit: &LimitReport, reset_s: u64) -> Option<String> {
    let mut list = ListSerializer::new();
    let _ = list
        .bare_item(name)
        .parameter(R, integer(limit.remaining))
        .parameter(T, integer(reset_s));
    list.finish()
}

/// The policy's period, where it is whole seconds: rounded, it would promise another rate.
fn window_s(limit: &LimitReport) -> Option<u64> {
    match limit.policy.algorithm.period()? {
        Period::Every { per_ms, .. } => per_ms.is_multiple_of(1000).then_some(per_ms / 1000),
        Period::Month => None,
    }
}

/// Structured fields know integers of up to 15 digits; larger ones saturate.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}

fn by_part_remaining(a: &LimitReport, b: &LimitReport) -> Ordering {
    let cross = |x: &LimitReport, y: &LimitReport| u128::from(x.remaining) * u128::from(y.limit);
    cross(a, b).cmp(&cross(b, a))
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Option<String>) {
    if let Some(value) = value.and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests;
