//! The share in force as a step function of time, in the numbers that a bucket needs.

use crate::ids::StoreMs;
use serde::{Deserialize, Serialize};

/// A whole share: parts per billion.
pub const PPB: u64 = 1_000_000_000;
/// Stored tokens are counted in millionths of a unit.
pub const MICRO: u64 = 1_000_000;
/// Lua's numbers are exact up to here.
pub const EXACT: u64 = 1 << 53;

/// What flows into a bucket, and what it holds, while one share is in force.
///
/// Micro-units per millisecond are `whole + rest / per`, with `rest < per`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flow {
    pub cap: u64,
    pub whole: u64,
    pub rest: u64,
    pub per: u64,
}

/// From `from` on, `flow` is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub from: StoreMs,
    pub flow: Flow,
}

/// Steps in the order of time, at least one; the first is in force also before it begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule(Vec<Step>);

/// The global rate that shares are parts of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    pub limit: u64,
    pub per_ms: u64,
    pub burst: u64,
}

// === impl Rate ===

impl Rate {
    /// What `ppb` parts per billion of this rate come to, each number rounded down.
    pub fn share(&self, ppb: u64) -> Flow {
        let cap = u128::from(self.burst) * u128::from(ppb) * u128::from(MICRO / 1_000)
            / u128::from(PPB / 1_000);
        let num = u128::from(self.limit) * u128::from(ppb);
        let den = u128::from(PPB / MICRO) * u128::from(self.per_ms);
        let (whole, rest) = (num / den, num % den);
        let divisor = gcd(rest, den).max(1);
        let fits = |n: u128| u64::try_from(n).expect("limits are validated to fit");
        Flow {
            cap: fits(cap),
            whole: fits(whole),
            rest: fits(rest / divisor),
            per: fits(den / divisor),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

// === impl Flow ===

impl Flow {
    /// Nothing flows, nothing fits.
    pub const NONE: Self = Self {
        cap: 0,
        whole: 0,
        rest: 0,
        per: 1,
    };

    /// What flows in `dt_ms`, at most `room`.
    ///
    /// The arithmetic is that of Lua's doubles: exact where every product stays below 2^53, one micro-unit under
    /// where it doesn't.
    pub fn gain(&self, dt_ms: u64, room: u64) -> u64 {
        let whole = u128::from(self.whole) * u128::from(dt_ms);
        if whole >= u128::from(room) {
            return room;
        }
        let product = self.rest as f64 * dt_ms as f64;
        let part = (product / self.per as f64).floor();
        let part = if product < EXACT as f64 {
            part
        } else {
            (part - 1.0).max(0.0)
        };
        (whole as u64).saturating_add(part as u64).min(room)
    }

    /// Milliseconds in which `amount` flows, rounded up; `None` where nothing flows.
    pub fn time_for(&self, amount: u64) -> Option<u64> {
        if amount == 0 {
            return Some(0);
        }
        let num = u128::from(amount) * u128::from(self.per);
        let den = u128::from(self.whole) * u128::from(self.per) + u128::from(self.rest);
        (den > 0).then(|| u64::try_from(num.div_ceil(den)).unwrap_or(u64::MAX))
    }

    /// An upper bound, in doubles like Lua's, of the milliseconds that fill the bucket from empty.
    pub fn fill_ms(&self) -> u64 {
        let rate = self.whole as f64 + self.rest as f64 / self.per as f64;
        if rate <= 0.0 {
            0
        } else {
            (self.cap as f64 / rate).ceil().min(MAX_TTL_MS as f64) as u64 + 1
        }
    }
}

/// No key is kept for longer than this after its last write: ten years.
pub const MAX_TTL_MS: u64 = 10 * 366 * 86_400_000;

// === impl Schedule ===

impl Schedule {
    pub fn constant(flow: Flow) -> Self {
        Self(vec![Step {
            from: StoreMs(0),
            flow,
        }])
    }

    /// `steps` in the order of time; steps that change nothing are merged.
    ///
    /// # Panics
    /// Where there is no step.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let mut merged: Vec<Step> = Vec::new();
        for step in steps {
            if merged.last().is_some_and(|last| last.from == step.from) {
                merged.pop();
            }
            if merged.last().is_none_or(|last| last.flow != step.flow) {
                merged.push(step);
            }
        }
        assert!(!merged.is_empty(), "a schedule has at least one step");
        assert!(
            merged.is_sorted_by_key(|s| s.from),
            "steps are in the order of time"
        );
        Self(merged)
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    pub fn at(&self, now: StoreMs) -> Flow {
        let after = self.0.partition_point(|s| s.from <= now);
        self.0[after.saturating_sub(1)].flow
    }

    /// The least capacity that is ever in force.
    pub fn least_cap(&self) -> u64 {
        self.0.iter().map(|s| s.flow.cap).min().unwrap_or(0)
    }

    /// How long after `now` a bucket has to be remembered: until it is surely full under the last step.
    pub fn refill_ms(&self, now: StoreMs) -> u64 {
        let last = self.0[self.0.len() - 1];
        last.from.since(now) + last.flow.fill_ms()
    }

    /// `tokens` stored at `from`, settled to `to`: what flows under each step in turn, held to that step's capacity
    /// less what is `held`.
    pub fn settle(&self, tokens: u64, from: StoreMs, to: StoreMs, held: u64) -> u64 {
        let mut tokens = tokens;
        let first = self.0.partition_point(|s| s.from <= from).saturating_sub(1);
        for (i, step) in self.0.iter().enumerate().skip(first) {
            if i > first && step.from > to {
                break;
            }
            let begin = if i == first { from } else { step.from };
            let end = self.0.get(i + 1).map_or(to, |next| next.from.min(to));
            let room = step.flow.cap.saturating_sub(held);
            tokens = tokens.min(room);
            tokens += step.flow.gain(end.since(begin), room - tokens);
        }
        tokens
    }
}

#[cfg(test)]
mod tests;
