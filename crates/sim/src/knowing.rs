//! What each region knows of the usage under never-under, worked out from outside: from what was admitted there, and
//! what its store was told. A region may refuse only what that has used up.

use apportion_core::fence::DRIFT_PPM;
use apportion_core::policy::Tolerance;
use apportion_core::{Actor, Algorithm, Epoch, Key, Life, Policy, Record, StoreMs};
use apportion_store::Heard;
use std::collections::{BTreeMap, VecDeque};

/// Clocks are read in whole milliseconds, more than once.
const SLOP_MS: u64 = 10;
/// Where nothing fails, what one region admitted all others know after an interval and its jitter, the way of a message,
/// and a few calls of a store.
const LAG_MS: u64 = 2_200 + 80 + 120;

/// A key in one life of one store, and the window.
type Place = (usize, Life, Key, Option<u64>);

/// When, where, and how many units.
type Lately = VecDeque<(u64, usize, u64)>;

#[derive(Debug, Default)]
pub(crate) struct Knowing {
    known: BTreeMap<Place, Known>,
    /// Of fixed windows, by key and label: when, where, and how much; and all of it.
    admitted: BTreeMap<(Key, u64), (Lately, u64)>,
    /// Drawn on overdrafts, and refused under never-under: what was looked at at all.
    pub(crate) overdrawn: u64,
    pub(crate) refused: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// When units were noted, and how many at least and at most.
    noted: VecDeque<(u64, u64, u64)>,
    /// What a bucket is short of full, and when.
    missing: f64,
    at_ms: u64,
    epoch: Epoch,
    /// The last operation was within the span.
    inside: bool,
    /// Until when units are held, and how many: they flow back, or slide out of sight, only from then on.
    held: Vec<(u64, u64)>,
    heard: BTreeMap<Actor, (StoreMs, u64)>,
}

/// A decision under a policy that is never under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub policy: &'a Policy,
    pub key: &'a Key,
    pub label: Option<u64>,
    pub record: Record,
    pub shop: usize,
    pub units: u64,
    pub at_ms: u64,
    /// Within the span: outside, the store may note nothing.
    pub inside: bool,
    /// For how long its units are held.
    pub hold_ms: u64,
}

impl Knowing {
    fn place(&mut self, seen: &Seen<'_>) -> &mut Known {
        let place = (seen.shop, seen.record.life, seen.key.clone(), seen.label);
        let known = self.known.entry(place).or_default();
        known.inside = seen.inside;
        if known.epoch != seen.record.epoch && seen.label.is_none() {
            // It may have been forgotten.
            known.noted.iter_mut().for_each(|(_, least, _)| *least = 0);
        }
        known.epoch = seen.record.epoch;
        known
    }

    /// What a store has taken in of a key of `policy`.
    pub(crate) fn hear(
        &mut self,
        policy: &Policy,
        heard: &Heard,
        record: Record,
        shop: usize,
        at_ms: u64,
        inside: bool,
    ) {
        if policy.tolerance != Tolerance::NeverUnder {
            return;
        }
        let seen = Seen {
            policy,
            key: &heard.id.key,
            label: heard.id.label,
            record,
            shop,
            units: 0,
            at_ms,
            inside,
            hold_ms: 0,
        };
        let known = self.place(&seen);
        let told = heard.told;
        let last = known.heard.get(&heard.actor).copied();
        let more = match last {
            Some((began, _)) if told.began < began => return,
            Some((began, units)) if told.began == began => told.units.saturating_sub(units),
            _ => told.units,
        };
        if last.is_none_or(|(began, units)| (began, units) < (told.began, told.units)) {
            known
                .heard
                .insert(heard.actor.clone(), (told.began, told.units));
        }
        let more = match policy.algorithm {
            Algorithm::FixedWindow { .. } => more,
            _ => more.min(told.recent),
        };
        known.hear(policy, more, at_ms);
    }

    /// A region admits.
    ///
    /// # Errors
    /// `well`: nothing fails. Then it may be over by no more than what others admitted in one lag.
    pub(crate) fn admit(&mut self, seen: &Seen<'_>, well: bool) -> Result<(), String> {
        if seen.policy.tolerance != Tolerance::NeverUnder {
            return Ok(());
        }
        let known = self.place(seen);
        let is_window = seen.label.is_some();
        let is_held = seen.hold_ms > 0 && !is_window;
        if is_held && !seen.policy.algorithm.is_bucket() {
            known.use_up(seen.policy, 0, seen.at_ms);
        } else {
            known.use_up(seen.policy, seen.units, seen.at_ms);
        }
        if is_held {
            let until = seen.at_ms + seen.hold_ms + SLOP_MS;
            known.held.push((until, seen.units));
        }
        // What is held is told once it is kept, which here it never is.
        let Some(label) = seen.label.filter(|_| seen.hold_ms == 0) else {
            return Ok(());
        };
        let (lately, sum) = self.admitted.entry((seen.key.clone(), label)).or_default();
        *sum += seen.units;
        lately.push_back((seen.at_ms, seen.shop, seen.units));
        while lately
            .front()
            .is_some_and(|(at, ..)| at + LAG_MS < seen.at_ms)
        {
            lately.pop_front();
        }
        let others = lately.iter().filter(|(_, shop, _)| *shop != seen.shop);
        let others: u64 = others.map(|(_, _, units)| units).sum();
        let limit = seen.policy.limits.limit;
        if well && *sum > limit + others {
            return Err(format!(
                "{:?}: {sum} of {limit} in window {label}, and others admitted {others} lately",
                seen.key
            ));
        }
        Ok(())
    }

    /// A region refuses.
    ///
    /// # Errors
    /// Where what it knows hasn't used up the limit.
    pub(crate) fn refuse(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        if seen.policy.tolerance != Tolerance::NeverUnder {
            return Ok(());
        }
        self.refused += 1;
        let left = self.place(seen).left(seen.policy, seen.at_ms);
        if left >= seen.units as f64 {
            return Err(format!(
                "{:?}: {} refused, though {left:.3} are known to be left",
                seen.key, seen.units
            ));
        }
        Ok(())
    }
}

impl Known {
    /// What is surely left, in units: as little as the clocks allow.
    fn left(&mut self, policy: &Policy, at_ms: u64) -> f64 {
        let limits = policy.limits;
        let keeps = match policy.algorithm {
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => {
                let rate = limits.limit as f64 / per_ms as f64;
                let slow = 1.0 - DRIFT_PPM as f64 / 1e6;
                let gained = rate * slow * (at_ms - self.at_ms) as f64;
                let held = self.held.iter().filter(|(until, _)| *until > self.at_ms);
                let held: u64 = held.map(|(_, units)| units).sum();
                self.missing = (self.missing - gained).max((held as f64).min(self.missing));
                self.held.retain(|(until, _)| *until > at_ms);
                self.at_ms = at_ms;
                return limits.burst as f64 - self.missing - rate * SLOP_MS as f64 - 0.001;
            }
            Algorithm::FixedWindow { .. } => u64::MAX,
            Algorithm::SlidingLog { per_ms } => per_ms,
            // A cell counts until the window after its own is over, or in full.
            Algorithm::SlidingWindow { per_ms, .. } => 2 * per_ms,
            Algorithm::Concurrency { .. } => 0,
        };
        let keeps = keeps.saturating_add(keeps.saturating_mul(2) / 1_000 + SLOP_MS);
        self.noted
            .retain(|(at, ..)| at.saturating_add(keeps) > at_ms);
        let noted = self.noted.iter().map(|(_, _, most)| most);
        let used: u64 = noted.chain(self.held.iter().map(|(_, units)| units)).sum();
        limits.limit.saturating_sub(used) as f64
    }

    /// What a peer said, as far as there may be room: never below zero.
    fn hear(&mut self, policy: &Policy, units: u64, at_ms: u64) {
        let surely_left = self.left(policy, at_ms).max(0.0) as u64;
        let surely_counts_ms = match policy.algorithm {
            Algorithm::FixedWindow { .. } => u64::MAX,
            Algorithm::SlidingWindow { buckets: 1, .. } => 0,
            Algorithm::SlidingLog { per_ms } | Algorithm::SlidingWindow { per_ms, .. } => {
                per_ms - per_ms * 2 / 1_000 - SLOP_MS
            }
            _ => return self.use_up(policy, units, at_ms),
        };
        let noted = self.noted.iter();
        let noted = noted.filter(|(at, ..)| at.saturating_add(surely_counts_ms) > at_ms);
        let used: u64 = noted.map(|(_, least, _)| least).sum();
        let room = policy.limits.limit.saturating_sub(used);
        self.write(at_ms, units.min(surely_left), units.min(room));
    }

    /// What was admitted here.
    fn use_up(&mut self, policy: &Policy, units: u64, at_ms: u64) {
        self.left(policy, at_ms);
        if policy.algorithm.is_bucket() {
            let most = policy.limits.burst as f64;
            self.missing = (self.missing + units as f64).min(most);
        } else {
            self.write(at_ms, units, units);
        }
    }

    /// What was held until before now counts from when the meter is next written.
    fn write(&mut self, at_ms: u64, least: u64, most: u64) {
        let over = self.held.extract_if(.., |(until, _)| *until <= at_ms);
        self.noted.extend(over.map(|(_, units)| (at_ms, 0, units)));
        let least = if self.inside { least } else { 0 };
        self.noted.push_back((at_ms, least, most));
    }
}
