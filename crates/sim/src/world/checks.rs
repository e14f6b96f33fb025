//! What has to hold beside each admission: the shares in force, and usage once the faults are over.

use super::*;
use apportion_core::fence::{DRIFT_PPM, Missing};
use apportion_core::policy::Tolerance;
use apportion_core::usage::Counts;
use apportion_core::{Algorithm, Life};
use apportion_store::Snapshot;

/// Usage settles within so long after the faults.
const SETTLES_MS: u64 = 20_000;
const HOUR_MS: u64 = 3_600_000;
/// Clocks are read in whole milliseconds, twice.
const SLOP_MS: u64 = 20;

/// What was in a bucket, and held out of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    units: u64,
    at_ms: u64,
    life: Life,
    /// Another where a life is found to be the first: then it has its base from its beginning.
    missing: Missing,
    steps: u64,
}

impl Level {
    /// No bucket of a region fills faster than the whole would.
    fn flowed_from(self, before: Option<Self>, policy: &Policy) -> Result<(), String> {
        let (Some(before), Some(period)) = (before, policy.algorithm.period()) else {
            return Ok(());
        };
        let is_same_view = before.life == self.life && before.missing == self.missing;
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

impl World {
    /// The shares in force of a rate or a sliding window never add up to more than the whole, whether or not anybody
    /// uses them; and no bucket has more than its share holds.
    pub(super) fn weigh(&mut self) -> Result<(), String> {
        self.at(self.now + WEIGH_MS, Event::Weigh);
        for which in 0..self.keys.len() {
            let (policy, key) = self.keys[which].clone();
            if policy.tolerance == Tolerance::NeverUnder {
                continue;
            }
            let limits = policy.largest();
            let whole = match policy.algorithm {
                Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. } => continue,
                algorithm if algorithm.is_bucket() => limits.burst * MICRO,
                _ => limits.limit,
            };
            // Whichever of a region's nodes decides next.
            let parts = (0..self.shops.len()).map(|shop| self.in_force(shop, which, &policy, &key));
            let parts = parts.collect::<Result<Vec<u64>, String>>()?;
            if parts.iter().sum::<u64>() > whole {
                return Err(format!("{key:?}: what is in force is {parts:?} of {whole}"));
            }
        }
        Ok(())
    }

    /// The largest capacity or share under which a call of a node of this region would be decided now. Outside the span a
    /// bucket is no more than what is in it, since nothing flows; what gives nothing at all counts for nothing.
    pub(super) fn in_force(
        &mut self,
        shop: usize,
        which: usize,
        policy: &Policy,
        key: &Key,
    ) -> Result<u64, String> {
        let now = self.store_now(shop);
        let memory = &mut self.shops[shop].memory;
        let nodes = &self.nodes[shop * self.setup.nodes..(shop + 1) * self.setup.nodes];
        let mut read: Option<Snapshot> = None;
        let mut most = 0;
        for regime in nodes.iter().filter_map(|node| node.regime.as_ref()) {
            let fence = regime.fence();
            let id = MeterId {
                key: key.clone(),
                label: None,
            };
            let op = Op::Read {
                fence,
                partition: key.partition(),
                ids: vec![id],
            };
            // One whose record isn't the store's isn't let in.
            let Ok(Reply::Snapshots { mut snapshots, .. }) = memory.apply(now, op) else {
                continue;
            };
            read = snapshots.pop().or(read);
            let traded = read.as_ref().and_then(|read| read.traded.as_ref());
            let terms = traded.and_then(|traded| traded.terms.as_ref());
            let rule = regime.rule(policy, policy.largest());
            let meter = read.as_ref().and_then(|read| read.meter.as_ref());
            let settled = Settled::new(meter, None, &rule, terms, &fence, now);
            let is_bucket = policy.algorithm.is_bucket();
            let (tokens, held) = (settled.available(), settled.meter.held());
            // What is held may be more than a share that a clock has just lowered.
            if is_bucket && settled.inside && tokens > settled.of.saturating_sub(held) {
                let of = settled.of;
                return Err(format!(
                    "{key:?}: {tokens} and {held} held are in the bucket of {shop}, of {of}"
                ));
            }
            if is_bucket && settled.inside && meter.is_some() {
                let now = Level {
                    units: tokens + held,
                    at_ms: self.now,
                    life: fence.record.life,
                    missing: fence.missing,
                    steps: self.outcome.steps,
                };
                let before = self.levels.insert((which, shop), now);
                now.flowed_from(before, policy)
                    .map_err(|what| format!("{key:?} of {shop}: {what}"))?;
            }
            most = most.max(match () {
                () if settled.is_blocked() => 0,
                () if is_bucket && !settled.inside => settled.of.min(tokens + held),
                () => settled.of,
            });
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
            let totals: Vec<_> = (0..self.shops.len())
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
