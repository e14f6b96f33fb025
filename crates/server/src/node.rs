//! One running node of one region, as its faces (HTTP, gRPC) see it.

use apportion_core::{Actor, Epoch, Key, Life, Policy, PolicySet, Region, StoreMs};
use apportion_engine::{CheckError, CheckRequest, Decision};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    policies: Arc<PolicySet>,
    region: Region,
}

/// Units counted in one slot; each only ever grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub admitted: u64,
    pub refunded: u64,
    pub refused: u64,
}

/// One accounting period of one key, merged over all actors known here.
#[derive(Debug, Clone)]
pub struct PeriodUsage {
    pub start: StoreMs,
    pub end: StoreMs,
    pub total: Counts,
    /// The slots of a region's lives, added up; `through` is the region's clock up to which they are known here.
    pub by_region: BTreeMap<Region, (Counts, StoreMs)>,
    /// The period is over, every region has told all of it, and nothing is in doubt.
    pub complete: bool,
    /// The admitted units lie between these.
    pub low: u64,
    pub high: u64,
}

/// One region's part of a key's budget, in units of the limit.
#[derive(Debug, Clone, Default)]
pub struct RegionShare {
    pub base: f64,
    pub lent: f64,
    pub borrowed: f64,
    pub given: u64,
    pub received: u64,
    pub in_force: f64,
    pub used: f64,
    /// The region's store clock at the reading; `None`: it could not be asked, and only `base` is known.
    pub as_of: Option<StoreMs>,
}

#[derive(Debug, Clone)]
pub struct Status {
    pub region: Region,
    /// `None` before the first contact with the store.
    pub life: Option<Life>,
    pub epoch: Epoch,
    /// In words: "first", "asking", "later".
    pub standing: &'static str,
    pub store_ok: bool,
    pub peers: BTreeMap<Region, PeerStatus>,
}

#[derive(Debug, Clone)]
pub struct PeerStatus {
    pub reachable: bool,
    /// Milliseconds since the last message was heard from it; `None`: never.
    pub lag_ms: Option<u64>,
    pub actor: Option<Actor>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("the store is out of reach: {0}")]
    StoreUnavailable(String),
}

impl Node {
    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    pub async fn check(&self, _request: CheckRequest) -> Result<Decision, CheckError> {
        Err(CheckError::StoreUnavailable {
            region: self.region.clone(),
            reason: "not assembled yet".into(),
            outcome_unknown: false,
        })
    }

    /// The periods of `key` that begin in `[from, to)`, oldest first; empty where none was counted.
    pub async fn usage(
        &self,
        _policy: &Policy,
        _key: &Key,
        _from: Option<StoreMs>,
        _to: Option<StoreMs>,
    ) -> Result<Vec<PeriodUsage>, ReadError> {
        Ok(Vec::new())
    }

    /// Every key of `policy` with usage on record here, in no particular order, at most `limit` keys.
    pub async fn usage_keys(&self, _policy: &Policy, _limit: usize) -> Result<Vec<Key>, ReadError> {
        Ok(Vec::new())
    }

    /// Asks every region for its part of `key`; those that can't be reached within a second are reported by base alone.
    pub async fn shares(
        &self,
        _policy: &Policy,
        _key: &Key,
    ) -> Result<BTreeMap<Region, RegionShare>, ReadError> {
        Ok(BTreeMap::new())
    }

    pub fn status(&self) -> Status {
        Status {
            region: self.region.clone(),
            life: None,
            epoch: Epoch::default(),
            standing: "asking",
            store_ok: false,
            peers: BTreeMap::new(),
        }
    }

    /// True from the first contact with the store until draining.
    pub fn ready(&self) -> bool {
        false
    }
}
