//! Policies: named, versioned rules, as they stand in `policies.toml`.
//!
//! What is here has been checked by [`PolicySet::parse`]: the rest of the code relies on its ranges.

mod digest;
mod later;
pub mod limits;
mod parse;
mod pattern;
pub mod source;
#[cfg(test)]
mod tests;

use crate::division::part_of;
use crate::ids::Region;
use crate::key::Attributes;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use parse::region_name;
pub use pattern::Pattern;

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
    pub mode: Mode,
    pub tolerance: Tolerance,
    pub on_store_failure: OnStoreFailure,
    /// A weight for each region of the set.
    pub weights: BTreeMap<Region, u64>,
    /// Length of the periods that usage is counted in, milliseconds. `None`: none is counted.
    pub usage_ms: Option<u64>,
    /// Decide and report, never refuse.
    pub shadow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `limit` units in each window of `per_ms`, aligned to the Unix epoch.
    FixedWindow { limit: u64, per_ms: u64 },
    /// `limit` units each `per_ms` flow into a bucket that holds `burst`.
    TokenBucket { limit: u64, per_ms: u64, burst: u64 },
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
    /// Each region by itself (concurrency). Not supported yet: `parse` refuses it.
    Region,
}

/// Which side the sum over all regions may err on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    NeverOver,
    /// Not supported yet: `parse` refuses it.
    NeverUnder,
    /// Over by at most so many millionths of the limit. Not supported yet: `parse` refuses it.
    Over {
        ppm: u32,
    },
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

    /// The customer's global limit, units per period.
    pub fn limit(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow { limit, .. } | Algorithm::TokenBucket { limit, .. } => limit,
        }
    }

    /// The most that one request can cost, over all regions: a window's limit, a bucket's burst.
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow { limit, .. } => limit,
            Algorithm::TokenBucket { burst, .. } => burst,
        }
    }

    /// A region's base share of the limit, in whole units; over all regions they sum to the limit exactly.
    /// What windows are dealt by. 0 for a region that isn't of the set.
    pub fn base_units(&self, region: &Region) -> u64 {
        self.base_of(self.limit(), region)
    }

    /// A region's base share in parts per billion, summing to [`PPB`] exactly. What rates and bursts are dealt by.
    pub fn base_ppb(&self, region: &Region) -> u64 {
        self.base_of(PPB, region)
    }

    fn base_of(&self, total: u64, region: &Region) -> u64 {
        part_of(total, self.weights.iter().map(|(r, w)| (r, *w)), region)
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
