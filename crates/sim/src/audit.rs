//! The perfect global limiter that every admission is checked against.

use crate::plans::Plans;
use apportion_core::fence::{DRIFT_PPM, SPAN_MS};
use apportion_core::{Algorithm, Key, Limits, Policy, StoreMs};
use std::collections::{BTreeMap, VecDeque};

/// Clocks are read in whole milliseconds, twice.
const SLOP_MS: u64 = 4;

/// What was promised and didn't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    pub what: String,
}

/// An admission, where and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission<'a> {
    pub policy: &'a Policy,
    pub key: &'a Key,
    /// Of a fixed window.
    pub label: Option<u64>,
    pub units: u64,
    /// True time.
    pub at_ms: u64,
    pub shop: usize,
    /// What the clock of each region's store says.
    pub clocks: &'a [StoreMs],
}

/// One perfect limiter for each key.
#[derive(Debug, Default)]
pub struct Audit {
    windows: BTreeMap<(Key, u64), u64>,
    buckets: BTreeMap<Key, (f64, u64)>,
    trailing: BTreeMap<Key, VecDeque<(u64, u64)>>,
    /// Units by key, region and window of that region's clock.
    classic: BTreeMap<(Key, usize, u64), u64>,
    /// Clock steps so far that nobody can see: each may let a span's refill through.
    steps: u64,
    admitted: BTreeMap<Key, u64>,
}

impl Audit {
    pub fn step(&mut self) {
        self.steps += 1;
    }

    /// Units admitted of `key` in all.
    pub fn admitted(&self, key: &Key) -> u64 {
        self.admitted.get(key).copied().unwrap_or(0)
    }

    /// Takes note of an admission.
    ///
    /// # Errors
    /// Says by how much a perfect limiter would have been exceeded.
    pub(crate) fn admit(&mut self, a: &Admission<'_>, plans: &Plans) -> Result<(), String> {
        let Admission { key, at_ms, .. } = *a;
        *self.admitted.entry(key.clone()).or_default() += a.units;
        let limit = |since_ms| plans.largest_since(a.policy, key, since_ms, at_ms).limit;
        match a.policy.algorithm {
            Algorithm::FixedWindow { period } => {
                let label = a.label.ok_or("a window without a label")?;
                let sum = self.windows.entry((key.clone(), label)).or_default();
                *sum += a.units;
                // Rights are given for good, and ahead: those of an older plan may be on their way for a while.
                let limit = limit(at_ms.saturating_sub(period.longest_ms() + 60_000));
                if *sum > limit {
                    return Err(format!("{key:?}: {sum} of {limit} in window {label}"));
                }
                Ok(())
            }
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => {
                // A bucket that was emptied under an older limit is forgotten once it is full by that.
                let since_ms = at_ms.saturating_sub(2 * per_ms);
                self.fill(
                    a,
                    per_ms,
                    plans.largest_since(a.policy, key, since_ms, at_ms),
                )
            }
            Algorithm::SlidingLog { per_ms } => {
                let limit = limit(at_ms.saturating_sub(2 * per_ms));
                self.trail(a, per_ms, limit)
            }
            Algorithm::SlidingWindow { per_ms, buckets: 1 } => {
                let limit = limit(at_ms.saturating_sub(3 * per_ms));
                self.estimate(a, per_ms, limit)?;
                self.trail(a, per_ms, 2 * limit)
            }
            Algorithm::SlidingWindow { per_ms, .. } => {
                let limit = limit(at_ms.saturating_sub(3 * per_ms));
                self.trail(a, per_ms, limit)
            }
            Algorithm::Concurrency { .. } => Ok(()),
        }
    }

    fn fill(&mut self, a: &Admission<'_>, per_ms: u64, limits: Limits) -> Result<(), String> {
        let burst = limits.burst as f64;
        let rate = limits.limit as f64 / per_ms as f64;
        let entry = self.buckets.entry(a.key.clone());
        let (level, since) = entry.or_insert((burst, a.at_ms));
        let drift = 1.0 + DRIFT_PPM as f64 / 1e6;
        let gained = rate * drift * (a.at_ms - *since) as f64;
        *level = (*level + gained).min(burst) - a.units as f64;
        *since = a.at_ms;
        // A step too small to see adds a span of refill.
        let allowed = rate * (SLOP_MS + self.steps * SPAN_MS) as f64 + 1e-6;
        if *level < -allowed {
            let beyond = -*level;
            return Err(format!(
                "{:?}: {beyond:.3} units beyond the perfect bucket",
                a.key
            ));
        }
        Ok(())
    }

    /// At most `limit` in any `per_ms`, by the fastest clock, and less a span for each step too small to see.
    fn trail(&mut self, a: &Admission<'_>, per_ms: u64, limit: u64) -> Result<(), String> {
        let drift = (per_ms * 2 * DRIFT_PPM).div_ceil(1_000_000);
        let window = per_ms.saturating_sub(drift + SLOP_MS + self.steps * SPAN_MS);
        let entries = self.trailing.entry(a.key.clone()).or_default();
        entries.push_back((a.at_ms, a.units));
        while entries
            .front()
            .is_some_and(|(at, _)| at + per_ms <= a.at_ms)
        {
            entries.pop_front();
        }
        let inside = entries.iter().filter(|(at, _)| at + window > a.at_ms);
        let sum: u64 = inside.map(|(_, units)| units).sum();
        if sum > limit {
            return Err(format!("{:?}: {sum} of {limit} in {window} ms", a.key));
        }
        Ok(())
    }

    /// Previous x what is left of it + present, each region by its own clock, summed up exactly. Steps aren't followed.
    fn estimate(&mut self, a: &Admission<'_>, per_ms: u64, limit: u64) -> Result<(), String> {
        let label = a.clocks[a.shop].0 / per_ms;
        let cell = self.classic.entry((a.key.clone(), a.shop, label));
        *cell.or_default() += a.units;
        if self.steps > 0 {
            return Ok(());
        }
        let of = |shop: usize, label: u64| {
            let found = self.classic.get(&(a.key.clone(), shop, label));
            found.copied().unwrap_or(0)
        };
        let estimates = a.clocks.iter().enumerate().map(|(shop, clock)| {
            let (label, elapsed) = (clock.0 / per_ms, clock.0 % per_ms);
            of(shop, label - 1) * (per_ms - elapsed) + of(shop, label) * per_ms
        });
        let sum: u64 = estimates.sum();
        if sum > limit * per_ms {
            let units = sum as f64 / per_ms as f64;
            return Err(format!(
                "{:?}: {units:.3} of {limit} by the counters",
                a.key
            ));
        }
        Ok(())
    }
}
