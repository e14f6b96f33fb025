//! Policies: named, versioned rules, as they stand in `policies.toml`.
//!
//! What is here has been checked by [`PolicySet::parse`]: the rest of the code relies on its ranges.

mod classes;
mod digest;
mod later;
pub mod limits;
mod parse;
mod pattern;
pub mod source;
#[cfg(test)]
mod tests;
mod tiers;

use crate::division::{dealt_units, part_of};
use crate::ids::Region;
use crate::key::{Attributes, SubjectHash};
use crate::period::Period;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use classes::{Class, PPM, PoolMembers, Standing};
pub use parse::region_name;
pub use pattern::Pattern;
pub use tiers::{Limits, Overrides, Plans};

/// Everything that is wrong with a policies file.
pub type PolicyErrors = source::Problems;

/// All policies of a deployment: one file, the same in every region.
#[derive(Debug, Clone)]
pub struct PolicySet {
    pub revision: u64,
    /// In name order; shares are dealt to these.
    pub regions: Vec<Region>,
    /// In the order of the file.
    pub policies: Vec<Arc<Policy>>,
    /// What is allowed but probably not meant; to be shown at start and by `policy check`.
    pub warnings: Vec<String>,
    /// What the subjects are hashed under. It isn't in the file: it is a secret.
    pub subject_hash: SubjectHash,
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// 1 to 64 of `a-z`, `0-9`, `_` and `-`.
    pub name: String,
    /// Names the state: another version starts afresh.
    pub version: u32,
    /// Attributes that a request must have, and what they must look like.
    pub attributes: BTreeMap<String, Pattern>,
    /// Attributes that make the subject, in this order; none: one budget for all requests.
    pub key: Vec<String>,
    pub algorithm: Algorithm,
    /// Of a request that neither a plan nor an override speaks for.
    pub limits: Limits,
    pub plans: Option<Plans>,
    pub overrides: Overrides,
    /// The longest that filling a bucket takes under any of these limits, milliseconds; 0 where there is no bucket.
    pub fill_ms: u64,
    /// Most important first; none: all requests are alike.
    pub classes: Vec<Class>,
    /// Only with a bucket.
    pub pool: Option<PoolMembers>,
    pub mode: Mode,
    pub tolerance: Tolerance,
    pub on_store_failure: OnStoreFailure,
    /// A weight for each region of the set.
    pub weights: BTreeMap<Region, u64>,
    /// Length of the periods that usage is counted in, milliseconds. `None`: none is counted.
    pub usage_ms: Option<u64>,
    /// Key attributes whose values are hashed before they go anywhere.
    pub sensitive: BTreeSet<String>,
    /// Subjects that weren't there before are refused beyond so many in a second and region. `None`: any number.
    pub new_subjects_per_s: Option<u32>,
    /// Decide and report, never refuse.
    pub shadow: bool,
}

/// How a policy's limits are kept. How much they are stands in [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `limit` units in each window.
    FixedWindow { period: Period },
    /// At most `limit` units in any `per_ms`: every admission is remembered for so long.
    SlidingLog { per_ms: u64 },
    /// At most `limit` units in the last `per_ms`, counted in `buckets` cells.
    ///
    /// One cell is the classic form: the previous window counts in proportion to what is left of it. With more, a
    /// cell counts in full as long as any of it lies in the window.
    SlidingWindow { per_ms: u64, buckets: u32 },
    /// `limit` units each `per_ms` flow into a bucket that holds `burst`.
    TokenBucket { per_ms: u64 },
    /// The same promise, told in arrival times. It is kept as a bucket.
    Gcra { per_ms: u64 },
    /// At most `limit` slots taken at a time. One that isn't released is free again after `slot_ttl_ms`.
    Concurrency { slot_ttl_ms: u64 },
}

/// Who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Each region, from its share of the budget.
    Shares,
    /// One region, for all. Not supported yet: `parse` refuses it.
    Home {
        home: Region,
        standby: Option<Region>,
    },
    /// Each region by itself (concurrency).
    Region,
}

/// Which side the sum over all regions may err on, from the strictest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tolerance {
    NeverOver,
    /// Over by at most so many millionths of the limit.
    Over {
        ppm: u32,
    },
    /// A region refuses only when the usage that it knows of has used up the limit.
    NeverUnder,
}

/// What is answered while a region's store is out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStoreFailure {
    Closed,
    /// Not supported yet: `parse` refuses it.
    Open,
    /// Not supported yet: `parse` refuses it.
    Local,
}

/// Rates split in parts per billion.
pub const PPB: u64 = 1_000_000_000;

// === impl PolicySet ===

impl PolicySet {
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    #[must_use]
    pub fn with_subject_hash(self, hash: SubjectHash) -> Self {
        Self {
            subject_hash: hash,
            ..self
        }
    }
}

// === impl Policy ===

impl Policy {
    /// `name@version`, which its keys begin with.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// Whether this policy limits a request: every attribute of `match` is there and fits, and every one of `key` is there.
    pub fn matches(&self, attributes: &Attributes) -> bool {
        self.key.iter().all(|name| attributes.contains_key(name))
            && self.attributes.iter().all(|(name, pattern)| {
                attributes
                    .get(name)
                    .is_some_and(|value| pattern.matches(value))
            })
    }

    /// A region's base share of `limit`, in whole units. What windows are dealt by. 0 for a region that isn't of the set.
    ///
    /// Over all regions the shares of the largest limit sum to it exactly. Those of a smaller plan may be a few units
    /// short of it: a smaller limit never has a larger base, so that regions that see different plans for a moment stay
    /// below the larger.
    pub fn base_units(&self, limit: u64, region: &Region) -> u64 {
        let tiers = self.tiers().into_iter().map(|tier| tier.limit);
        let weights = self.weights.iter().map(|(r, w)| (r, *w));
        dealt_units(tiers, limit, weights, region)
    }

    /// A region's base share in parts per billion, summing to [`PPB`] exactly. What rates, bursts and sliding windows
    /// are dealt by.
    pub fn base_ppb(&self, region: &Region) -> u64 {
        self.base_of(PPB, region)
    }

    fn base_of(&self, total: u64, region: &Region) -> u64 {
        part_of(total, self.weights.iter().map(|(r, w)| (r, *w)), region)
    }
}

// === impl Tolerance ===

impl Tolerance {
    /// A region's part of what a window of `limit` may be over by, in whole units: equal parts of it, whatever the
    /// weights. A larger limit never has a smaller part. Under never-under there is no end to it.
    pub fn overdraft_units(self, limit: u64, weights: &BTreeMap<Region, u64>, of: &Region) -> u64 {
        match self {
            Self::NeverOver => 0,
            Self::Over { ppm } => {
                let over = u128::from(limit) * u128::from(ppm) / u128::from(PPM);
                let over = u64::try_from(over).expect("no more than the limit");
                equal_part(over, weights, of)
            }
            Self::NeverUnder => u64::MAX,
        }
    }

    /// The same of rates and sliding windows, in parts per billion of the budget.
    pub fn overdraft_ppb(self, weights: &BTreeMap<Region, u64>, of: &Region) -> u64 {
        match self {
            Self::NeverOver => 0,
            Self::Over { ppm } => equal_part(u64::from(ppm) * (PPB / PPM), weights, of),
            Self::NeverUnder => u64::MAX,
        }
    }
}

fn equal_part(total: u64, weights: &BTreeMap<Region, u64>, of: &Region) -> u64 {
    part_of(total, weights.keys().map(|region| (region, 1)), of)
}

// === impl Algorithm ===

impl Algorithm {
    /// The name that a policies file has for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed-window",
            Self::SlidingLog { .. } => "sliding-log",
            Self::SlidingWindow { .. } => "sliding-window",
            Self::TokenBucket { .. } => "token-bucket",
            Self::Gcra { .. } => "gcra",
            Self::Concurrency { .. } => "concurrency",
        }
    }

    /// How long what was admitted goes on counting, at the longest. A lender waits so much longer before it uses again
    /// what it lent. A bucket forgets at once what it gave.
    pub const fn counts_ms(&self) -> u64 {
        match *self {
            Self::SlidingLog { per_ms } => per_ms,
            // A cell of the classic form counts until the window after its own is over.
            Self::SlidingWindow { per_ms, .. } => 2 * per_ms,
            Self::FixedWindow { .. }
            | Self::TokenBucket { .. }
            | Self::Gcra { .. }
            | Self::Concurrency { .. } => 0,
        }
    }

    /// The period that the limit is for; `None` where there is none.
    pub const fn period(&self) -> Option<Period> {
        match *self {
            Self::FixedWindow { period } => Some(period),
            Self::SlidingLog { per_ms }
            | Self::SlidingWindow { per_ms, .. }
            | Self::TokenBucket { per_ms }
            | Self::Gcra { per_ms } => Some(Period::every(per_ms)),
            Self::Concurrency { .. } => None,
        }
    }

    pub const fn is_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket { .. } | Self::Gcra { .. })
    }
}

// === impl Limits ===

impl Limits {
    pub const fn of(limit: u64) -> Self {
        Self {
            limit,
            burst: limit,
        }
    }

    /// The most that one request can cost, over all regions: a bucket's burst, otherwise the limit.
    pub const fn capacity(&self, algorithm: &Algorithm) -> u64 {
        if algorithm.is_bucket() {
            self.burst
        } else {
            self.limit
        }
    }
}

// === impl OnStoreFailure ===

impl OnStoreFailure {
    /// What holds where a policy says nothing.
    pub fn default_for(tolerance: Tolerance) -> Self {
        match tolerance {
            Tolerance::NeverOver => Self::Closed,
            Tolerance::NeverUnder | Tolerance::Over { .. } => Self::Local,
        }
    }
}
