//! Policies: named, versioned rules, as they stand in `policies.toml`.

use crate::ids::Region;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All policies of a deployment: one file, the same in every region.
#[derive(Debug, Clone)]
pub struct PolicySet {
    pub revision: u64,
    /// In name order; shares are dealt to these.
    pub regions: Vec<Region>,
    /// In the order of the file.
    pub policies: Vec<Arc<Policy>>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub name: String,
    pub version: u32,
    pub key: Vec<String>,
    pub algorithm: Algorithm,
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
