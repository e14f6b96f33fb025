//! What has to hold beside each admission: the shares in force, and usage once the faults are over.

use super::rollouts::known_in;
use super::*;
use crate::audit::Limiter;
use apportion_core::fence::{DRIFT_PPM, Missing};
use apportion_core::lives::Standing;
use apportion_core::policy::{Limits, Tolerance};
use apportion_core::rollout::Front;
use apportion_core::usage::Counts;
use apportion_core::{Algorithm, Life};

/// Usage settles within so long after the faults.
const SETTLES_MS: u64 = 20_000;
const HOUR_MS: u64 = 3_600_000;
/// Clocks are read in whole milliseconds, twice; the rest is for what isn't explained yet (`timeouts`, seed 14: 7 ms).
const SLOP_MS: u64 = 20;

/// What was in a bucket, and held out of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    units: u64,
    at_ms: u64,
    life: Life,
    missing: Missing,
    /// A life that is found to be the first has its base from its beginning.
    is_first: bool,
    /// The base that a later life may begin to use has been there for a while when that is written down.
    front: Option<Front>,
    steps: u64,
}

impl Level {
    /// No bucket of a region fills faster than the whole would.
    fn flowed_from(self, before: Option<Self>, policy: &Policy) -> Result<(), String> {
        let (Some(before), Some(period)) = (before, policy.algorithm.period()) else {
            return Ok(());
        };
        let view = |level: Self| (level.life, level.missing, level.is_first, level.front);
        let is_same_view = view(before) == view(self);
        if !is_same_view || before.steps != self.steps {
            return Ok(());
        }
        let elapsed = self.at_ms - before.at_ms;
        let elapsed = elapsed + elapsed * DRIFT_PPM / 1_000_000 + SLOP_MS;
        let flow = policy.largest().limit * MICRO * elapsed / period.longest_ms();
        let (was, is) = (before.units, self.units);
        if is > was + flow {
            return Err(format!(
                "the bucket went from {was} to {is} in {elapsed} ms"
            ));
        }
        Ok(())
    }
}

/// What a region has of a key at a moment, by whichever of its nodes decides next; in the rule's units.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Has {
    /// The share in force. Outside the span a bucket is no more than what is in it, since nothing flows; what gives
    /// nothing at all counts for nothing.
    pub(super) in_force: u64,
    /// What it would admit at once.
    pub(super) available: u64,
}

impl World {
    /// The shares in force of a rate or a sliding window never add up to more than the whole, whether or not anybody
    /// uses them; all regions together would never admit more at once than the perfect limiter; and no bucket has more in
    /// it than its share holds.
    pub(super) fn weigh(&mut self) -> Result<(), String> {
        let clocks: Vec<StoreMs> = (0..self.shops.len())
            .map(|shop| self.store_now(shop))
            .collect();
        for which in 0..self.keys.len() {
            let (policy, key) = self.keys[which].clone();
            if policy.tolerance == Tolerance::NeverUnder {
                continue;
            }
            let limits = self.largest(&policy, &key);
            let whole = match policy.algorithm {
                Algorithm::Concurrency { .. } => continue,
                Algorithm::FixedWindow { period } => {
                    let mut labels: Vec<u64> =
                        clocks.iter().map(|now| period.label(*now)).collect();
                    labels.sort_unstable();
                    labels.dedup();
                    // What was given ahead of the next window counts, too.
                    labels.push(labels[labels.len() - 1] + 1);
                    for label in labels {
                        self.compare_available(which, Some(label), &clocks)?;
                    }
                    continue;
                }
                algorithm if algorithm.is_bucket() => limits.burst * MICRO,
                _ => limits.limit,
            };
            let parts = self.compare_available(which, None, &clocks)?;
            if parts.iter().sum::<u64>() > whole {
                return Err(format!("{key:?}: what is in force is {parts:?} of {whole}"));
            }
        }
        Ok(())
    }

    /// The largest limits that some node goes by. A region that is on its way to a smaller one is there within the time
    /// between two looks.
    fn largest(&self, policy: &Policy, key: &Key) -> Limits {
        match self.files.is_empty() {
            true => policy.largest(),
            false => self.plans.largest_since(policy, key, self.now, self.now),
        }
    }

    /// Returns the shares in force.
    fn compare_available(
        &mut self,
        which: usize,
        label: Option<u64>,
        clocks: &[StoreMs],
    ) -> Result<Vec<u64>, String> {
        let (policy, key) = self.keys[which].clone();
        let has = (0..self.shops.len()).map(|shop| self.has(shop, which, label));
        let has = has.collect::<Result<Vec<Has>, String>>()?;
        if policy.tolerance == Tolerance::NeverOver {
            let unit = if policy.algorithm.is_bucket() {
                MICRO
            } else {
                1
            };
            let available: u64 = has.iter().map(|has| has.available).sum();
            let limiter = Limiter {
                policy: &policy,
                key: &key,
                label,
                at_ms: self.now,
                clocks,
            };
            let (available, room) = (
                available as f64 / unit as f64,
                self.audit.room(limiter, &self.plans),
            );
            if available > 0.0 && available > room + 1e-6 {
                return Err(format!(
                    "{key:?} {label:?}: {has:?} could be admitted now, where a perfect limiter has {room:.3} left"
                ));
            }
        }
        Ok(has.iter().map(|has| has.in_force).collect())
    }

    pub(super) fn has(
        &mut self,
        shop: usize,
        which: usize,
        label: Option<u64>,
    ) -> Result<Has, String> {
        let (policy, key) = self.keys[which].clone();
        if self.shops[shop].off {
            return Ok(Has::default());
        }
        let now = self.store_now(shop);
        let memory = &mut self.shops[shop].memory;
        let nodes = &self.nodes[shop * self.setup.nodes..(shop + 1) * self.setup.nodes];
        let id = MeterId {
            key: key.clone(),
            label,
        };
        let is_bucket = policy.algorithm.is_bucket();
        let mut most = Has::default();
        let files = &self.files;
        for node in nodes {
            let Some(regime) = &node.regime else { continue };
            let policy = known_in(files, node.file, &policy);
            let fence = regime.fence();
            // One whose record isn't the store's isn't let in.
            let Some((meter, terms)) = memory.found(&fence, &id, now) else {
                continue;
            };
            let rule = regime.rule(&policy, policy.largest());
            let settled = Settled::new(meter, label, &rule, terms.as_ref(), &fence, now);
            let (tokens, held) = (settled.available(), settled.meter.held());
            // What is held may be more than a share that a clock has just lowered.
            if is_bucket && settled.inside && tokens > settled.of.saturating_sub(held) {
                let of = settled.of;
                return Err(format!(
                    "{key:?}: {tokens} and {held} held are in the bucket of {shop}, of {of}"
                ));
            }
            // What is held comes and goes without flowing.
            if held > 0 {
                self.levels.remove(&(which, shop));
            } else if is_bucket && settled.inside && meter.is_some() && files.is_empty() {
                // Where a base is raised, it had been there for a while when that is written down.
                let now = Level {
                    units: tokens + held,
                    at_ms: self.now,
                    life: fence.record.life,
                    missing: fence.missing,
                    is_first: regime.state.standing == Standing::First,
                    front: regime.state.rollout.fronts.get(&policy.id()).copied(),
                    steps: self.outcome.steps,
                };
                let before = self.levels.insert((which, shop), now);
                now.flowed_from(before, &policy)
                    .map_err(|what| format!("{key:?} of {shop}: {what}"))?;
            }
            let in_force = match () {
                () if settled.is_blocked() => 0,
                () if is_bucket && !settled.inside => settled.of.min(tokens + held),
                () => settled.of,
            };
            // What a request of now goes by.
            let limits = self.plans.at(&policy, &key, shop, self.now);
            let available = if limits == rule.limits {
                tokens
            } else {
                let rule = regime.rule(&policy, limits);
                Settled::new(meter, label, &rule, terms.as_ref(), &fence, now).available()
            };
            most = Has {
                in_force: most.in_force.max(in_force),
                available: most.available.max(available),
            };
        }
        Ok(most)
    }

    /// After the faults are over all regions read the same usage, and it is what was admitted.
    pub(super) fn compare_usage(&mut self) -> Result<(), String> {
        let quiet = self
            .setup
            .duration_ms
            .saturating_sub(self.setup.faults_until_ms);
        // Stated traffic goes on to the end: usage is never settled.
        if quiet < SETTLES_MS || self.setup.stated.is_some() {
            return Ok(());
        }
        for (policy, key) in self.keys.clone() {
            let Some(period_ms) = policy.usage_ms else {
                continue;
            };
            let left = (0..self.shops.len()).filter(|shop| !self.shops[*shop].off);
            let left: Vec<usize> = left.collect();
            let totals: Vec<_> = left
                .into_iter()
                .filter_map(|shop| Some((shop, self.usage_in(shop, &key, period_ms)?)))
                .collect();
            if totals.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                return Err(format!("{key:?}: usage differs: {totals:?}"));
            }
            let (admitted, refunded) = (self.audit.admitted(&key), self.audit.refunded(&key));
            for (shop, slots) in totals {
                let sum = slots.values().fold(Counts::default(), |a, b| a.plus(*b));
                let is_short = sum.admitted < admitted || sum.refunded < refunded;
                let is_beyond = sum.admitted > admitted || sum.refunded > refunded;
                if is_beyond || (is_short && self.outcome.losses == 0) {
                    return Err(format!(
                        "{key:?}: {admitted} admitted and {refunded} put back, and usage in {shop} says {sum:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn usage_in(
        &mut self,
        shop: usize,
        key: &Key,
        period_ms: u64,
    ) -> Option<BTreeMap<Actor, Counts>> {
        let regime = self.nodes[shop * self.setup.nodes].regime.clone()?;
        let now = self.store_now(shop);
        // As far as any clock can have leapt.
        let reach = BEGINNING - BEGINNING % period_ms - 24 * HOUR_MS;
        let starts = (0..48 * HOUR_MS / period_ms).map(|i| StoreMs(reach + i * period_ms));
        let op = Op::Usage {
            fence: regime.fence(),
            partition: key.partition(),
            key: key.clone(),
            starts: starts.collect(),
        };
        let own = regime.actor();
        let Ok(Reply::Usage { periods, .. }) = self.shops[shop].memory.apply(now, op) else {
            return None;
        };
        let mut slots: BTreeMap<Actor, Counts> = BTreeMap::new();
        for (actor, counts) in periods.into_iter().flatten() {
            let actor = actor.unwrap_or_else(|| own.clone());
            let sum = slots.entry(actor).or_default();
            *sum = sum.plus(counts);
        }
        slots.retain(|_, counts| !counts.is_zero());
        Some(slots)
    }
}
