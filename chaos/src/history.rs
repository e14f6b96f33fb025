//! Every request and its answer, and what the promise says about them.
//!
//! Only what a caller was told counts: a request whose answer never came is kept as unknown and held against nobody.

use crate::api::{Answer, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// May be written to from many threads.
#[derive(Debug)]
pub struct History {
    began: Instant,
    records: Mutex<Vec<Record>>,
}

#[derive(Debug, Clone)]
pub struct Record {
    /// The region that was asked.
    pub region: String,
    pub cost: u64,
    /// Since the history began.
    pub sent_at: Duration,
    pub answered_at: Duration,
    pub outcome: Outcome,
    /// The deciding store's clock.
    pub decided_at_ms: Option<u64>,
}

/// A token bucket as promised to the customer: `limit` per `per_ms`, on top of `burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub limit: u64,
    pub per_ms: u64,
    pub burst: u64,
}

/// One admission: when, by the deciding store's clock, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Admission {
    pub at_ms: u64,
    pub cost: u64,
}

/// The promise is broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum Violation {
    #[error("{admitted} admitted of {limit}")]
    OverLimit { admitted: u64, limit: u64 },

    #[error(
        "{admitted} admitted in [{from_ms}, {to_ms}], {} ms, where {burst} + {limit}/{per_ms} ms allow no more than {}",
        to_ms - from_ms,
        burst + limit * (to_ms - from_ms) / per_ms
    )]
    OverRate {
        admitted: u64,
        from_ms: u64,
        to_ms: u64,
        burst: u64,
        limit: u64,
        per_ms: u64,
    },

    #[error("an admission in {region} doesn't say when it was decided")]
    Undated { region: String },
}

/// Requests by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub asked: usize,
    pub allowed: usize,
    pub refused: usize,
    pub unavailable: usize,
    pub rejected: usize,
    pub not_sent: usize,
    pub unknown: usize,
}

// === impl History ===

impl Default for History {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            records: Mutex::default(),
        }
    }
}

impl History {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn note(&self, region: &str, cost: u64, sent: Instant, answer: &Answer) {
        let record = Record {
            region: region.to_owned(),
            cost,
            sent_at: sent.saturating_duration_since(self.began),
            answered_at: self.began.elapsed(),
            outcome: answer.outcome,
            decided_at_ms: answer.decided_at_ms,
        };
        self.lock().push(record);
    }

    /// In the order of their answers.
    pub fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Units that callers were told they may have.
    pub fn admitted(&self) -> u64 {
        self.sum(|outcome| outcome == Outcome::Allowed)
    }

    /// Units that may have been charged without the caller hearing of it. A 503 is among them: the store's answer may
    /// have been lost.
    pub fn in_doubt(&self) -> u64 {
        self.sum(|outcome| matches!(outcome, Outcome::Unknown | Outcome::Unavailable))
    }

    fn sum(&self, which: impl Fn(Outcome) -> bool) -> u64 {
        let records = self.lock();
        records
            .iter()
            .filter(|record| which(record.outcome))
            .map(|record| record.cost)
            .sum()
    }

    /// How long after `at` (since the history began) as many units as `per_second` are admitted each second: in half a
    /// second from then on, and on average over three. `None` where that never is.
    pub fn settles(&self, at: Duration, per_second: f64) -> Option<Duration> {
        const STEP: Duration = Duration::from_millis(50);
        const WINDOWS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];
        let records = self.lock();
        let allowed = records.iter().filter(|r| r.outcome == Outcome::Allowed);
        let admitted: Vec<(Duration, u64)> = allowed.map(|r| (r.answered_at, r.cost)).collect();
        let end = records.iter().map(|r| r.answered_at).max()?;
        let is_enough = |from: Duration, window: Duration| {
            let within = admitted
                .iter()
                .filter(|(t, _)| (from..from + window).contains(t));
            let sum: u64 = within.map(|(_, cost)| cost).sum();
            sum as f64 >= per_second * window.as_secs_f64()
        };
        (0..)
            .map(|i| STEP * i)
            .take_while(|after| at + *after + WINDOWS[1] <= end)
            .find(|after| WINDOWS.iter().all(|window| is_enough(at + *after, *window)))
    }

    /// Regions that admitted nothing are left out.
    pub fn admitted_by_region(&self) -> BTreeMap<String, u64> {
        let mut split = BTreeMap::new();
        for record in self.lock().iter() {
            if record.outcome == Outcome::Allowed {
                *split.entry(record.region.clone()).or_default() += record.cost;
            }
        }
        split
    }

    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for record in self.lock().iter() {
            tally.count(record.outcome);
        }
        tally
    }

    pub fn tally_by_region(&self) -> BTreeMap<String, Tally> {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for record in self.lock().iter() {
            let tally = tallies.entry(record.region.clone()).or_default();
            tally.count(record.outcome);
        }
        tallies
    }

    /// Admissions over all regions in the order of their times.
    pub fn admissions(&self) -> Result<Vec<Admission>, Violation> {
        let mut admissions = Vec::new();
        for record in self.lock().iter() {
            if record.outcome == Outcome::Allowed {
                admissions.push(Admission {
                    at_ms: record.decided_at_ms.ok_or_else(|| Violation::Undated {
                        region: record.region.clone(),
                    })?,
                    cost: record.cost,
                });
            }
        }
        admissions.sort_unstable();
        Ok(admissions)
    }

    pub fn check_limit(&self, limit: u64) -> Result<(), Violation> {
        let admitted = self.admitted();
        if admitted > limit {
            return Err(Violation::OverLimit { admitted, limit });
        }
        Ok(())
    }

    /// In no interval, however long, more than the bucket gives.
    pub fn check_bucket(&self, bucket: Bucket) -> Result<(), Violation> {
        bucket.check(&self.admissions()?)
    }
}

// === impl Bucket ===

impl Bucket {
    /// Replays admissions, sorted by time, against one full bucket: it runs dry exactly when some closed interval holds
    /// more than `burst + limit·t/per`.
    pub fn check(&self, admissions: &[Admission]) -> Result<(), Violation> {
        let (limit, per, full) = (
            i128::from(self.limit),
            i128::from(self.per_ms),
            i128::from(self.burst) * i128::from(self.per_ms),
        );
        // In units of 1/per_ms.
        let mut tokens = full;
        let mut last_ms = 0;
        let mut since_full = 0;
        for (i, admission) in admissions.iter().enumerate() {
            tokens += limit * i128::from(admission.at_ms - last_ms);
            last_ms = admission.at_ms;
            if tokens >= full || i == 0 {
                tokens = full;
                since_full = i;
            }
            tokens -= i128::from(admission.cost) * per;
            if tokens < 0 {
                let interval = &admissions[since_full..=i];
                return Err(self.violation(interval));
            }
        }
        Ok(())
    }

    fn violation(&self, interval: &[Admission]) -> Violation {
        Violation::OverRate {
            admitted: interval.iter().map(|admission| admission.cost).sum(),
            from_ms: interval.first().map_or(0, |admission| admission.at_ms),
            to_ms: interval.last().map_or(0, |admission| admission.at_ms),
            burst: self.burst,
            limit: self.limit,
            per_ms: self.per_ms,
        }
    }
}

// === impl Tally ===

impl Tally {
    fn count(&mut self, outcome: Outcome) {
        self.asked += 1;
        match outcome {
            Outcome::Allowed => self.allowed += 1,
            Outcome::Refused => self.refused += 1,
            Outcome::Unavailable => self.unavailable += 1,
            Outcome::Rejected(_) => self.rejected += 1,
            Outcome::NotSent => self.not_sent += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} asked, {} allowed", self.asked, self.allowed)?;
        for (count, what) in [
            (self.refused, "refused"),
            (self.unavailable, "unavailable"),
            (self.rejected, "rejected"),
            (self.not_sent, "not sent"),
            (self.unknown, "unknown"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// Units admitted in `[from_ms, to_ms)`.
pub fn admitted_between(admissions: &[Admission], from_ms: u64, to_ms: u64) -> u64 {
    admissions
        .iter()
        .filter(|admission| (from_ms..to_ms).contains(&admission.at_ms))
        .map(|admission| admission.cost)
        .sum()
}

#[cfg(test)]
mod tests;
