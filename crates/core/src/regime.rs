//! What a node goes by: its region's state and the span in which it trusts the store's clock, and what they make of
//! each policy.

use crate::allotment::{LentAll, Loans, Timing, Transfers};
use crate::demand::floor_ppb;
use crate::fence::{Fence, Span};
use crate::ids::{Actor, StoreMs};
use crate::lives::RegionState;
use crate::meter::{Rule, Terms, label_bounds};
use crate::policy::{Algorithm, Policy};
use crate::schedule::{Rate, Schedule, Step};
use std::sync::Arc;

/// One node's view of its region, replaced as a whole whenever it changes.
#[derive(Clone, Debug)]
pub struct Regime {
    pub state: Arc<RegionState>,
    pub span: Span,
    /// Of the policies that this node serves.
    pub revision: u64,
    pub timing: Timing,
}

impl Regime {
    pub fn fence(&self) -> Fence {
        self.state.fence(self.revision, self.span)
    }

    pub fn actor(&self) -> Actor {
        self.state.actor()
    }

    /// What a script is told of `policy` for a key that isn't traded.
    pub fn rule(&self, policy: &Policy) -> Rule {
        match policy.algorithm {
            Algorithm::FixedWindow { per_ms, .. } => Rule::Window {
                per_ms,
                base: if self.state.may_admit() {
                    policy.base_units(&self.state.region)
                } else {
                    0
                },
                base_from: self.state.base_from(per_ms),
            },
            Algorithm::TokenBucket {
                limit,
                per_ms,
                burst,
            } => {
                let rate = Rate {
                    limit,
                    per_ms,
                    burst,
                };
                let none = Loans {
                    epoch: self.state.epoch,
                    ..Loans::default()
                };
                Rule::Bucket {
                    schedule: self.schedule(policy, rate, &none, StoreMs(0)),
                }
            }
        }
    }

    /// What a swap lays down for a key with these loans.
    pub fn loan_terms(&self, policy: &Policy, rate: Rate, loans: &Loans, now: StoreMs) -> Terms {
        let (base, floor) = self.base_and_floor(policy, rate);
        let own = loans.own_ppb(base, floor, self.lent_all(policy));
        Terms::Bucket {
            epoch: self.state.epoch,
            schedule: self.schedule(policy, rate, loans, now),
            own_cap: rate.share(own).cap,
        }
    }

    pub fn transfer_terms(transfers: &Transfers) -> Terms {
        Terms::Window {
            delta: transfers.delta(),
        }
    }

    /// Until when the transfers of a window matter.
    pub fn window_keep_until(label: u64, per_ms: u64) -> StoreMs {
        label_bounds(label, per_ms).1.plus(per_ms)
    }

    /// This region's base share of a rate, and the part of it that is never lent. Nothing of either while the life
    /// may not admit.
    pub fn base_and_floor(&self, policy: &Policy, rate: Rate) -> (u64, u64) {
        if !self.state.may_admit() {
            return (0, 0);
        }
        let base = policy.base_ppb(&self.state.region);
        (base, floor_ppb(base, rate.burst))
    }

    /// What may be lent of the base at `now`: nothing while all of it counts as lent.
    pub fn lendable_ppb(&self, policy: &Policy, rate: Rate, now: StoreMs) -> u64 {
        let (base, floor) = self.base_and_floor(policy, rate);
        match self.lent_all(policy) {
            Some(lent) if now < lent.until => 0,
            _ => base - floor,
        }
    }

    /// Until when all that may be lent counts as lent. Where no other region shares the budget, nobody can have
    /// borrowed any of it.
    pub fn lent_all(&self, policy: &Policy) -> Option<LentAll> {
        self.state
            .lent_all(self.timing)
            .filter(|_| policy.weights.len() > 1)
    }

    fn schedule(&self, policy: &Policy, rate: Rate, loans: &Loans, now: StoreMs) -> Schedule {
        let (base, floor) = self.base_and_floor(policy, rate);
        let shares = loans.shares(base, floor, self.lent_all(policy), now);
        Schedule::new(shares.into_iter().map(|(from, ppb)| Step {
            from,
            flow: rate.share(ppb),
        }))
    }
}
