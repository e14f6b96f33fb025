//! What has to hold beside each admission: the shares in force, and usage once the faults are over.

use super::*;
use apportion_core::Algorithm;

impl World {
    /// The shares in force of a rate or a sliding window never add up to more than the whole, whether or not anybody uses them. Steps of
    /// a clock are left out: one that nobody can see may double a share for a moment, and the audit allows for that.
    pub(super) fn weigh(&mut self) -> Result<(), String> {
        self.at(self.now + WEIGH_MS, Event::Weigh);
        if self.outcome.steps > 0 {
            return Ok(());
        }
        for (policy, key) in self.keys.clone() {
            // A region that is on its way to a smaller limit is there within the time between two looks.
            let limits = match self.setup.rollouts.files {
                0 => policy.largest(),
                _ => self.plans.largest_since(&policy, &key, self.now, self.now),
            };
            let whole = match policy.algorithm {
                Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. } => continue,
                algorithm if algorithm.is_bucket() => limits.burst * MICRO,
                _ => limits.limit,
            };
            let mut parts = Vec::new();
            for shop in 0..self.shops.len() {
                if self.shops[shop].off {
                    continue;
                }
                let nodes = shop * self.setup.nodes..(shop + 1) * self.setup.nodes;
                let caps = nodes.filter_map(|node| self.in_force(node, &policy, &key));
                // Whichever of the region's nodes decides next.
                let caps: Vec<u64> = caps.collect();
                parts.extend(caps.into_iter().max());
            }
            let sum: u64 = parts.iter().sum();
            if sum > whole {
                return Err(format!("{key:?}: what is in force is {parts:?} of {whole}"));
            }
        }
        Ok(())
    }

    /// The capacity or share under which a call of `node` would be decided now.
    fn in_force(&mut self, node: usize, policy: &Policy, key: &Key) -> Option<u64> {
        let shop = self.shop_of(node);
        let now = self.store_now(shop);
        let regime = self.nodes[node].regime.clone()?;
        let fence = regime.fence();
        let ids = vec![MeterId {
            key: key.clone(),
            label: None,
        }];
        let read = Op::Read {
            fence,
            partition: key.partition(),
            ids,
        };
        let Ok(Reply::Snapshots { snapshots, .. }) = self.shops[shop].memory.apply(now, read)
        else {
            return None;
        };
        let terms = snapshots
            .first()?
            .traded
            .as_ref()
            .and_then(|t| t.terms.as_ref());
        let file = &self.files[self.nodes[node].file];
        let policy = file.policies.iter().find(|p| p.id() == policy.id())?;
        let rule = regime.rule(policy, policy.largest());
        Some(Settled::new(None, None, &rule, terms, &fence, now).of)
    }

    /// After the faults are over all regions read the same usage, and it is what was admitted.
    pub(super) fn compare_usage(&mut self) -> Result<(), String> {
        let quiet = self
            .setup
            .duration_ms
            .saturating_sub(self.setup.faults_until_ms);
        if quiet < 30_000 {
            return Ok(());
        }
        for (policy, key) in self.keys.clone() {
            let Some(period_ms) = policy.usage_ms else {
                continue;
            };
            let mut totals = Vec::new();
            for shop in 0..self.shops.len() {
                let Some(regime) = self.nodes[shop * self.setup.nodes].regime.clone() else {
                    continue;
                };
                let now = self.store_now(shop);
                let first = StoreMs(now.0 - now.0 % period_ms).minus(period_ms * 2);
                let starts = (0..5).map(|i| first.plus(i * period_ms)).collect();
                let op = Op::Usage {
                    fence: regime.fence(),
                    partition: key.partition(),
                    key: key.clone(),
                    starts,
                };
                let own = regime.actor();
                if let Ok(Reply::Usage { periods, .. }) = self.shops[shop].memory.apply(now, op) {
                    let mut slots: BTreeMap<Actor, u64> = BTreeMap::new();
                    for (actor, counts) in periods.into_iter().flatten() {
                        *slots
                            .entry(actor.unwrap_or_else(|| own.clone()))
                            .or_default() += counts.admitted;
                    }
                    slots.retain(|_, units| *units > 0);
                    totals.push((self.shops[shop].region.clone(), slots));
                }
            }
            let admitted = self.audit.admitted(&key);
            let sums: Vec<u64> = totals
                .iter()
                .map(|(_, slots)| slots.values().sum())
                .collect();
            if totals.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                return Err(format!("{key:?}: usage differs: {totals:?}"));
            }
            if sums.iter().any(|sum| *sum > admitted) {
                return Err(format!(
                    "{key:?}: {admitted} admitted, but usage says {sums:?}"
                ));
            }
            if self.outcome.losses == 0 && sums.iter().any(|sum| *sum != admitted) {
                return Err(format!(
                    "{key:?}: {admitted} admitted, and usage says {sums:?}"
                ));
            }
        }
        Ok(())
    }
}
