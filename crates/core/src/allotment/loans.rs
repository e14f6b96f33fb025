//! Loans of a rate: parts of a share, lent for a term.
//!
//! A lender lowers its own share before the borrower can raise its own, and takes it back only after the borrower
//! must have stopped using it. So the shares in force never add up to more than the whole, whatever is lost, late,
//! doubled or out of order; no clock is compared with another.

use super::{LentAll, Timing};
use crate::fence::SPAN_MS;
use crate::ids::{Actor, Epoch, StoreMs};
use crate::planted::{self, Bug};
use crate::schedule::PPB;
use serde::{Deserialize, Serialize};

/// A peer can have so many grants on record before they are merged into one.
const GRANTS_MAX: usize = 4;
/// Debtors and credits on record: two lives of each of 64 regions.
const PARTIES_MAX: usize = 128;

/// All loans of one key that one region is a party to, written in one of its epochs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Loans {
    pub epoch: Epoch,
    pub lent: Vec<Debtor>,
    pub borrowed: Vec<Credit>,
}

/// What one life and epoch of a peer may be using of ours.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Debtor {
    pub to: Actor,
    pub epoch: Epoch,
    pub grants: Vec<Grant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The borrower's clock when it asked.
    pub asked_at: StoreMs,
    pub amount_ppb: u64,
    /// Our clock when it is ours again.
    pub reclaim_at: StoreMs,
}

/// What we may use of a peer's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Credit {
    pub from: Actor,
    pub epoch: Epoch,
    /// The newest `asked_at` seen in a grant of this lender. Anything up to it is ignored from now on.
    pub seen: StoreMs,
    pub amount_ppb: u64,
    /// Our clock when we stop using it.
    pub until: StoreMs,
}

/// A borrower asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoanAsk {
    pub by: Actor,
    pub epoch: Epoch,
    pub asked_at: StoreMs,
    pub want_ppb: u64,
}

/// A lender's answer, the ask's stamp echoed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoanGrant {
    pub by: Actor,
    pub by_epoch: Epoch,
    pub to: Actor,
    pub to_epoch: Epoch,
    pub asked_at: StoreMs,
    pub amount_ppb: u64,
}

/// A borrower states: of all you granted me up to the stamp `up_to`, I use no more than `keep_ppb`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    pub by: Actor,
    pub epoch: Epoch,
    pub to: Actor,
    pub up_to: StoreMs,
    pub keep_ppb: u64,
}

// === impl Debtor ===

impl Debtor {
    /// What the lender charges itself: the largest grant that isn't reclaimed yet.
    pub fn charge_at(&self, now: StoreMs) -> u64 {
        if planted::is_on(Bug::NewestGrant) {
            let newest = self.grants.iter().max_by_key(|g| g.asked_at);
            return newest.map_or(0, |g| g.amount_ppb);
        }
        self.grants
            .iter()
            .filter(|g| g.reclaim_at > now)
            .map(|g| g.amount_ppb)
            .max()
            .unwrap_or(0)
    }

    fn add(&mut self, grant: Grant) {
        self.grants.push(grant);
        if self.grants.len() > GRANTS_MAX {
            let merged = merge(&self.grants, grant.asked_at);
            self.grants = vec![merged];
        }
    }
}

/// The largest amount and the latest reclaim of `grants`: never less of a charge than they were apart.
fn merge(grants: &[Grant], asked_at: StoreMs) -> Grant {
    Grant {
        asked_at,
        amount_ppb: grants.iter().map(|g| g.amount_ppb).max().unwrap_or(0),
        reclaim_at: grants
            .iter()
            .map(|g| g.reclaim_at)
            .max()
            .unwrap_or_default(),
    }
}

// === impl Loans ===

impl Loans {
    /// These loans as they stand at `now` in `epoch`. What an older epoch borrowed is dropped, and what it lent is
    /// covered by counting all as lent.
    ///
    /// `linger_ms`: for how long a credit that is over is remembered, so that its lender can be told so.
    pub fn at(mut self, epoch: Epoch, now: StoreMs, linger_ms: u64) -> Self {
        if self.epoch != epoch && planted::is_on(Bug::BorrowedAcrossEpochs) {
            self.lent.clear();
            self.epoch = epoch;
        }
        if self.epoch != epoch {
            return Self {
                epoch,
                ..Self::default()
            };
        }
        for debtor in &mut self.lent {
            debtor.grants.retain(|g| g.reclaim_at > now);
        }
        self.lent.retain(|d| !d.grants.is_empty());
        // A stamp is remembered for a span longer than it is good for: a small step back mustn't revive its grant.
        self.borrowed
            .retain(|c| c.until.plus(SPAN_MS + linger_ms) > now);
        self
    }

    /// Nothing left to remember.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.borrowed.is_empty()
    }

    /// What is lent at `now`.
    pub fn lent_at(&self, now: StoreMs) -> u64 {
        self.lent.iter().map(|d| d.charge_at(now)).sum()
    }

    /// What is lent at `now` to one life and epoch of a peer.
    pub fn lent_to(&self, to: &Actor, epoch: Epoch, now: StoreMs) -> u64 {
        let debtor = self.lent.iter().find(|d| d.to == *to && d.epoch == epoch);
        debtor.map_or(0, |d| d.charge_at(now))
    }

    pub fn borrowed_at(&self, now: StoreMs) -> u64 {
        self.borrowed
            .iter()
            .filter(|c| c.until > now)
            .map(|c| c.amount_ppb)
            .sum()
    }

    /// What is borrowed from others than the region of `from`, at `now`.
    pub fn credit_from(&self, from: &Actor, now: StoreMs) -> u64 {
        self.borrowed
            .iter()
            .filter(|c| c.from == *from && c.until > now)
            .map(|c| c.amount_ppb)
            .sum()
    }

    /// The share in force from `now` on, as steps of (moment, parts per billion).
    ///
    /// `lent_all` with `floor_ppb`: until then the region has no more of its base than its floor.
    pub fn shares(
        &self,
        base_ppb: u64,
        floor_ppb: u64,
        lent_all: Option<LentAll>,
        now: StoreMs,
    ) -> Vec<(StoreMs, u64)> {
        let mut moments = vec![now];
        moments.extend(lent_all.map(|l| l.until));
        moments.extend(
            self.lent
                .iter()
                .flat_map(|d| d.grants.iter().map(|g| g.reclaim_at)),
        );
        moments.extend(self.borrowed.iter().map(|c| c.until));
        moments.retain(|m| *m >= now);
        moments.sort_unstable();
        moments.dedup();
        moments
            .into_iter()
            .map(|t| (t, self.share_at(base_ppb, floor_ppb, lent_all, t)))
            .collect()
    }

    /// The share in force at `now`: the first of [`shares`](Self::shares).
    pub fn share_at(
        &self,
        base_ppb: u64,
        floor_ppb: u64,
        lent_all: Option<LentAll>,
        now: StoreMs,
    ) -> u64 {
        let own = base_ppb.saturating_sub(self.lent_at(now));
        let own = match lent_all {
            Some(l) if now < l.until => own.min(floor_ppb),
            _ => own,
        };
        (own + self.borrowed_at(now)).min(PPB)
    }

    /// The base that rests on no loan and on no reclaim: what may be used where the clock can't be trusted.
    pub fn own_ppb(&self, base_ppb: u64, floor_ppb: u64, lent_all: Option<LentAll>) -> u64 {
        let own = base_ppb.saturating_sub(self.lent_at(StoreMs(0)));
        if lent_all.is_some() {
            own.min(floor_ppb)
        } else {
            own
        }
    }

    /// When the last of these loans is over on our clock.
    pub fn ends_at(&self, linger_ms: u64) -> StoreMs {
        let reclaims = self
            .lent
            .iter()
            .flat_map(|d| d.grants.iter().map(|g| g.reclaim_at));
        reclaims
            .chain(
                self.borrowed
                    .iter()
                    .map(|c| c.until.plus(SPAN_MS + linger_ms)),
            )
            .max()
            .unwrap_or_default()
    }

    /// Whether `ask` is newer than the grants on record for that life and epoch of the asker. It is answered once.
    pub fn is_new(&self, ask: &LoanAsk) -> bool {
        let mut debtors = self.lent.iter();
        let debtor = debtors.find(|d| d.to == ask.by && d.epoch == ask.epoch);
        debtor.is_none_or(|d| d.grants.iter().all(|g| g.asked_at < ask.asked_at))
    }

    /// Lends `amount_ppb` in answer to `ask`. `None` where the ask isn't newer than the grants on record for that life
    /// and epoch of the asker, or would lend more than `lendable_ppb` in all.
    ///
    /// `reclaim_ms`: how long we go without it; see [`Timing::reclaim_ms`]. The grant may be sent only after these loans have been swapped in.
    #[must_use]
    pub fn lend(
        mut self,
        ask: &LoanAsk,
        amount_ppb: u64,
        lendable_ppb: u64,
        reclaim_ms: u64,
        us: &Actor,
        now: StoreMs,
    ) -> Option<(Self, LoanGrant)> {
        let others = self.lent_at(now) - self.lent_to(&ask.by, ask.epoch, now);
        if others + amount_ppb > lendable_ppb || !self.is_new(ask) {
            return None;
        }
        let grant = Grant {
            asked_at: ask.asked_at,
            amount_ppb,
            reclaim_at: now.plus(reclaim_ms),
        };
        let full = self.lent.len() >= PARTIES_MAX;
        match self
            .lent
            .iter_mut()
            .find(|d| d.to == ask.by && d.epoch == ask.epoch)
        {
            Some(debtor) => {
                debtor.add(grant);
            }
            None if full => return None,
            None => self.lent.push(Debtor {
                to: ask.by.clone(),
                epoch: ask.epoch,
                grants: vec![grant],
            }),
        }
        let answer = LoanGrant {
            by: us.clone(),
            by_epoch: self.epoch,
            to: ask.by.clone(),
            to_epoch: ask.epoch,
            asked_at: ask.asked_at,
            amount_ppb,
        };
        Some((self, answer))
    }

    /// Takes up a grant: the newest of each lender counts, until the term after its asking. `None` where it isn't
    /// ours, is of another epoch, over, or no newer than what was seen of that lender.
    #[must_use]
    pub fn take_up(
        mut self,
        grant: &LoanGrant,
        timing: Timing,
        us: &Actor,
        now: StoreMs,
    ) -> Option<Self> {
        let mut until = grant.asked_at.plus(timing.term_ms);
        if planted::is_on(Bug::TermFromReceipt) {
            until = now.plus(timing.term_ms);
        }
        // A stamp from the future is of a clock that has stepped back since.
        let is_of_epoch = grant.to_epoch == self.epoch || planted::is_on(Bug::OlderEpochGrant);
        if grant.to != *us || !is_of_epoch || until <= now || grant.asked_at > now {
            return None;
        }
        let credit = Credit {
            from: grant.by.clone(),
            epoch: grant.by_epoch,
            seen: grant.asked_at,
            amount_ppb: grant.amount_ppb,
            until,
        };
        let full = self.borrowed.len() >= PARTIES_MAX;
        match self.borrowed.iter_mut().find(|c| c.from == grant.by) {
            Some(held) if held.seen >= grant.asked_at && !planted::is_on(Bug::SeenForgotten) => {
                return None;
            }
            Some(held) => *held = credit,
            None if full => return None,
            None => self.borrowed.push(credit),
        }
        Some(self)
    }

    /// Keeps no more than `keep_ppb` of what `from` lent. To be swapped in before the statement is sent.
    #[must_use]
    pub fn keep(mut self, from: &Actor, keep_ppb: u64) -> Self {
        for credit in self.borrowed.iter_mut().filter(|c| c.from == *from) {
            credit.amount_ppb = credit.amount_ppb.min(keep_ppb);
        }
        self
    }

    /// What we can state to each of our lenders, from what is on record.
    ///
    /// Nothing is kept of a credit that is over, and has been for longer than a step back of the clock that nobody sees.
    pub fn statements(&self, us: &Actor, now: StoreMs) -> Vec<Statement> {
        let state = |c: &Credit| Statement {
            by: us.clone(),
            epoch: self.epoch,
            to: c.from.clone(),
            up_to: c.seen,
            keep_ppb: if c.until.plus(SPAN_MS) > now {
                c.amount_ppb
            } else {
                0
            },
        };
        self.borrowed.iter().map(state).collect()
    }

    /// Takes back what older epochs of `to` were granted: that life says that it is in `epoch` now, so it has dropped all
    /// that it had borrowed before, and ignores what still arrives of it.
    #[must_use]
    pub fn forget_older_epochs(mut self, to: &Actor, epoch: Epoch) -> Self {
        self.lent.retain(|d| d.to != *to || d.epoch >= epoch);
        self
    }

    /// Believes a borrower's statement: all grants up to the stamp become one of what it keeps. `None` where that
    /// changes nothing.
    #[must_use]
    pub fn believe(mut self, statement: &Statement) -> Option<Self> {
        let debtor = self
            .lent
            .iter_mut()
            .find(|d| d.to == statement.by && d.epoch == statement.epoch)?;
        let (covered, newer): (Vec<Grant>, Vec<Grant>) = debtor
            .grants
            .iter()
            .partition(|g| g.asked_at <= statement.up_to || planted::is_on(Bug::StaleReturn));
        let newest = covered.iter().map(|g| g.asked_at).max()?;
        let mut one = merge(&covered, newest);
        one.amount_ppb = one.amount_ppb.min(statement.keep_ppb);
        let grants: Vec<Grant> = std::iter::once(one).chain(newer).collect();
        if grants == debtor.grants {
            return None;
        }
        debtor.grants = grants;
        Some(self)
    }
}
