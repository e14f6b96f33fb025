//! The perfect global limiter that every admission is checked against.

use apportion_core::fence::{DRIFT_PPM, SPAN_MS};
use apportion_core::{Algorithm, Key, Policy};
use std::collections::BTreeMap;

/// What was promised and didn't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    pub what: String,
}

/// One perfect limiter for each key.
#[derive(Debug, Default)]
pub struct Audit {
    windows: BTreeMap<(Key, u64), u64>,
    buckets: BTreeMap<Key, (f64, u64)>,
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

    /// Takes note of an admission at `at_ms` true time.
    ///
    /// # Errors
    /// Says by how much a perfect limiter would have been exceeded.
    pub fn admit(
        &mut self,
        policy: &Policy,
        key: &Key,
        label: Option<u64>,
        units: u64,
        at_ms: u64,
    ) -> Result<(), String> {
        *self.admitted.entry(key.clone()).or_default() += units;
        match (policy.algorithm, label) {
            (Algorithm::FixedWindow { limit, .. }, Some(label)) => {
                let sum = self.windows.entry((key.clone(), label)).or_default();
                *sum += units;
                if *sum > limit {
                    return Err(format!("{key:?}: {sum} of {limit} in window {label}"));
                }
            }
            (
                Algorithm::TokenBucket {
                    limit,
                    per_ms,
                    burst,
                },
                _,
            ) => {
                let rate = limit as f64 / per_ms as f64;
                let (level, since) = self
                    .buckets
                    .entry(key.clone())
                    .or_insert((burst as f64, at_ms));
                let drift = 1.0 + DRIFT_PPM as f64 / 1e6;
                *level = (*level + rate * drift * (at_ms - *since) as f64).min(burst as f64)
                    - units as f64;
                *since = at_ms;
                // Clocks are read in whole milliseconds; a step too small to see adds a span of refill.
                let allowed = rate * (4.0 + (self.steps * SPAN_MS) as f64) + 1e-6;
                if *level < -allowed {
                    return Err(format!(
                        "{key:?}: {:.3} units beyond the perfect bucket",
                        -*level
                    ));
                }
            }
            (Algorithm::FixedWindow { .. }, None) => return Err("a window without a label".into()),
        }
        Ok(())
    }
}
