//! Who is refused first when a limit runs short: priority classes, and members of a pool.

use super::Policy;
use crate::key::{Attributes, SubjectHash, normalise};
use crate::meter::Member;
use std::collections::BTreeMap;

/// Millionths of a whole.
pub const PPM: u64 = 1_000_000;

/// One class of a policy's `priority` list, the most important first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// 1 to 64 of `a-z`, `0-9`, `_` and `-`.
    pub name: String,
    pub standing: Standing,
}

/// What a class may use of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is refused where less than so many millionths of the limit would be left.
    Leaves { ppm: u32 },
    /// The policy doesn't limit it: neither refused nor charged.
    Exempt,
}

/// A budget that its members share: what is short is dealt among those who want it by weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMembers {
    /// The attribute that names the member. Requests without it are one more member, the empty one.
    pub by: String,
    /// Of those that `weights` doesn't list.
    pub default_weight: u32,
    /// By the member's value, in composed form.
    pub weights: BTreeMap<String, u32>,
}

impl Policy {
    /// What a request of this priority may use. One that names no class is of the first that isn't exempt; one that
    /// names a class that isn't listed, of the last.
    pub fn standing_of(&self, priority: Option<&str>) -> Standing {
        let limited = || {
            self.classes
                .iter()
                .filter(|class| class.standing != Standing::Exempt)
        };
        let class = match priority {
            Some(name) => self
                .classes
                .iter()
                .find(|class| class.name == name)
                .or_else(|| limited().next_back()),
            None => limited().next(),
        };
        class.map_or(Standing::Leaves { ppm: 0 }, |class| class.standing)
    }

    /// Whom of the pool a request asks for; `None` without a pool. The name is one that may be shown, as in a key.
    pub fn member_of(&self, attributes: &Attributes, hash: &SubjectHash) -> Option<Member> {
        let pool = self.pool.as_ref()?;
        let value = attributes.get(&pool.by).map(|value| normalise(value));
        let value = value.unwrap_or_default();
        Some(Member {
            weight: pool.weight_of(&value),
            name: hash.shown(&pool.by, &value).into_owned(),
        })
    }
}

impl PoolMembers {
    pub fn weight_of(&self, member: &str) -> u32 {
        self.weights
            .get(member)
            .copied()
            .unwrap_or(self.default_weight)
    }
}
