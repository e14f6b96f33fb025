//! How much a policy admits: algorithm, period, limit, burst.

use super::super::source::{Field, Table, show_ms};
use super::super::{Algorithm, Limits, PPM, Policy, Tolerance, limits};
use crate::period::Period;
use crate::schedule::EXACT;

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

const CALENDAR: [(&str, Period); 3] = [
    ("day", Period::DAY),
    ("week", Period::WEEK),
    ("month", Period::Month),
];

/// What an algorithm lets its limits be: the policy's own, and those of plans and overrides.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    kind: Option<Kind>,
    most: u64,
    /// Why it isn't more, where it isn't what it is for all.
    because: String,
}

// === impl Kind ===

impl Kind {
    pub(super) const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra)
    }
}

// === impl Bounds ===

impl Bounds {
    pub(super) fn of(kind: Option<Kind>, algorithm: Option<&Algorithm>) -> Self {
        let (most, because) = match (kind, algorithm) {
            (Some(Kind::SlidingLog), _) => (
                *limits::LOG_UNITS.end(),
                "a sliding log remembers every admission".to_owned(),
            ),
            (Some(Kind::Concurrency), _) => (
                *limits::SLOTS.end(),
                "every slot that is taken is remembered".to_owned(),
            ),
            (_, Some(&Algorithm::SlidingWindow { per_ms, buckets: 1 })) => (
                (EXACT / per_ms).min(*limits::UNITS.end()),
                format!(
                    "with buckets = 1 the limit times the milliseconds of per, {per_ms}, can be at most 2^53"
                ),
            ),
            _ => (*limits::UNITS.end(), String::new()),
        };
        Self {
            kind,
            most,
            because,
        }
    }

    fn limit(&self, field: &Field<'_>) -> Option<u64> {
        let limit = field.integer(limits::UNITS)?;
        if limit > self.most {
            field.wrong(
                format!("{limit} is too large: {}", self.because),
                format!("a whole number from 1 to {}", self.most),
            );
            return None;
        }
        Some(limit)
    }
}

pub(super) fn read_algorithm(table: &Table<'_>, kind: Option<Kind>) -> Option<Algorithm> {
    let period = read_period(table, kind);
    let per_ms = period.map(|period| period.longest_ms());
    let buckets = read_buckets(table, kind);
    let slot_ttl_ms = read_slot_ttl(table, kind);
    Some(match kind? {
        Kind::FixedWindow => Algorithm::FixedWindow { period: period? },
        Kind::SlidingLog => Algorithm::SlidingLog { per_ms: per_ms? },
        Kind::SlidingWindow => Algorithm::SlidingWindow {
            per_ms: per_ms?,
            buckets: buckets?,
        },
        Kind::TokenBucket => Algorithm::TokenBucket { per_ms: per_ms? },
        Kind::Gcra => Algorithm::Gcra { per_ms: per_ms? },
        Kind::Concurrency => Algorithm::Concurrency {
            slot_ttl_ms: slot_ttl_ms?,
        },
    })
}

/// Limit and burst, which stand in a policy, a plan or an override.
pub(super) fn read_limits(table: &Table<'_>, bounds: &Bounds) -> Option<Limits> {
    let expected = match bounds.kind {
        Some(Kind::Concurrency) => "the number of slots of each region",
        _ => "the number of units to admit in each period",
    };
    let limit = table
        .required("limit", expected)
        .and_then(|field| bounds.limit(&field));
    let burst = read_burst(table, bounds.kind);
    let (limit, burst) = (limit?, burst?);
    Some(Limits {
        limit,
        burst: burst.unwrap_or(limit),
    })
}

fn read_period(table: &Table<'_>, kind: Option<Kind>) -> Option<Period> {
    if kind == Some(Kind::Concurrency) {
        if let Some(field) = table.get("per") {
            field.wrong("concurrency has no period", "no per");
        }
        return None;
    }
    let field = table.required("per", "a duration, such as \"1m\"")?;
    let text = field.peek_text();
    let Some((name, period)) = CALENDAR.into_iter().find(|(name, _)| text == Some(name)) else {
        return field.duration_ms(limits::PER_MS, "1m").map(Period::every);
    };
    if !matches!(kind, Some(Kind::FixedWindow) | None) {
        field.wrong(
            format!("{name:?}, a calendar period, is for fixed windows alone"),
            "a duration, such as \"24h\"",
        );
        return None;
    }
    Some(period)
}

fn read_buckets(table: &Table<'_>, kind: Option<Kind>) -> Option<u32> {
    let Some(field) = table.get("buckets") else {
        return Some(limits::DEFAULT_BUCKETS);
    };
    let buckets = field.integer(limits::BUCKETS);
    if !matches!(kind, Some(Kind::SlidingWindow) | None) {
        field.wrong(
            "this algorithm has no buckets",
            "buckets with \"sliding-window\" alone",
        );
    }
    buckets.and_then(|buckets| u32::try_from(buckets).ok())
}

fn read_slot_ttl(table: &Table<'_>, kind: Option<Kind>) -> Option<u64> {
    const EXAMPLE: &str = "30s";
    let field = if kind == Some(Kind::Concurrency) {
        let (least, most) = (limits::SLOT_TTL_MS.start(), limits::SLOT_TTL_MS.end());
        let (least, most) = (show_ms(*least), show_ms(*most));
        let expected = format!(
            "how long a slot is taken that nobody releases: a duration from {least} to {most}, such as {EXAMPLE:?}"
        );
        table.required("slot_ttl", &expected)?
    } else {
        table.get("slot_ttl")?
    };
    let ms = field.duration_ms(limits::SLOT_TTL_MS, EXAMPLE);
    if !matches!(kind, Some(Kind::Concurrency) | None) {
        field.wrong(
            "this algorithm has no slots",
            "a slot_ttl with \"concurrency\" alone",
        );
    }
    ms
}

/// `None` after a complaint, `Some(None)` where it is left out.
fn read_burst(table: &Table<'_>, kind: Option<Kind>) -> Option<Option<u64>> {
    let Some(field) = table.get("burst") else {
        return Some(None);
    };
    let burst = field.integer(limits::UNITS);
    if kind.is_some_and(|kind| !kind.is_bucket()) {
        let what = "this algorithm has no burst";
        field.wrong(what, "a burst with \"token-bucket\" or \"gcra\" alone");
        return None;
    }
    burst.map(Some)
}

pub(super) fn warn_of_few_units(table: &Table<'_>, policy: &Policy) -> Option<String> {
    // Slots aren't dealt, and under never-under no part of a limit decides.
    if matches!(policy.algorithm, Algorithm::Concurrency { .. })
        || policy.tolerance == Tolerance::NeverUnder
    {
        return None;
    }
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

/// A tolerance that does less than it says, or makes something else mean nothing.
pub(super) fn warn_of_tolerance(table: &Table<'_>, policy: &Policy) -> Option<String> {
    match policy.tolerance {
        Tolerance::NeverOver => None,
        Tolerance::NeverUnder => {
            let field = table.get("weights")?;
            Some(format!(
                "{}: under never-under each region goes by the whole limit, so weights mean nothing",
                field.place(),
            ))
        }
        Tolerance::Over { ppm } => {
            let regions = policy.weights.len() as u64;
            let capacity = u128::from(policy.limits.capacity(&policy.algorithm));
            let over = capacity * u128::from(ppm) / u128::from(PPM);
            if over >= u128::from(regions) {
                return None;
            }
            let field = table.get("tolerance")?;
            Some(format!(
                "{}: of {capacity}, this is {over} over {regions} regions: less than a unit each",
                field.place(),
            ))
        }
    }
}
