//! What a node goes by: its region's state and the span in which it trusts the store's clock, and what they make of
//! each policy.

use crate::allotment::{LentAll, Loans, Timing, Transfers};
use crate::demand::floor_ppb;
use crate::fence::{Fence, Span};
use crate::ids::{Actor, StoreMs};
use crate::lives::RegionState;
use crate::meter::{Part, Rule, Slack, Terms};
use crate::period::Period;
use crate::policy::{Algorithm, Limits, Policy, Tolerance};
use crate::schedule::{Shares, Step};
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

    /// What a script is told of `policy` under `limits` for a key that isn't traded.
    pub fn rule(&self, policy: &Policy, limits: Limits) -> Rule {
        let admits = self.state.may_admit();
        let part = match policy.algorithm {
            Algorithm::FixedWindow { period } => Part::Base {
                units: if admits {
                    policy.base_units(limits.limit, &self.state.region)
                } else {
                    0
                },
                from: self.state.base_from(period.longest_ms()),
            },
            Algorithm::Concurrency { .. } if admits => Part::Whole,
            Algorithm::Concurrency { .. } => Part::Nothing,
            Algorithm::SlidingLog { .. }
            | Algorithm::SlidingWindow { .. }
            | Algorithm::TokenBucket { .. }
            | Algorithm::Gcra { .. } => {
                let none = Loans {
                    epoch: self.state.epoch,
                    ..Loans::default()
                };
                Part::Shares(self.shares(policy, &none, StoreMs(0)))
            }
        };
        let rule = Rule {
            algorithm: policy.algorithm,
            limits,
            by_plan: policy.plans.is_some(),
            fill_ms: policy.fill_ms,
            part,
            slack: Slack::Nothing,
        };
        match policy.tolerance {
            Tolerance::NeverOver => rule,
            Tolerance::Over { ppm } => Rule {
                slack: Slack::Over(self.overdraft(policy, limits, ppm)),
                ..rule
            },
            Tolerance::NeverUnder => rule.known(),
        }
    }

    /// This region's part of the overdraft. It is kept like a base: what a lost life may have spent of it isn't there.
    fn overdraft(&self, policy: &Policy, limits: Limits, ppm: u32) -> Part {
        let admits = self.state.may_admit();
        let region = &self.state.region;
        match policy.algorithm {
            Algorithm::FixedWindow { period } => Part::Base {
                units: if admits {
                    policy.overdraft_units(limits.limit, ppm, region)
                } else {
                    0
                },
                from: self.state.base_from(period.longest_ms()),
            },
            _ if admits => Part::Shares(Shares::constant(policy.overdraft_ppb(ppm, region))),
            _ => Part::Shares(Shares::constant(0)),
        }
    }

    /// What a swap lays down for a key with these loans.
    pub fn loan_terms(&self, policy: &Policy, loans: &Loans, now: StoreMs) -> Terms {
        let (base, floor) = self.base_and_floor(policy);
        Terms::Loans {
            epoch: self.state.epoch,
            shares: self.shares(policy, loans, now),
            own_ppb: loans.own_ppb(base, floor, self.lent_all(policy)),
        }
    }

    pub fn transfer_terms(transfers: &Transfers) -> Terms {
        Terms::Window {
            delta: transfers.delta(),
        }
    }

    /// Until when the transfers of a window matter.
    pub fn window_keep_until(label: u64, period: Period) -> StoreMs {
        period.bounds(label.saturating_add(1)).1
    }

    /// This region's base share, and the part of it that is never lent. Nothing of either while the life may not admit.
    pub fn base_and_floor(&self, policy: &Policy) -> (u64, u64) {
        if !self.state.may_admit() {
            return (0, 0);
        }
        let base = policy.base_ppb(&self.state.region);
        // By the smallest limits, so that regions that see different plans of a key lend the same parts.
        let least = policy.smallest();
        (base, floor_ppb(base, least.capacity(&policy.algorithm)))
    }

    /// What may be lent of the base at `now`: nothing while all of it counts as lent.
    pub fn lendable_ppb(&self, policy: &Policy, now: StoreMs) -> u64 {
        let (base, floor) = self.base_and_floor(policy);
        match self.lent_all(policy) {
            Some(lent) if now < lent.until => 0,
            _ => base - floor,
        }
    }

    /// Until when all that may be lent counts as lent. Where no other region shares the budget, nobody can have
    /// borrowed any of it.
    pub fn lent_all(&self, policy: &Policy) -> Option<LentAll> {
        self.state
            .lent_all(self.timing, policy.algorithm.counts_ms())
            .filter(|_| policy.weights.len() > 1)
    }

    fn shares(&self, policy: &Policy, loans: &Loans, now: StoreMs) -> Shares {
        let (base, floor) = self.base_and_floor(policy);
        let shares = loans.shares(base, floor, self.lent_all(policy), now);
        Shares::new(shares.into_iter().map(|(from, ppb)| Step { from, ppb }))
    }
}
