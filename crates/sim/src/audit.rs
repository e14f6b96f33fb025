//! The perfect global limiter that every admission is checked against.

use crate::plans::Plans;
use apportion_core::fence::{DRIFT_PPM, SPAN_MS};
use apportion_core::policy::{Limits, PPM, Tolerance};
use apportion_core::{Algorithm, Key, Policy, StoreMs};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Clocks are read in whole milliseconds, twice.
const SLOP_MS: u64 = 4;
/// Rights of a window are given ahead by at most so long.
const AHEAD_MS: u64 = 60_000;

/// What was promised and didn't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    pub what: String,
}

/// An admission, where and when. What is held counts as admitted, until it is put back.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    pub policy: Arc<Policy>,
    pub key: Key,
    /// Of a fixed window.
    pub label: Option<u64>,
    pub units: u64,
    /// True time.
    pub at_ms: u64,
    pub shop: usize,
    /// What the clock of each region's store says.
    pub clocks: Vec<StoreMs>,
}

/// What is asked of the perfect limiter of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limiter<'a> {
    pub policy: &'a Policy,
    pub key: &'a Key,
    /// Of a fixed window.
    pub label: Option<u64>,
    /// True time.
    pub at_ms: u64,
    pub clocks: &'a [StoreMs],
}

/// One perfect limiter for each key.
#[derive(Debug, Default)]
pub struct Audit {
    windows: BTreeMap<(Key, u64), u64>,
    buckets: BTreeMap<Key, Bucket>,
    trailing: BTreeMap<Key, VecDeque<Entry>>,
    /// Units by key, region and window of that region's clock.
    classic: BTreeMap<(Key, usize, u64), u64>,
    /// Clock steps so far that nobody can see: each may let a span's refill through.
    steps: u64,
    admitted: BTreeMap<Key, u64>,
    refunded: BTreeMap<Key, u64>,
}

#[derive(Debug)]
struct Bucket {
    level: f64,
    at_ms: u64,
    /// Steps of clocks before then.
    steps: u64,
}

#[derive(Debug)]
struct Entry {
    at_ms: u64,
    units: u64,
    /// Steps of clocks before then.
    steps: u64,
}

impl Audit {
    pub fn step(&mut self) {
        self.steps += 1;
    }

    /// Units admitted of `key` in all.
    pub fn admitted(&self, key: &Key) -> u64 {
        self.admitted.get(key).copied().unwrap_or(0)
    }

    /// Units of `key` that were put back.
    pub fn refunded(&self, key: &Key) -> u64 {
        self.refunded.get(key).copied().unwrap_or(0)
    }

    /// Takes note that an admission was put back: the perfect limiter gets as much.
    pub(crate) fn put_back(&mut self, a: &Admission) {
        *self.refunded.entry(a.key.clone()).or_default() += a.units;
        let in_window = a.label.map(|label| (a.key.clone(), label));
        if let Some(sum) = in_window.and_then(|at| self.windows.get_mut(&at)) {
            *sum -= a.units;
        }
        if let Some(bucket) = self.buckets.get_mut(&a.key) {
            let most = bucket.level.max(a.policy.limits.burst as f64);
            bucket.level = (bucket.level + a.units as f64).min(most);
        }
        let entries = self.trailing.get_mut(&a.key);
        let mut of_then = entries.into_iter().flatten();
        if let Some(entry) = of_then.find(|e| e.at_ms == a.at_ms && e.units >= a.units) {
            entry.units -= a.units;
        }
        if let Algorithm::SlidingWindow { per_ms, buckets: 1 } = a.policy.algorithm {
            let label = a.clocks[a.shop].0 / per_ms;
            let cell = self.classic.get_mut(&(a.key.clone(), a.shop, label));
            if let Some(units) = cell {
                *units -= a.units;
            }
        }
    }

    /// Takes note of an admission.
    ///
    /// # Errors
    /// Says by how much a perfect limiter would have been exceeded.
    pub(crate) fn admit(&mut self, a: &Admission, plans: &Plans) -> Result<(), String> {
        let Admission { ref key, at_ms, .. } = *a;
        *self.admitted.entry(key.clone()).or_default() += a.units;
        let over_ppm = match a.policy.tolerance {
            Tolerance::NeverOver => 0,
            Tolerance::Over { ppm } => u64::from(ppm),
            // What it may be over by depends on what is known: see `knowing`.
            Tolerance::NeverUnder => return Ok(()),
        };
        let limit = |since_ms| {
            let limit = plans.largest_since(&a.policy, key, since_ms, at_ms).limit;
            limit + limit * over_ppm / PPM
        };
        match a.policy.algorithm {
            Algorithm::FixedWindow { period } => {
                let label = a.label.ok_or("a window without a label")?;
                let sum = self.windows.entry((key.clone(), label)).or_default();
                *sum += a.units;
                // Rights are given for good, and ahead: those of an older plan may be on their way for a while.
                let limit = limit(at_ms.saturating_sub(period.longest_ms() + AHEAD_MS));
                if *sum > limit {
                    return Err(format!("{key:?}: {sum} of {limit} in window {label}"));
                }
                Ok(())
            }
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => {
                let whole = 1.0 + over_ppm as f64 / PPM as f64;
                let since_ms = plans.of_bucket_since(per_ms, at_ms);
                let plain = plans.largest_since(&a.policy, key, since_ms, at_ms);
                self.fill(a, per_ms, plain, whole)
            }
            Algorithm::SlidingLog { per_ms } => {
                let limit = limit(at_ms.saturating_sub(2 * per_ms));
                self.trail(a, per_ms, limit)
            }
            Algorithm::SlidingWindow { per_ms, buckets: 1 } => {
                let limit = limit(at_ms.saturating_sub(3 * per_ms));
                self.estimate(a, per_ms, limit)?;
                self.trail(a, per_ms, twice(limit, per_ms, &a.clocks))
            }
            Algorithm::SlidingWindow { per_ms, .. } => {
                let limit = limit(at_ms.saturating_sub(3 * per_ms));
                self.trail(a, per_ms, limit)
            }
            Algorithm::Concurrency { .. } => Ok(()),
        }
    }

    /// What the perfect limiter of a key would still admit, in units. Only of what is never over.
    pub(crate) fn room(&self, of: Limiter<'_>, plans: &Plans) -> f64 {
        let Limiter {
            policy, key, at_ms, ..
        } = of;
        let since = |ms: u64| {
            let since_ms = at_ms.saturating_sub(ms);
            plans.largest_since(policy, key, since_ms, at_ms).limit
        };
        let left = |limit: u64, used: u64| limit as f64 - used as f64;
        match policy.algorithm {
            Algorithm::FixedWindow { period } => {
                let label = of.label.unwrap_or_default();
                let used = self.windows.get(&(key.clone(), label));
                left(
                    since(period.longest_ms() + AHEAD_MS),
                    used.copied().unwrap_or(0),
                )
            }
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => {
                let since_ms = plans.of_bucket_since(per_ms, at_ms);
                let limits = plans.largest_since(policy, key, since_ms, at_ms);
                let rate = limits.limit as f64 / per_ms as f64;
                let burst = limits.burst as f64;
                let level = self
                    .buckets
                    .get(key)
                    .map_or(burst, |b| b.level_at(at_ms, self.steps, rate, burst));
                level + rate * SLOP_MS as f64
            }
            Algorithm::SlidingLog { per_ms } => {
                left(since(2 * per_ms), self.trailing(key, per_ms, at_ms))
            }
            Algorithm::SlidingWindow { per_ms, buckets } => {
                let limit = since(3 * per_ms);
                let trailing = self.trailing(key, per_ms, at_ms);
                if buckets > 1 {
                    return left(limit, trailing);
                }
                let twice = left(twice(limit, per_ms, of.clocks), trailing);
                if self.steps > 0 {
                    return twice;
                }
                let counted = self.counted(key, per_ms, of.clocks) as f64;
                twice.min(limit as f64 - counted / per_ms as f64)
            }
            Algorithm::Concurrency { .. } => f64::INFINITY,
        }
    }

    fn fill(
        &mut self,
        a: &Admission,
        per_ms: u64,
        plain: Limits,
        whole: f64,
    ) -> Result<(), String> {
        let burst = plain.burst as f64 * whole;
        let rate = plain.limit as f64 * whole / per_ms as f64;
        let steps = self.steps;
        let entry = self.buckets.entry(a.key.clone());
        let bucket = entry.or_insert(Bucket {
            level: burst,
            at_ms: a.at_ms,
            steps,
        });
        bucket.level = bucket.level_at(a.at_ms, steps, rate, burst) - a.units as f64;
        bucket.at_ms = a.at_ms;
        bucket.steps = steps;
        let allowed = rate * SLOP_MS as f64 + 1e-6;
        if bucket.level < -allowed {
            let beyond = -bucket.level;
            return Err(format!(
                "{:?}: {beyond:.3} units beyond the perfect bucket",
                a.key
            ));
        }
        Ok(())
    }

    /// At most `limit` in any `per_ms`, by the fastest clock, and less a span for each step too small to see in between.
    fn trail(&mut self, a: &Admission, per_ms: u64, limit: u64) -> Result<(), String> {
        let steps = self.steps;
        let entries = self.trailing.entry(a.key.clone()).or_default();
        entries.push_back(Entry {
            at_ms: a.at_ms,
            units: a.units,
            steps,
        });
        while entries.front().is_some_and(|e| e.at_ms + per_ms <= a.at_ms) {
            entries.pop_front();
        }
        let sum = self.trailing(&a.key, per_ms, a.at_ms);
        if sum > limit {
            return Err(format!("{:?}: {sum} of {limit} in {per_ms} ms", a.key));
        }
        Ok(())
    }

    /// What was admitted in the last `per_ms` by the fastest clock.
    fn trailing(&self, key: &Key, per_ms: u64, at_ms: u64) -> u64 {
        let drift = (per_ms * 2 * DRIFT_PPM).div_ceil(1_000_000);
        let window = per_ms.saturating_sub(drift + SLOP_MS);
        let inside =
            |e: &&Entry| e.at_ms + window.saturating_sub((self.steps - e.steps) * SPAN_MS) > at_ms;
        let entries = self.trailing.get(key).into_iter().flatten();
        entries.filter(inside).map(|e| e.units).sum()
    }

    /// Previous x what is left of it + present, each region by its own clock, summed up exactly. Steps aren't followed.
    fn estimate(&mut self, a: &Admission, per_ms: u64, limit: u64) -> Result<(), String> {
        let label = a.clocks[a.shop].0 / per_ms;
        let cell = self.classic.entry((a.key.clone(), a.shop, label));
        *cell.or_default() += a.units;
        if self.steps > 0 {
            return Ok(());
        }
        let sum = self.counted(&a.key, per_ms, &a.clocks);
        if sum > limit * per_ms {
            let units = sum as f64 / per_ms as f64;
            return Err(format!(
                "{:?}: {units:.3} of {limit} by the counters",
                a.key
            ));
        }
        Ok(())
    }

    /// Units times `per_ms`.
    fn counted(&self, key: &Key, per_ms: u64, clocks: &[StoreMs]) -> u64 {
        let of = |shop: usize, label: u64| {
            let found = self.classic.get(&(key.clone(), shop, label));
            found.copied().unwrap_or(0)
        };
        let estimates = clocks.iter().enumerate().map(|(shop, clock)| {
            let (label, elapsed) = (clock.0 / per_ms, clock.0 % per_ms);
            of(shop, label - 1) * (per_ms - elapsed) + of(shop, label) * per_ms
        });
        estimates.sum()
    }
}

/// What two cells may see in a trailing period. Where the cells of regions begin at different times, what the first of them
/// has given up by then of the cell before may be used in the last.
fn twice(limit: u64, per_ms: u64, clocks: &[StoreMs]) -> u64 {
    let (first, last) = (clocks.iter().min(), clocks.iter().max());
    let apart = last
        .zip(first)
        .map_or(0, |(last, first)| last.since(*first));
    2 * limit + (limit * apart.min(per_ms)).div_ceil(per_ms)
}

// === impl Bucket ===

impl Bucket {
    fn level_at(&self, at_ms: u64, steps: u64, rate: f64, burst: f64) -> f64 {
        let drift = 1.0 + DRIFT_PPM as f64 / 1e6;
        // A step too small to see adds a span of refill.
        let elapsed = at_ms - self.at_ms + (steps - self.steps) * SPAN_MS;
        (self.level + rate * drift * elapsed as f64).min(burst)
    }
}
