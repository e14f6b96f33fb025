//! How much a policy admits, where that depends on the request: plans, and overrides of single subjects.

use super::Policy;
use crate::key::{Attributes, Key, SubjectHash, normalise};
use crate::schedule::MAX_TTL_MS;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::OnceLock;

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
    /// In composed form.
    pub plans: BTreeMap<String, Limits>,
}

/// Limits by subject: the values of the key attributes, in the order of the policy's key, in composed form.
#[derive(Default)]
pub struct Overrides {
    subjects: BTreeMap<Vec<String>, Limits>,
    /// The same by key, for whoever has no attributes: a hashed value can't be read back.
    keys: OnceLock<Keyed>,
}

struct Keyed {
    /// Of the hash that the keys were made with.
    fingerprint: u64,
    limits: HashMap<Key, Limits>,
}

// === impl Overrides ===

impl Overrides {
    pub fn is_empty(&self) -> bool {
        self.subjects.is_empty()
    }

    pub fn len(&self) -> usize {
        self.subjects.len()
    }

    pub fn get(&self, subject: &[String]) -> Option<Limits> {
        self.subjects.get(subject).copied()
    }

    /// In the order of the subjects.
    pub fn iter(&self) -> impl Iterator<Item = (&[String], Limits)> {
        self.subjects.iter().map(|(s, limits)| (&s[..], *limits))
    }

    fn by_key(&self, policy: &Policy, key: &Key, hash: &SubjectHash) -> Option<Limits> {
        let fingerprint = hash.fingerprint();
        let keyed = || Keyed {
            fingerprint,
            limits: self.keyed(policy, hash),
        };
        let known = self.keys.get_or_init(keyed);
        if known.fingerprint == fingerprint {
            return known.limits.get(key).copied();
        }
        keyed().limits.get(key).copied()
    }

    fn keyed(&self, policy: &Policy, hash: &SubjectHash) -> HashMap<Key, Limits> {
        let key_of = |subject: &[String]| {
            let values = policy.key.iter().cloned().zip(subject.iter().cloned());
            Key::of(policy, &values.collect(), hash).ok()
        };
        self.iter()
            .filter_map(|(subject, limits)| Some((key_of(subject)?, limits)))
            .collect()
    }
}

impl FromIterator<(Vec<String>, Limits)> for Overrides {
    fn from_iter<I: IntoIterator<Item = (Vec<String>, Limits)>>(subjects: I) -> Self {
        Self {
            subjects: subjects.into_iter().collect(),
            keys: OnceLock::new(),
        }
    }
}

/// A copy may become another policy's: it makes its keys anew.
impl Clone for Overrides {
    fn clone(&self) -> Self {
        self.subjects.clone().into_iter().collect()
    }
}

impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        self.subjects == other.subjects
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.subjects.fmt(f)
    }
}

// === impl Policy ===

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
        self.overrides.get(&values?)
    }

    /// As [`Policy::limits_of`], by the key alone, which is one of this policy, made with `hash`; `None` where the limits
    /// depend on a request's plan.
    ///
    /// The keys of the overrides are made once, for the first hash that is asked with.
    pub fn limits_of_key(&self, key: &Key, hash: &SubjectHash) -> Option<Limits> {
        let found = if self.overrides.is_empty() {
            None
        } else {
            self.overrides.by_key(self, key, hash)
        };
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

    /// The first of the [`tiers`](Self::tiers).
    pub fn smallest(&self) -> Limits {
        let plans = self.plans.iter().flat_map(|p| p.plans.values().copied());
        plans.fold(self.limits, Limits::min)
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
        let longest = self.all_limits().map(fill).max().unwrap_or(0);
        u64::try_from(longest).unwrap_or(u64::MAX).min(MAX_TTL_MS)
    }

    /// The most that any subject may be admitted in a period.
    pub fn largest(&self) -> Limits {
        self.all_limits()
            .reduce(|a, b| Limits {
                limit: a.limit.max(b.limit),
                burst: a.burst.max(b.burst),
            })
            .unwrap_or(self.limits)
    }

    fn all_limits(&self) -> impl Iterator<Item = Limits> {
        let overrides = self.overrides.iter().map(|(_, limits)| limits);
        self.tiers().into_iter().chain(overrides)
    }
}
