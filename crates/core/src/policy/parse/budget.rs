//! How much a policy admits: algorithm, limit, period, burst.

use super::super::later::NOT_YET;
use super::super::source::{Table, any_of};
use super::super::{Algorithm, Limits, Policy, limits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    Gcra,
    Concurrency,
}

pub(super) const KINDS: [(&str, Kind); 6] = [
    ("fixed-window", Kind::FixedWindow),
    ("sliding-window", Kind::SlidingWindow),
    ("sliding-log", Kind::SlidingLog),
    ("token-bucket", Kind::TokenBucket),
    ("gcra", Kind::Gcra),
    ("concurrency", Kind::Concurrency),
];

/// What is recommended, of `KINDS`.
pub(super) const SUPPORTED_KINDS: [&str; 2] = ["fixed-window", "token-bucket"];

const CALENDAR: [&str; 3] = ["day", "week", "month"];

enum Period {
    Fixed(u64),
    Calendar,
}

pub(super) fn read_algorithm(table: &Table<'_>, kind: Option<Kind>) -> Option<(Algorithm, Limits)> {
    let limit = table
        .required("limit", "the number of units to admit in each period")
        .and_then(|field| field.integer(limits::UNITS));
    let period = read_period(table, kind);
    let burst = read_burst(table, kind);
    let (kind, limit) = (kind?, limit?);
    let algorithm = match (kind, period) {
        (Kind::FixedWindow, Some(Period::Fixed(per_ms))) => Algorithm::FixedWindow {
            period: crate::period::Period::every(per_ms),
        },
        (Kind::TokenBucket, Some(Period::Fixed(per_ms))) => Algorithm::TokenBucket { per_ms },
        (Kind::FixedWindow | Kind::TokenBucket, _) => return None,
        (Kind::SlidingWindow | Kind::SlidingLog | Kind::Gcra | Kind::Concurrency, _) => {
            let (name, _) = KINDS.iter().find(|(_, k)| *k == kind)?;
            table
                .get("algorithm")?
                .wrong(format!("{name:?} is {NOT_YET}"), any_of(SUPPORTED_KINDS));
            return None;
        }
    };
    let burst = burst?.unwrap_or(limit);
    Some((algorithm, Limits { limit, burst }))
}

fn read_period(table: &Table<'_>, kind: Option<Kind>) -> Option<Period> {
    if kind == Some(Kind::Concurrency) {
        if let Some(field) = table.get("per") {
            field.wrong("concurrency has no period", "no per");
        }
        return None;
    }
    let field = table.required("per", "a duration, such as \"1m\"")?;
    let Some(calendar) = field.peek_text().filter(|text| CALENDAR.contains(text)) else {
        return field.duration_ms(limits::PER_MS, "1m").map(Period::Fixed);
    };
    match kind {
        Some(Kind::FixedWindow) => field.wrong(
            format!("{calendar:?}, a calendar period, is {NOT_YET}"),
            "a duration, such as \"24h\"",
        ),
        Some(_) => field.wrong(
            format!("{calendar:?}, a calendar period, is for fixed windows alone"),
            "a duration, such as \"24h\"",
        ),
        None => {}
    }
    Some(Period::Calendar)
}

/// `None` after a complaint, `Some(None)` where it is left out.
fn read_burst(table: &Table<'_>, kind: Option<Kind>) -> Option<Option<u64>> {
    let Some(field) = table.get("burst") else {
        return Some(None);
    };
    let burst = field.integer(limits::UNITS);
    if let Some(kind) = kind
        && !matches!(kind, Kind::TokenBucket | Kind::Gcra)
    {
        let what = "this algorithm has no burst";
        field.wrong(what, "a burst with \"token-bucket\" or \"gcra\" alone");
        return None;
    }
    burst.map(Some)
}

pub(super) fn warn_of_few_units(table: &Table<'_>, policy: &Policy) -> Option<String> {
    let regions = policy
        .weights
        .values()
        .filter(|&&weight| weight > 0)
        .count() as u64;
    let capacity = policy.limits.capacity(&policy.algorithm);
    if regions == 1 || capacity >= regions * limits::FEW_UNITS_A_REGION {
        return None;
    }
    let field = table.get("burst").or_else(|| table.get("limit"))?;
    Some(format!(
        "{}: {capacity} over {regions} regions is less than {} each, so that many requests will have to wait for a \
         loan; consider fewer regions with a weight above 0 (or home mode, once it is supported)",
        field.place(),
        limits::FEW_UNITS_A_REGION,
    ))
}
