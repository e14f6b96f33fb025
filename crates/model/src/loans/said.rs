//! What regions say to each other, as small as it can be.

use super::LoansModel;
use apportion_core::allotment::{LoanAsk, LoanGrant, Statement};
use apportion_core::{Actor, Epoch, StoreMs};

/// A region in one life and epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    pub region: u8,
    pub life: u8,
    pub epoch: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Said {
    /// To a region, whatever its life.
    Ask { by: Who, to: u8, at: StoreMs },
    Grant {
        by: Who,
        to: Who,
        at: StoreMs,
        amount: u64,
    },
    Statement {
        by: Who,
        to: Who,
        up_to: StoreMs,
        keep: u64,
    },
}

// === impl Said ===

impl Said {
    /// The region that it is for.
    pub fn to(&self) -> usize {
        usize::from(match self {
            Self::Ask { to, .. } => *to,
            Self::Grant { to, .. } | Self::Statement { to, .. } => to.region,
        })
    }
}

// === impl LoansModel ===

impl LoansModel {
    pub(super) fn actor_of(&self, who: Who) -> &Actor {
        self.actor(usize::from(who.region), who.life)
    }

    pub(super) fn who_is(&self, actor: &Actor, epoch: Epoch) -> Who {
        let region = self
            .actors
            .iter()
            .position(|lives| lives[0].region == actor.region);
        Who {
            region: region.map_or(0, |r| r as u8),
            life: actor.life.to_bits() as u8,
            epoch: epoch.0,
        }
    }

    pub(super) fn ask(&self, by: Who, at: StoreMs) -> LoanAsk {
        LoanAsk {
            by: self.actor_of(by).clone(),
            epoch: Epoch(by.epoch),
            asked_at: at,
            want_ppb: super::LENDABLE,
        }
    }

    pub(super) fn grant(&self, by: Who, to: Who, at: StoreMs, amount: u64) -> LoanGrant {
        LoanGrant {
            by: self.actor_of(by).clone(),
            by_epoch: Epoch(by.epoch),
            to: self.actor_of(to).clone(),
            to_epoch: Epoch(to.epoch),
            asked_at: at,
            amount_ppb: amount,
        }
    }

    pub(super) fn statement(&self, by: Who, to: Who, up_to: StoreMs, keep: u64) -> Statement {
        Statement {
            by: self.actor_of(by).clone(),
            epoch: Epoch(by.epoch),
            to: self.actor_of(to).clone(),
            up_to,
            keep_ppb: keep,
        }
    }
}
