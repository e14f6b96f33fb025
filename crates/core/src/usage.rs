//! Usage: what was admitted, as a G-counter for each key and accounting period with one slot for each actor.
//!
//! A slot is written by its actor alone and only grows; merging takes the larger of each number. Slots are absolute,
//! so that sending one twice is harmless.

use crate::ids::{Actor, StoreMs};
use crdts::{CmRDT, CvRDT};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

/// How long a period is kept after its end.
pub const RETENTION_MS: u64 = 40 * 86_400_000;

/// Units counted in one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Admitted, those refunded later included.
    pub admitted: u64,
    /// Given back: charged for a request that another policy refused.
    pub refunded: u64,
    /// Asked for and refused.
    pub refused: u64,
}

/// One actor's slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Slot {
    pub actor: Actor,
    pub counts: Counts,
}

/// All slots of one key and period, in the order of their actors.
///
/// A sorted array: 40 bytes a slot where the `crdts` crate's map takes 168. It merges by the same rules.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counter {
    slots: Vec<Slot>,
}

/// The start of the accounting period that `now` falls in.
pub const fn period_start(now: StoreMs, period_ms: u64) -> StoreMs {
    StoreMs(now.0 - now.0 % period_ms)
}

// === impl Counts ===

impl Counts {
    /// Admitted and not given back.
    pub const fn net(&self) -> u64 {
        self.admitted.saturating_sub(self.refunded)
    }

    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            admitted: self.admitted.max(other.admitted),
            refunded: self.refunded.max(other.refunded),
            refused: self.refused.max(other.refused),
        }
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            admitted: self.admitted.saturating_add(other.admitted),
            refunded: self.refunded.saturating_add(other.refunded),
            refused: self.refused.saturating_add(other.refused),
        }
    }

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Counter ===

impl Counter {
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn get(&self, actor: &Actor) -> Counts {
        self.find(actor)
            .map_or_else(|_| Counts::default(), |i| self.slots[i].counts)
    }

    /// The sum of all slots.
    pub fn total(&self) -> Counts {
        self.slots
            .iter()
            .fold(Counts::default(), |sum, slot| sum.plus(slot.counts))
    }

    /// The actor's slot after it counted `more`, to be applied here and anywhere else.
    pub fn counted(&self, actor: &Actor, more: Counts) -> Slot {
        Slot {
            actor: actor.clone(),
            counts: self.get(actor).plus(more),
        }
    }

    fn find(&self, actor: &Actor) -> Result<usize, usize> {
        self.slots.binary_search_by(|slot| slot.actor.cmp(actor))
    }
}

impl CvRDT for Counter {
    type Validation = Infallible;

    fn validate_merge(&self, _other: &Self) -> Result<(), Infallible> {
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        for slot in other.slots {
            self.apply(slot);
        }
    }
}

impl CmRDT for Counter {
    type Op = Slot;
    type Validation = Infallible;

    fn validate_op(&self, _slot: &Slot) -> Result<(), Infallible> {
        Ok(())
    }

    fn apply(&mut self, slot: Slot) {
        match self.find(&slot.actor) {
            Ok(i) => self.slots[i].counts = self.slots[i].counts.max(slot.counts),
            Err(i) => self.slots.insert(i, slot),
        }
    }
}

#[cfg(test)]
mod tests;
