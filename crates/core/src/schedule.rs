//! The share in force as a step function of time, and what it comes to in units.
//!
//! The products of [`part_micro`] are ones that Lua's doubles hold exactly too.

use crate::ids::StoreMs;
use crate::planted::{self, Bug};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A whole share: parts per billion.
pub const PPB: u64 = 1_000_000_000;
/// Stored tokens are counted in millionths of a unit.
pub const MICRO: u64 = 1_000_000;
/// Lua's numbers are exact up to here.
pub const EXACT: u64 = 1 << 53;
/// No key is kept for longer than this after its last write: ten years.
pub const MAX_TTL_MS: u64 = 10 * 366 * 86_400_000;

/// The global rate that shares are parts of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    pub limit: u64,
    pub per_ms: u64,
    pub burst: u64,
}

/// What flows into a bucket, and what it holds, while one share is in force.
///
/// Micro-units per millisecond are `whole + rest / per`, with `rest < per`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    pub cap: u64,
    pub whole: u64,
    pub rest: u64,
    pub per: u64,
}

/// From `from` on, a share of `ppb` is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub from: StoreMs,
    pub ppb: u64,
}

/// Steps in the order of time, at least one; the first is in force also before it begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shares(Arc<[Step]>);

/// `ppb` parts per billion of `units`, in micro-units, rounded down.
///
/// `units` is at most 9,007,199,254 and `ppb` at most [`PPB`], so that no product here is beyond 2^53.
pub const fn part_micro(units: u64, ppb: u64) -> u64 {
    units / 1_000 * ppb + units % 1_000 * ppb / 1_000
}

/// `ppb` parts per billion of `units`, in whole units, rounded down.
pub const fn part_units(units: u64, ppb: u64) -> u64 {
    part_micro(units, ppb) / MICRO
}

// === impl Rate ===

impl Rate {
    /// What `ppb` parts per billion of this rate come to, each number rounded down.
    pub const fn share(&self, ppb: u64) -> Flow {
        let in_period = part_micro(self.limit, ppb);
        let flow = Flow {
            cap: part_micro(self.burst, ppb),
            whole: in_period / self.per_ms,
            rest: in_period % self.per_ms,
            per: self.per_ms,
        };
        // What never flows in again isn't there either: it would come back with the end of its key.
        if in_period == 0 { Flow::NONE } else { flow }
    }
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

    /// What flows in `dt_ms`, at most `room`, rounded down to a micro-unit.
    pub fn gain(&self, dt_ms: u64, room: u64) -> u64 {
        let dt_ms = u128::from(dt_ms);
        let whole = u128::from(self.whole) * dt_ms;
        let part = u128::from(self.rest) * dt_ms / u128::from(self.per);
        let gain = (whole + part).min(u128::from(room));
        u64::try_from(gain).expect("the room is a u64")
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

// === impl Shares ===

impl Shares {
    pub fn constant(ppb: u64) -> Self {
        Self(Arc::new([Step {
            from: StoreMs(0),
            ppb,
        }]))
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
            if merged.last().is_none_or(|last| last.ppb != step.ppb) {
                merged.push(step);
            }
        }
        assert!(!merged.is_empty(), "there is at least one step");
        assert!(
            merged.is_sorted_by_key(|s| s.from),
            "steps are in the order of time"
        );
        Self(merged.into())
    }

    /// The same, but no more than `ppb` before `moment`.
    #[must_use]
    pub fn at_most_until(&self, moment: StoreMs, ppb: u64) -> Self {
        let from = Step {
            from: moment,
            ppb: self.at(moment),
        };
        let before = self.0.iter().enumerate();
        let before = before.filter(|(i, step)| *i == 0 || step.from < moment);
        let lower = before.map(|(i, step)| Step {
            from: if i == 0 {
                step.from.min(moment)
            } else {
                step.from
            },
            ppb: step.ppb.min(ppb),
        });
        let after = self.0.iter().filter(|step| step.from > moment).copied();
        Self::new(lower.chain([from]).chain(after))
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    pub fn at(&self, now: StoreMs) -> u64 {
        let after = self.0.partition_point(|s| s.from <= now);
        self.0[after.saturating_sub(1)].ppb
    }

    pub fn last(&self) -> Step {
        self.0[self.0.len() - 1]
    }

    /// The least share that is ever in force.
    pub fn least(&self) -> u64 {
        self.0.iter().map(|s| s.ppb).min().unwrap_or(0)
    }

    /// `tokens` stored at `from`, settled to `to`: what flows of `rate` under each step in turn, held to that step's
    /// capacity less what is `held`.
    pub fn settle(&self, rate: &Rate, tokens: u64, from: StoreMs, to: StoreMs, held: u64) -> u64 {
        if planted::is_on(Bug::RefillAtPresentShare) {
            let flow = rate.share(self.at(to));
            let room = flow.cap.saturating_sub(held);
            let tokens = tokens.min(room);
            return tokens + flow.gain(to.since(from), room - tokens);
        }
        let mut tokens = tokens;
        let first = self.0.partition_point(|s| s.from <= from).saturating_sub(1);
        for (i, step) in self.0.iter().enumerate().skip(first) {
            if i > first && step.from > to {
                break;
            }
            let flow = rate.share(step.ppb);
            let begin = if i == first { from } else { step.from };
            let end = self.0.get(i + 1).map_or(to, |next| next.from.min(to));
            let room = flow.cap.saturating_sub(held);
            if !planted::is_on(Bug::TokensKept) {
                tokens = tokens.min(room);
            }
            tokens += flow.gain(end.since(begin), room.saturating_sub(tokens));
        }
        tokens
    }
}

#[cfg(test)]
mod tests;
