//! Meters: an algorithm's state for one key in one region, and what a decision does to it.
//!
//! What stands here stands once more in Lua, and nowhere else; differential tests hold the two equal.

mod bucket;
mod window;

pub use bucket::{Bucket, Settled as BucketSettled};
pub use window::{Settled as WindowSettled, Window};

use crate::fence::{Fence, HOLD_MAX_MS};
use crate::ids::{Epoch, StoreMs};
use crate::schedule::{Flow, Schedule};
use serde::{Deserialize, Serialize};

/// At most so many holds stand on one meter; one more is refused.
pub const HOLDS_MAX: usize = 64;

/// What a script is told of a key's policy, as it stands in this region while the key isn't traded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Costs are in micro-units.
    Bucket { schedule: Schedule },
    /// Costs are in units. Windows that begin before `base_from` have no base.
    Window {
        per_ms: u64,
        base: u64,
        base_from: StoreMs,
    },
}

/// What a swap laid down for a traded key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Terms {
    /// `own_cap`: the capacity that rests on no loan from others and on no reclaim, for use outside the span.
    Bucket {
        epoch: Epoch,
        schedule: Schedule,
        own_cap: u64,
    },
    /// Rights received less rights given.
    Window { delta: i64 },
}

/// A meter as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meter {
    Bucket(Bucket),
    Window(Window),
}

/// Units taken out of a meter that may still be put back until a moment; after it they count as spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// Below 2^53, drawn by the node.
    pub id: u64,
    pub units: u64,
    pub until: StoreMs,
}

/// What a meter says now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// In micro-units. `flow` is what is in force now.
    Bucket {
        spendable: u64,
        held: u64,
        flow: Flow,
    },
    /// In units.
    Window { label: u64, used: u64, rights: u64 },
}

/// The label of the window that `now` falls in.
pub const fn label_at(now: StoreMs, per_ms: u64) -> u64 {
    now.0 / per_ms
}

/// The bounds `[start, end)` of a window. A label that a peer made up may be beyond the end of time.
pub const fn label_bounds(label: u64, per_ms: u64) -> (StoreMs, StoreMs) {
    (
        StoreMs(label.saturating_mul(per_ms)),
        StoreMs(label.saturating_add(1).saturating_mul(per_ms)),
    )
}

// === impl Rule ===

impl Rule {
    /// The base of a window, in units.
    pub fn window_base(&self, label: u64) -> u64 {
        match self {
            Self::Window {
                per_ms,
                base,
                base_from,
            } if label_bounds(label, *per_ms).0 >= *base_from => *base,
            _ => 0,
        }
    }
}

// === impl Reading ===

impl Reading {
    /// Whether `cost` fits, in the reading's own units.
    pub fn admits(&self, cost: u64) -> bool {
        cost <= self.available()
    }

    pub fn available(&self) -> u64 {
        match *self {
            Self::Bucket { spendable, .. } => spendable,
            Self::Window { used, rights, .. } => rights.saturating_sub(used),
        }
    }
}

/// The holds of a meter on the present epoch's clock: those of an older epoch start their longest term again.
fn holds_in_epoch(holds: &[Hold], epoch: Epoch, fence: &Fence) -> Vec<Hold> {
    if epoch == fence.record.epoch {
        return holds.to_vec();
    }
    let until = fence.epoch_began.plus(HOLD_MAX_MS);
    holds.iter().map(|hold| Hold { until, ..*hold }).collect()
}

#[cfg(test)]
mod tests;
