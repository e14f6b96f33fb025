//! What one revision of the file says of a policy's budget: limits and weights, without the policy around them.

use crate::division::{dealt_units, part_of};
use crate::ids::Region;
use crate::key::SubjectHash;
use crate::policy::{Limits, Policy, Tolerance};
use crate::schedule::{MAX_TTL_MS, PPB};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// A policy's limits, weights and tolerance in one revision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Budget {
    weights: BTreeMap<Region, u64>,
    tolerance: Tolerance,
    own: Limits,
    /// The attribute that names a plan.
    by: Option<String>,
    plans: BTreeMap<String, Limits>,
    /// By a hash of the key: subjects may be ones that aren't safe to show.
    overrides: BTreeMap<u64, Limits>,
}

/// What a region loses by a change from one revision to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Loss {
    Nothing,
    /// Some limit is lower: nobody's share is.
    Limit,
    /// Its part of the whole, or of a window: what it has lent or given away may be more than it has left.
    Share,
}

impl Budget {
    pub fn of(policy: &Policy, hash: &SubjectHash) -> Self {
        let hashed = |key: &crate::Key| xxhash_rust::xxh3::xxh3_64(key.as_str().as_bytes());
        Self {
            weights: policy.weights.clone(),
            tolerance: policy.tolerance,
            own: policy.limits,
            by: policy.plans.as_ref().map(|plans| plans.by.clone()),
            plans: policy
                .plans
                .as_ref()
                .map(|plans| plans.plans.clone())
                .unwrap_or_default(),
            overrides: policy
                .overrides
                .keyed(policy, hash)
                .iter()
                .map(|(key, limits)| (hashed(key), *limits))
                .collect(),
        }
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.weights.keys()
    }

    pub(super) fn base_ppb(&self, region: &Region) -> u64 {
        part_of(PPB, self.weights.iter().map(|(r, w)| (r, *w)), region)
    }

    pub(super) fn base_units(&self, limit: u64, region: &Region) -> u64 {
        let tiers = self.tiers().map(|tier| tier.limit);
        let weights = self.weights.iter().map(|(r, w)| (r, *w));
        dealt_units(tiers, limit, weights, region)
    }

    pub(super) const fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// See [`Tolerance::overdraft_units`].
    pub(super) fn overdraft_units(&self, limit: u64, region: &Region) -> u64 {
        self.tolerance.overdraft_units(limit, &self.weights, region)
    }

    /// See [`Tolerance::overdraft_ppb`].
    pub(super) fn overdraft_ppb(&self, region: &Region) -> u64 {
        self.tolerance.overdraft_ppb(&self.weights, region)
    }

    fn tiers(&self) -> impl Iterator<Item = Limits> {
        self.plans.values().copied().chain([self.own])
    }

    fn has_limits_of(&self, other: &Self) -> bool {
        self.own == other.own
            && self.by == other.by
            && self.plans == other.plans
            && self.overrides == other.overrides
    }

    /// The limits that a request went by under this revision if it goes by `limits` under `now`: the smallest, where that
    /// can't be told. `limits` themselves where they are none of `now`'s.
    pub(super) fn was(&self, now: &Self, limits: Limits) -> Limits {
        if self.has_limits_of(now) {
            return limits;
        }
        let mut found: Vec<Limits> = Vec::new();
        let plan = |name: &String| self.plans.get(name).copied().unwrap_or(self.own);
        if now.own == limits {
            found.push(self.own);
            let gone = |(name, _): &(&String, &Limits)| !now.plans.contains_key(*name);
            found.extend(self.plans.iter().filter(gone).map(|(_, limits)| *limits));
        }
        let named = now.plans.iter().filter(|(_, l)| **l == limits);
        found.extend(named.map(|(name, _)| plan(name)));
        if !found.is_empty() {
            if self.by != now.by {
                found.extend(self.tiers());
            }
            let gone = |(key, _): &(&u64, &Limits)| !now.overrides.contains_key(*key);
            found.extend(
                self.overrides
                    .iter()
                    .filter(gone)
                    .map(|(_, limits)| *limits),
            );
        }
        for (key, _) in now.overrides.iter().filter(|(_, l)| **l == limits) {
            match self.overrides.get(key) {
                Some(limits) => found.push(*limits),
                None => found.extend(self.tiers()),
            }
        }
        found.into_iter().reduce(less).unwrap_or(limits)
    }

    /// Limits before and now of whoever may have these, each pair once.
    fn pairs(&self, now: &Self) -> BTreeSet<(Limits, Limits)> {
        let mut pairs = BTreeSet::from([(self.own, now.own)]);
        for name in self.plans.keys().chain(now.plans.keys()) {
            let before = self.plans.get(name).copied().unwrap_or(self.own);
            pairs.insert((before, now.plans.get(name).copied().unwrap_or(now.own)));
        }
        let all = |pairs: &mut BTreeSet<_>| {
            for before in self.tiers() {
                pairs.extend(now.tiers().map(|after| (before, after)));
            }
        };
        if self.by != now.by {
            all(&mut pairs);
        }
        for key in self.overrides.keys().chain(now.overrides.keys()) {
            match (self.overrides.get(key), now.overrides.get(key)) {
                (Some(before), Some(after)) => {
                    pairs.insert((*before, *after));
                }
                (Some(before), None) => pairs.extend(now.tiers().map(|after| (*before, after))),
                (None, Some(after)) => pairs.extend(self.tiers().map(|before| (before, *after))),
                (None, None) => {}
            }
        }
        pairs
    }

    /// Whether no region's part of a window is larger where the limit is smaller, for whoever goes by these two.
    pub(super) fn is_in_line_with(&self, other: &Self) -> bool {
        let regions: BTreeSet<&Region> = self.weights.keys().chain(other.weights.keys()).collect();
        let pairs = self.pairs(other);
        pairs.iter().all(|(here, there)| {
            regions.iter().all(|region| {
                let here_units = self.base_units(here.limit, region);
                let there_units = other.base_units(there.limit, region);
                match here.limit.cmp(&there.limit) {
                    Ordering::Less => here_units <= there_units,
                    Ordering::Equal => here_units == there_units,
                    Ordering::Greater => here_units >= there_units,
                }
            })
        })
    }

    /// Where there was no end to it, nobody was promised anything that a loss of it could break.
    fn has_overdraft_to_lose(&self) -> bool {
        matches!(self.tolerance, Tolerance::Over { .. })
    }

    /// What `region` loses by going from this revision to `now`.
    pub(super) fn loss(&self, now: &Self, region: &Region, is_window: bool) -> Loss {
        if self == now {
            return Loss::Nothing;
        }
        let pairs = self.pairs(now);
        if is_window {
            let fewer = |(before, after): &(Limits, Limits)| {
                now.base_units(after.limit, region) < self.base_units(before.limit, region)
                    || self.has_overdraft_to_lose()
                        && now.overdraft_units(after.limit, region)
                            < self.overdraft_units(before.limit, region)
            };
            return if pairs.iter().any(fewer) {
                Loss::Share
            } else {
                Loss::Nothing
            };
        }
        if now.base_ppb(region) < self.base_ppb(region)
            || self.has_overdraft_to_lose()
                && now.overdraft_ppb(region) < self.overdraft_ppb(region)
        {
            return Loss::Share;
        }
        let lower = |(before, after): &(Limits, Limits)| {
            after.limit < before.limit || after.burst < before.burst
        };
        if pairs.iter().any(lower) {
            Loss::Limit
        } else {
            Loss::Nothing
        }
    }

    /// The least part of its limits of `now` that anybody had under this revision, in parts per billion.
    pub(super) fn least_part_ppb(&self, now: &Self) -> u64 {
        let part = |(before, after): (Limits, Limits)| {
            let of = |before: u64, after: u64| {
                let ppb = u128::from(before) * u128::from(PPB) / u128::from(after.max(1));
                u64::try_from(ppb).unwrap_or(u64::MAX).min(PPB)
            };
            of(before.limit, after.limit).min(of(before.burst, after.burst))
        };
        self.pairs(now).into_iter().map(part).min().unwrap_or(PPB)
    }

    /// The longest that filling a bucket takes under any of these limits, milliseconds.
    pub(super) fn fill_ms(&self, per_ms: u64) -> u64 {
        let fill = |l: Limits| {
            (u128::from(l.burst) * u128::from(per_ms)).div_ceil(u128::from(l.limit.max(1)))
        };
        let all = self.tiers().chain(self.overrides.values().copied());
        let longest = all.map(fill).max().unwrap_or(0);
        u64::try_from(longest).unwrap_or(u64::MAX).min(MAX_TTL_MS)
    }
}

/// The smaller of each.
pub(super) fn less(a: Limits, b: Limits) -> Limits {
    Limits {
        limit: a.limit.min(b.limit),
        burst: a.burst.min(b.burst),
    }
}
