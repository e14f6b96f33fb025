//! How much a policy admits, where that depends on the request: plans, and overrides of single subjects.

use super::Policy;
use crate::key::{Attributes, normalise};
use crate::schedule::MAX_TTL_MS;
use std::collections::BTreeMap;

/// How much is admitted: units in each period, and at once where the algorithm has a burst.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Limits {
    pub limit: u64,
    /// Equal to `limit` where the algorithm has none.
    pub burst: u64,
}

/// Limits by the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plans {
    /// The attribute that names the plan. A request without it, or with a plan that isn't listed, has the policy's own limits.
    pub by: String,
    pub plans: BTreeMap<String, Limits>,
}

/// Limits by subject: the values of the key attributes, in the order of the policy's key, in composed form.
pub type Overrides = BTreeMap<Vec<String>, Limits>;

impl Policy {
    /// The limits of a request that this policy matches: those of its subject, of its plan, or the policy's own.
    pub fn limits_of(&self, attributes: &Attributes) -> Limits {
        if let Some(limits) = self.override_for(attributes) {
            return limits;
        }
        let plan = self.plans.as_ref().and_then(|plans| {
            let name = attributes.get(&plans.by)?;
            plans.plans.get(normalise(name).as_ref())
        });
        plan.copied().unwrap_or(self.limits)
    }

    /// The limits of the subject itself, if it has some: they don't depend on the request.
    fn override_for(&self, attributes: &Attributes) -> Option<Limits> {
        if self.overrides.is_empty() {
            return None;
        }
        let values: Option<Vec<String>> = self
            .key
            .iter()
            .map(|name| Some(normalise(attributes.get(name)?).into_owned()))
            .collect();
        self.overrides.get(&values?).copied()
    }

    /// As [`Policy::limits_of`], by the subject alone; `None` where it depends on a request's plan.
    pub fn limits_of_subject(&self, subject: &[String]) -> Option<Limits> {
        let found = self.overrides.get(subject).copied();
        found.or_else(|| self.plans.is_none().then_some(self.limits))
    }

    /// Every limit that a subject without an override may have, smallest first.
    pub fn tiers(&self) -> Vec<Limits> {
        let plans = self.plans.iter().flat_map(|p| p.plans.values().copied());
        let mut tiers: Vec<Limits> = plans.chain([self.limits]).collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }

    /// The longest that filling a bucket takes under any of these limits, in milliseconds. 0 where there is no bucket.
    pub(super) fn longest_fill_ms(&self) -> u64 {
        let Some(per_ms) = self
            .algorithm
            .period()
            .filter(|_| self.algorithm.is_bucket())
        else {
            return 0;
        };
        let per_ms = u128::from(per_ms.longest_ms());
        let fill = |l: Limits| (u128::from(l.burst) * per_ms).div_ceil(u128::from(l.limit.max(1)));
        let all = self
            .tiers()
            .into_iter()
            .chain(self.overrides.values().copied());
        let longest = all.map(fill).max().unwrap_or(0);
        u64::try_from(longest).unwrap_or(u64::MAX).min(MAX_TTL_MS)
    }

    /// The most that any subject may be admitted in a period.
    pub fn largest(&self) -> Limits {
        let all = self
            .tiers()
            .into_iter()
            .chain(self.overrides.values().copied());
        all.reduce(|a, b| Limits {
            limit: a.limit.max(b.limit),
            burst: a.burst.max(b.burst),
        })
        .unwrap_or(self.limits)
    }
}
