//! What can happen next, and what comes of it.

use super::said::{Said, Who};
use super::state::{Kept, Node, Until, World};
use super::{LENDABLE, LoansModel, Planted, STEP_TICKS};
use apportion_core::allotment::Loans;
use apportion_core::{Epoch, StoreMs};

/// Regions by number; things said by their place among all that was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// True time passes.
    Tick,
    /// A step of the clock, there or back, that nobody sees.
    Wobble(usize),
    /// A step that the next look at the clock sees.
    Step(usize, i8),
    /// The look.
    Check(usize),
    /// The store is lost, or rolled back: a new life.
    Lose(usize),
    Ask {
        by: usize,
        of: usize,
    },
    /// A quick node answers an ask.
    Lend {
        ask: Said,
        amount: u64,
    },
    /// The slow node works out an answer.
    Plan {
        ask: Said,
        amount: u64,
    },
    /// It swaps it in, if nothing has changed.
    Swap(usize),
    /// It tells.
    Tell(usize),
    /// It stops for good.
    Crash(usize),
    TakeUp(Said),
    /// A borrower lowers its own share.
    Keep {
        by: usize,
        of: usize,
        keep: u64,
    },
    /// And says so.
    State {
        by: usize,
        to: usize,
    },
    Believe(Said),
}

impl LoansModel {
    pub(super) fn enumerate(&self, world: &World, actions: &mut Vec<Action>) {
        let b = &self.bounds;
        if world.ticks < b.ticks {
            actions.push(Action::Tick);
        }
        for i in 0..b.regions {
            self.enumerate_region(world, i, actions);
        }
        for said in &world.said {
            let to = said.to();
            if world.regions[to].is_unchecked {
                continue;
            }
            match *said {
                Said::Ask { .. } => {
                    for amount in [1, LENDABLE] {
                        let ask = *said;
                        actions.push(Action::Lend { ask, amount });
                        if b.slow && world.regions[to].node.is_none() {
                            actions.push(Action::Plan { ask, amount });
                        }
                    }
                    if self.has(Planted::Relending) {
                        let borrowed = world.regions[to].loans.loans().borrowed_at(world.now(to));
                        let amount = LENDABLE + borrowed;
                        actions.push(Action::Lend { ask: *said, amount });
                    }
                }
                Said::Grant { .. } => actions.push(Action::TakeUp(*said)),
                Said::Statement { .. } => actions.push(Action::Believe(*said)),
            }
        }
    }

    fn enumerate_region(&self, world: &World, i: usize, actions: &mut Vec<Action>) {
        let r = &world.regions[i];
        if self.bounds.wobble {
            actions.push(Action::Wobble(i));
        }
        if world.steps_left > 0 {
            let by = STEP_TICKS as i8;
            actions.extend([Action::Step(i, by), Action::Step(i, -by)]);
        }
        if world.losses_left > 0 {
            actions.push(Action::Lose(i));
        }
        if let Some(node) = &r.node {
            actions.push(Action::Crash(i));
            actions.push(if node.is_swapped {
                Action::Tell(i)
            } else {
                Action::Swap(i)
            });
        }
        if r.is_unchecked {
            actions.push(Action::Check(i));
            return;
        }
        for j in (0..self.bounds.regions).filter(|j| *j != i) {
            if world.asks_left > 0 {
                actions.push(Action::Ask { by: i, of: j });
            }
            let credits = r.loans.loans().borrowed.iter();
            let lent_by_j =
                |c: &&apportion_core::allotment::Credit| c.from.region == self.actor(j, 0).region;
            for credit in credits.filter(lent_by_j) {
                for keep in 0..credit.amount_ppb {
                    actions.push(Action::Keep { by: i, of: j, keep });
                }
                if world.statements_left > 0 {
                    actions.push(Action::State { by: i, to: j });
                }
            }
        }
    }

    pub(super) fn apply(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick => next.ticks += 1,
            Action::Wobble(i) => next.regions[i].is_ahead ^= true,
            Action::Step(i, by) => {
                next.steps_left -= 1;
                next.regions[i].stepped += by;
                next.regions[i].is_unchecked = true;
            }
            Action::Check(i) => next.check_clock(self, i),
            Action::Lose(i) => self.lose(&mut next, i),
            Action::Ask { by, of } => {
                next.asks_left -= 1;
                let ask = Said::Ask {
                    by: world.who(by),
                    to: of as u8,
                    at: world.now(by),
                };
                say(&mut next, ask)?;
            }
            Action::Lend { ask, amount } => {
                let (loans, grant) = self.lend(world, ask, amount)?;
                next.regions[ask.to()].loans = loans;
                say(&mut next, grant)?;
            }
            Action::Plan { ask, amount } => {
                let (loans, grant) = self.lend(world, ask, amount)?;
                let r = &mut next.regions[ask.to()];
                r.node = Some(Node {
                    read: r.loans.clone(),
                    next: loans,
                    tell: grant,
                    is_swapped: false,
                });
                if self.has(Planted::RaiseBeforeLower) {
                    say(&mut next, grant)?;
                }
            }
            Action::Swap(i) => self.swap(&mut next, i)?,
            Action::Tell(i) => {
                let node = next.regions[i].node.take()?;
                say(&mut next, node.tell)?;
            }
            Action::Crash(i) => next.regions[i].node = None,
            Action::TakeUp(grant) => {
                let loans = self.take_up(world, grant)?;
                next.regions[grant.to()].loans = loans;
            }
            Action::Keep { by, of, keep } => {
                let from = self.lender_of(world, by, of)?;
                let loans = self.loans_now(world, by).keep(from, keep);
                next.regions[by].loans = Kept::new(loans);
            }
            Action::State { by, to } => {
                next.statements_left -= 1;
                let statement = self.state(world, by, to)?;
                say(&mut next, statement)?;
            }
            Action::Believe(statement) => {
                let loans = self.believe(world, statement)?;
                next.regions[statement.to()].loans = loans;
            }
        }
        (next != *world).then_some(next)
    }

    /// The loans of a region as a plan finds them.
    fn loans_now(&self, world: &World, i: usize) -> Loans {
        let r = &world.regions[i];
        let mut loans = r.loans.loans().clone();
        let now = world.now(i);
        if self.has(Planted::SeenForgotten) {
            loans.borrowed.retain(|c| c.until > now);
        }
        loans.at(Epoch(r.epoch), now, 0)
    }

    fn lend(&self, world: &World, ask: Said, amount: u64) -> Option<(Kept, Said)> {
        let Said::Ask { by, at, .. } = ask else {
            return None;
        };
        let us = ask.to();
        let now = world.now(us);
        let lent_all = world.regions[us].lent_all.map(|u| u.0);
        if lent_all.is_some_and(|l| now < l.until) {
            return None;
        }
        let loans = self.heard(world, us, by);
        let borrowed = loans.borrowed_at(now);
        let lendable = if self.has(Planted::Relending) {
            LENDABLE + borrowed
        } else {
            LENDABLE
        };
        let ask = self.ask(by, at);
        let actor = self.actor_of(world.who(us));
        let (mut loans, grant) =
            loans.lend(&ask, amount, lendable, self.reclaim_ms(), actor, now)?;
        if self.has(Planted::NewestNotLargest) {
            let debtor = loans.lent.iter_mut().find(|d| d.to == ask.by)?;
            debtor.grants.retain(|g| g.asked_at == at);
        }
        let said = Said::Grant {
            by: world.who(us),
            to: by,
            at: grant.asked_at,
            amount: grant.amount_ppb,
        };
        Some((Kept::new(loans), said))
    }

    /// The loans of a region that has a message from `by`.
    fn heard(&self, world: &World, us: usize, by: Who) -> Loans {
        let loans = self.loans_now(world, us);
        loans.forget_older_epochs(self.actor_of(by), Epoch(by.epoch))
    }

    fn swap(&self, next: &mut World, i: usize) -> Option<()> {
        let r = &mut next.regions[i];
        if r.is_unchecked {
            return None;
        }
        let node = r.node.as_mut()?;
        let same_epoch = node.next.loans().epoch.0 == r.epoch;
        let is_same = node.read == r.loans || self.has(Planted::BlindSwap);
        if !same_epoch || !is_same {
            r.node = None;
            return Some(());
        }
        r.loans = node.next.clone();
        node.is_swapped = true;
        Some(())
    }

    fn take_up(&self, world: &World, grant: Said) -> Option<Kept> {
        let Said::Grant {
            by,
            mut to,
            at,
            amount,
        } = grant
        else {
            return None;
        };
        let us = grant.to();
        let who = world.who(us);
        if self.has(Planted::OldLifeAccepted) {
            to = who;
        }
        if self.has(Planted::OldEpochAccepted) {
            to.epoch = who.epoch;
        }
        let mut loans = self.heard(world, us, by);
        if self.has(Planted::OlderTakenUp) {
            loans.borrowed.retain(|c| c.seen <= at);
        }
        let grant = self.grant(by, to, at, amount);
        let now = world.now(us);
        let taken = loans.take_up(&grant, Self::timing(), self.actor_of(who), now)?;
        Some(Kept::new(taken))
    }

    fn lender_of(&self, world: &World, by: usize, of: usize) -> Option<&apportion_core::Actor> {
        let region = &self.actor(of, 0).region;
        let loans = world.regions[by].loans.loans();
        let credit = loans.borrowed.iter().find(|c| c.from.region == *region)?;
        self.actors[of].iter().find(|a| **a == credit.from)
    }

    fn state(&self, world: &World, by: usize, to: usize) -> Option<Said> {
        let us = self.actor_of(world.who(by));
        let loans = self.loans_now(world, by);
        let region = &self.actor(to, 0).region;
        let statement = loans
            .statements(us, world.now(by))
            .into_iter()
            .find(|s| s.to.region == *region)?;
        let keep = if self.has(Planted::StatedBeforeLowered) {
            0
        } else {
            statement.keep_ppb
        };
        Some(Said::Statement {
            by: world.who(by),
            to: self.who_is(&statement.to, Epoch(1)),
            up_to: statement.up_to,
            keep,
        })
    }

    fn believe(&self, world: &World, statement: Said) -> Option<Kept> {
        let Said::Statement {
            by,
            to,
            mut up_to,
            keep,
        } = statement
        else {
            return None;
        };
        let us = statement.to();
        if world.regions[us].life != to.life {
            return None;
        }
        if self.has(Planted::StaleReturn) {
            up_to = StoreMs::MAX;
        }
        let loans = self.heard(world, us, by);
        let believed = loans.believe(&self.statement(by, to, up_to, keep))?;
        Some(Kept::new(believed))
    }

    fn lose(&self, next: &mut World, i: usize) {
        let now = next.now(i);
        next.losses_left -= 1;
        let r = &mut next.regions[i];
        r.node = None;
        r.loans = Kept::none(r.epoch);
        if self.has(Planted::RollbackWithoutLife) {
            return;
        }
        r.life += 1;
        r.epoch = 1;
        r.is_unchecked = false;
        r.lent_all = self.lent_all(now).map(Until);
        r.loans = Kept::none(1);
    }
}

/// `None` where it was said before, in the same words.
fn say(world: &mut World, said: Said) -> Option<()> {
    let place = world.said.binary_search(&said).err()?;
    world.said.insert(place, said);
    Some(())
}
