//! The world that the model moves: regions, and all that was ever said.

use super::said::{Said, Who};
use super::{BASE, Bounds, CLOCK_TICKS, FLOOR, LoansModel, Planted, RECLAIM_TICKS, ms};
use apportion_core::allotment::{LentAll, Loans};
use apportion_core::{Epoch, StoreMs};
use std::hash::{Hash, Hasher};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// True time.
    pub ticks: u8,
    pub regions: Vec<RegionNow>,
    /// All that was ever said, in order; any of it may arrive at any time.
    pub said: Vec<Said>,
    pub asks_left: u8,
    pub statements_left: u8,
    pub steps_left: u8,
    pub losses_left: u8,
}

/// A region's store, and its slow node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegionNow {
    pub life: u8,
    pub epoch: u32,
    /// What the clock is ahead of true time, by steps that were seen or will be.
    pub stepped: i8,
    /// And by one that nobody sees.
    pub is_ahead: bool,
    /// The clock has stepped, and no node has looked at it since: it is outside of the span.
    pub is_unchecked: bool,
    pub lent_all: Option<Until>,
    pub loans: Kept,
    pub node: Option<Node>,
}

/// A slow node: what it read, what it wants to swap in, and what it will tell then.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub read: Kept,
    pub next: Kept,
    pub tell: Said,
    pub is_swapped: bool,
}

/// Loans in a canonical order, so that equal ones are one state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept(Loans);

/// Until when all that may be lent counts as lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Until(pub LentAll);

// === impl Until ===

impl Hash for Until {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.until.hash(state);
    }
}

// === impl Kept ===

impl Kept {
    pub fn new(mut loans: Loans) -> Self {
        for debtor in &mut loans.lent {
            debtor.grants.sort_by_key(|g| (g.asked_at, g.reclaim_at));
        }
        let by_actor = |a: &apportion_core::Actor| (a.region.clone(), a.life);
        loans.lent.sort_by_key(|d| (by_actor(&d.to), d.epoch));
        loans.borrowed.sort_by_key(|c| by_actor(&c.from));
        Self(loans)
    }

    pub fn none(epoch: u32) -> Self {
        Self(Loans {
            epoch: Epoch(epoch),
            ..Loans::default()
        })
    }

    pub fn loans(&self) -> &Loans {
        &self.0
    }
}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Loans {
            epoch,
            lent,
            borrowed,
        } = &self.0;
        epoch.hash(state);
        lent.len().hash(state);
        for debtor in lent {
            (&debtor.to, debtor.epoch, debtor.grants.len()).hash(state);
            for grant in &debtor.grants {
                (grant.asked_at, grant.amount_ppb, grant.reclaim_at).hash(state);
            }
        }
        for credit in borrowed {
            (&credit.from, credit.epoch, credit.seen).hash(state);
            (credit.amount_ppb, credit.until).hash(state);
        }
    }
}

// === impl World ===

impl World {
    pub fn new(bounds: &Bounds) -> Self {
        let region = RegionNow {
            life: 0,
            epoch: 1,
            stepped: 0,
            is_ahead: false,
            is_unchecked: false,
            lent_all: None,
            loans: Kept::none(1),
            node: None,
        };
        Self {
            ticks: 0,
            regions: vec![region; bounds.regions],
            said: Vec::new(),
            asks_left: bounds.asks,
            statements_left: bounds.statements,
            steps_left: bounds.steps,
            losses_left: bounds.losses,
        }
    }

    pub fn who(&self, region: usize) -> Who {
        Who {
            region: region as u8,
            life: self.regions[region].life,
            epoch: self.regions[region].epoch,
        }
    }

    /// A region's own clock.
    pub fn now(&self, region: usize) -> StoreMs {
        let r = &self.regions[region];
        let ahead = i64::from(r.stepped) + i64::from(r.is_ahead);
        let ticks = CLOCK_TICKS + u64::from(self.ticks);
        StoreMs(ms(ticks.saturating_add_signed(ahead)))
    }

    /// The share that a decision would go by now.
    pub fn share(&self, model: &LoansModel, region: usize) -> u64 {
        let r = &self.regions[region];
        let loans = r.loans.loans();
        let lent_all = r.lent_all.map(|u| u.0);
        if r.is_unchecked && !model.has(Planted::ReclaimOutsideSpan) {
            return loans.own_ppb(BASE, FLOOR, lent_all);
        }
        let shares = loans.shares(BASE, FLOOR, lent_all, self.now(region));
        shares.first().map_or(0, |(_, ppb)| *ppb)
    }

    /// For each loan between two regions that are both in the life and epoch in which it was made.
    pub fn charges_cover_credits(&self, model: &LoansModel) -> bool {
        let in_use = |borrower: usize, lender: usize| {
            let b = &self.regions[borrower];
            let who = self.who(lender);
            let credits = b.loans.loans().borrowed.iter().filter(move |c| {
                !b.is_unchecked
                    && c.from == *model.actor_of(who)
                    && c.epoch.0 == who.epoch
                    && c.until > self.now(borrower)
            });
            credits.map(|c| c.amount_ppb).sum::<u64>()
        };
        let charged = |lender: usize, borrower: usize| {
            let l = &self.regions[lender];
            let at = if l.is_unchecked {
                StoreMs(0)
            } else {
                self.now(lender)
            };
            let who = self.who(borrower);
            let debtors = l.loans.loans().lent.iter();
            debtors
                .filter(|d| d.to == *model.actor_of(who) && d.epoch.0 == who.epoch)
                .map(|d| d.charge_at(at))
                .sum::<u64>()
        };
        let all = 0..self.regions.len();
        all.clone().all(|b| {
            let mut lenders = all.clone().filter(|l| *l != b);
            lenders.all(|l| in_use(b, l) <= charged(l, b))
        })
    }

    /// This world as it will be when nobody lends any more, no clock steps, stopped nodes are gone, and the time of a
    /// reclaim has passed on the slowest clock.
    pub fn left_alone(&self, model: &LoansModel) -> Self {
        let mut later = self.clone();
        for i in 0..later.regions.len() {
            if later.regions[i].is_unchecked {
                later.check_clock(model, i);
            }
            later.regions[i].is_ahead = false;
        }
        // A tick more than the reclaim, for a clock that was ahead when the timer was set.
        later.ticks += RECLAIM_TICKS as u8 + 1;
        later
    }

    /// A node looks at a clock that has stepped: a new epoch.
    pub fn check_clock(&mut self, model: &LoansModel, region: usize) {
        let now = self.now(region);
        let r = &mut self.regions[region];
        r.is_unchecked = false;
        if model.has(Planted::StepWithoutEpoch) {
            return;
        }
        r.epoch += 1;
        r.lent_all = model.lent_all(now).map(Until);
        r.loans = if model.has(Planted::EpochKeepsCredits) {
            let mut loans = r.loans.loans().clone();
            loans.epoch = Epoch(r.epoch);
            loans.lent.clear();
            Kept::new(loans)
        } else {
            Kept::new(r.loans.loans().clone().at(Epoch(r.epoch), now, 0))
        };
    }

    /// Whether something that was lent is the lender's again, with or without the borrower's word.
    pub fn came_back(&self, model: &LoansModel, early: bool) -> bool {
        self.said.iter().any(|said| {
            let Said::Grant {
                by,
                to,
                at,
                amount: 1..,
            } = said
            else {
                return false;
            };
            let (lender, borrower) = (usize::from(by.region), usize::from(to.region));
            let seen = self.regions[borrower].loans.loans().borrowed.iter();
            let taken = seen
                .filter(|c| c.from == *model.actor_of(*by))
                .any(|c| c.seen >= *at);
            let r = &self.regions[lender];
            let debtor = r.loans.loans().lent.iter().find(|d| {
                d.to == *model.actor_of(*to) && d.grants.iter().any(|g| g.asked_at >= *at)
            });
            let whole = self.who(lender) == *by
                && r.lent_all.is_none()
                && self.share(model, lender) == BASE;
            let runs =
                debtor.is_some_and(|d| d.grants.iter().any(|g| g.reclaim_at > self.now(lender)));
            taken && whole && debtor.is_some() && runs == early
        })
    }
}
