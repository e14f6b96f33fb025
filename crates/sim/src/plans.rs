//! Subjects whose plan changes during a run, and regions that hear of it at different times.

use apportion_core::policy::Limits;
use apportion_core::{Key, Policy, PolicySet};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;

/// A region goes by the older plan for at most so much longer.
const LAG_MS: u64 = 8_000;

/// Each subject's plans.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    changes: BTreeMap<Key, Change>,
    /// Where files of policies replace each other: by name@version the limits of each, and from when to when some node
    /// went by it.
    used: BTreeMap<String, Vec<(Limits, u64, u64)>>,
}

/// A node's file is looked at so often, at least.
const LOOKED_MS: u64 = 2_000;

#[derive(Debug)]
struct Change {
    before: Limits,
    after: Limits,
    /// When each region hears of it.
    heard_ms: Vec<u64>,
}

impl Plans {
    /// Draws plans for a key of a policy that has some.
    pub(crate) fn draw(&mut self, rng: &mut SmallRng, policy: &Policy, key: &Key, regions: usize) {
        let Some(plans) = &policy.plans else { return };
        let of = |rng: &mut SmallRng| {
            let all: Vec<Limits> = plans.plans.values().copied().collect();
            *all.choose(rng).expect("there are plans")
        };
        let (before, after) = (of(rng), of(rng));
        let at_ms = rng.random_range(5_000..80_000);
        let heard_ms = (0..regions).map(|_| at_ms + rng.random_range(0..LAG_MS));
        let change = Change {
            before,
            after,
            heard_ms: heard_ms.collect(),
        };
        self.changes.insert(key.clone(), change);
    }

    /// What a request for this key goes by in a region.
    pub(crate) fn at(&self, policy: &Policy, key: &Key, shop: usize, now_ms: u64) -> Limits {
        match self.changes.get(key) {
            None => policy.limits,
            Some(change) if now_ms < change.heard_ms[shop] => change.before,
            Some(change) => change.after,
        }
    }

    /// Some node goes by this file now.
    pub(crate) fn in_use(&mut self, file: &PolicySet, now_ms: u64) {
        for policy in &file.policies {
            self.decided_under(policy, now_ms);
        }
    }

    /// A decision by this policy was made now.
    pub(crate) fn decided_under(&mut self, policy: &Policy, now_ms: u64) {
        let used = self.used.entry(policy.id()).or_default();
        let same = |(limits, _, last): &&mut (Limits, u64, u64)| {
            *limits == policy.limits && *last + LOOKED_MS >= now_ms
        };
        match used.iter_mut().find(same) {
            Some((_, _, last)) => *last = now_ms,
            None => used.push((policy.limits, now_ms, now_ms)),
        }
    }

    /// From when on limits matter for a bucket that fills within `fill_ms`: one that was emptied under others is forgotten
    /// once it is full by those.
    pub(crate) fn of_bucket_since(&self, fill_ms: u64, now_ms: u64) -> u64 {
        match self.used.is_empty() {
            true => 0,
            false => now_ms.saturating_sub(2 * fill_ms),
        }
    }

    /// The largest limits that any region went by between two moments.
    pub(crate) fn largest_since(&self, policy: &Policy, key: &Key, from: u64, to: u64) -> Limits {
        if let Some(used) = self.used.get(&policy.id()) {
            let during = used
                .iter()
                .filter(|(_, first, last)| *first <= to && last + LOOKED_MS >= from);
            let all = during.map(|(limits, ..)| *limits);
            return all.fold(Limits { limit: 0, burst: 0 }, |a, b| Limits {
                limit: a.limit.max(b.limit),
                burst: a.burst.max(b.burst),
            });
        }
        let regions = self
            .changes
            .get(key)
            .map_or(1, |change| change.heard_ms.len());
        let at = |ms: u64| (0..regions).map(move |shop| self.at(policy, key, shop, ms));
        at(from).chain(at(to)).max().unwrap_or(policy.limits)
    }
}
