//! Asking the store: one call for one partition, holds for several.
//!
//! Charges in several partitions are laid as holds, all but the last; the last is charged when all the others are held,
//! and settles whether the request passes. Then the holds end. Whatever breaks in between leaves holds that expire as
//! spent: under, never over.

use crate::engine::Engine;
use crate::plan::Plan;
use crate::prepared::Prepared;
use apportion_core::fence::HOLD_MAX_MS;
use apportion_core::{Partition, StoreMs};
use apportion_store::{Decide, Decided, EndHolds, Mode, Op, Reply, Store, StoreError};

/// A hold's id is below 2^53.
const HOLD_ID_SHIFT: u32 = 64 - 53;

/// What came of asking the store, group by group of the plan.
pub(crate) struct Round {
    pub(crate) said: Vec<Said>,
    /// Holds that are still laid.
    pub(crate) held: Vec<Held>,
}

pub(crate) enum Said {
    Decided {
        decided: Decided,
        /// For each charge, whether it was put back afterwards.
        returned: Vec<bool>,
    },
    Failed(StoreError),
    /// The request was refused before this group was asked, and it couldn't be read either.
    Unread,
}

pub(crate) struct Held {
    group: usize,
    partition: Partition,
    id: u64,
    laid_at: StoreMs,
}

// === impl Engine ===

impl<S: Store> Engine<S> {
    /// Asks the store for all that the plan charges.
    pub(crate) async fn decide(&self, plan: &Plan, prepared: &Prepared) -> Round {
        if plan.groups.len() > 1 && !plan.peek {
            return self.hold_and_charge(plan, prepared).await;
        }
        let mode = if plan.peek { Mode::Peek } else { Mode::Charge };
        let groups = 0..plan.groups.len();
        Round {
            said: self.ask(plan, prepared, groups, mode).await,
            held: Vec::new(),
        }
    }

    /// Charges several partitions, all or nothing.
    async fn hold_and_charge(&self, plan: &Plan, prepared: &Prepared) -> Round {
        let id = rand::random::<u64>() >> HOLD_ID_SHIFT;
        let hold = Mode::Hold {
            id,
            ttl_ms: HOLD_MAX_MS,
        };
        let first = (0..plan.groups.len()).filter(|g| *g != plan.last);
        let mut said = self.ask(plan, prepared, first, hold).await;
        said.insert(plan.last, Said::Unread);
        let mut round = Round {
            held: laid(plan, &said, id),
            said,
        };
        if let Some(error) = round.turned_away() {
            round.said[plan.last] = Said::Failed(error.clone());
            return round;
        }
        let mut first = (0..plan.groups.len()).filter(|g| *g != plan.last);
        let all_held = first.all(|g| self.passes(plan, g, &round.said[g]));
        if all_held {
            let mut last = self.ask(plan, prepared, [plan.last], Mode::Charge).await;
            round.said[plan.last] = last.pop().unwrap_or(Said::Unread);
            if round.turned_away().is_some() {
                return round;
            }
        }
        let pass = all_held && self.passes(plan, plan.last, &round.said[plan.last]);
        let held = std::mem::take(&mut round.held);
        // What the last group would have said is told with a refusal.
        let read = (!all_held && round.refused()).then_some(plan.last);
        let (returned, last) = self.end(plan, prepared, &held, !pass, read).await;
        for (held, returned) in held.iter().zip(returned) {
            round.said[held.group].put_back(returned, !pass);
        }
        if let Some(last) = last {
            round.said[plan.last] = last;
        }
        round
    }

    async fn ask(
        &self,
        plan: &Plan,
        prepared: &Prepared,
        groups: impl IntoIterator<Item = usize>,
        mode: Mode,
    ) -> Vec<Said> {
        let ops: Vec<Op> = groups
            .into_iter()
            .map(|group| decide_op(plan, prepared, group, mode))
            .collect();
        let expected: Vec<usize> = ops.iter().map(charges_of).collect();
        let mut replies = self.store.call(ops).await.into_iter();
        let said = expected.into_iter().map(|charges| {
            let said = Said::of(replies.next(), charges);
            if let Said::Failed(error) = &said {
                self.note_look_again(error);
            }
            said
        });
        said.collect()
    }

    /// Puts back what a round left held when it was turned away.
    pub(crate) async fn let_go(&self, plan: &Plan, prepared: &Prepared, held: &[Held]) {
        self.end(plan, prepared, held, true, None).await;
    }

    /// Ends holds; says of each which charges it found. With it goes a look at a group that wasn't asked.
    ///
    /// The answer doesn't hang on it: a hold that isn't ended expires as spent.
    async fn end(
        &self,
        plan: &Plan,
        prepared: &Prepared,
        held: &[Held],
        release: bool,
        read: Option<usize>,
    ) -> (Vec<Vec<bool>>, Option<Said>) {
        // By partition, not by group: the plan may be newer than the hold.
        let charges = |held: &Held| {
            let group = plan.groups.iter().position(|p| *p == held.partition)?;
            Some(plan.charges(group, prepared))
        };
        let ends = held.iter().filter_map(|held| {
            Some(Op::EndHolds(EndHolds {
                fence: prepared.fence(),
                partition: held.partition,
                id: held.id,
                laid_at: held.laid_at,
                release,
                charges: charges(held)?,
            }))
        });
        let mut ops: Vec<Op> = ends.collect();
        let ends = ops.len();
        if let Some(group) = read {
            ops.push(decide_op(plan, prepared, group, Mode::Peek));
        }
        if ops.is_empty() {
            return (Vec::new(), None);
        }
        let mut replies = self.store.call(ops).await.into_iter();
        let returned = (0..ends).map(|_| match replies.next() {
            Some(Ok(Reply::Ended(found))) => found,
            other => {
                let error = error_of(other);
                self.note_look_again(&error);
                tracing::debug!(%error, release, "a hold is left to expire as spent");
                Vec::new()
            }
        });
        let returned: Vec<Vec<bool>> = returned.collect();
        let read = read.map(
            |g| match Said::of(replies.next(), plan.members(g).count()) {
                Said::Failed(error) => {
                    self.note_look_again(&error);
                    Said::Unread
                }
                said => said,
            },
        );
        (returned, read)
    }
}

// === impl Round ===

impl Round {
    /// Why the store turned something away, if that is all that failed: because this node's picture of it is old.
    ///
    /// Nothing failed then that may have been executed, so the request may be asked again.
    pub(crate) fn turned_away(&self) -> Option<&StoreError> {
        let mut errors = self.said.iter().filter_map(|s| match s {
            Said::Failed(error) => Some(error),
            Said::Decided { .. } | Said::Unread => None,
        });
        let first = errors.next()?;
        (wants_a_look(first) && errors.all(wants_a_look)).then_some(first)
    }

    fn refused(&self) -> bool {
        let refused = |s: &Said| matches!(s, Said::Decided { decided, .. } if !decided.admitted);
        self.said.iter().any(refused)
    }
}

// === impl Said ===

impl Said {
    fn of(reply: Option<Result<Reply, StoreError>>, charges: usize) -> Self {
        match reply {
            Some(Ok(Reply::Decided(decided))) if decided.answers.len() == charges => {
                Self::Decided {
                    decided,
                    returned: Vec::new(),
                }
            }
            other => Self::Failed(error_of(other)),
        }
    }

    fn put_back(&mut self, found: Vec<bool>, release: bool) {
        if let Self::Decided { returned, .. } = self
            && release
        {
            *returned = found;
        }
    }
}

fn laid(plan: &Plan, said: &[Said], id: u64) -> Vec<Held> {
    let held = said.iter().enumerate().filter_map(|(group, s)| match s {
        Said::Decided { decided, .. } if decided.admitted => Some(Held {
            group,
            partition: plan.groups[group],
            id,
            laid_at: decided.now,
        }),
        _ => None,
    });
    held.collect()
}

fn decide_op(plan: &Plan, prepared: &Prepared, group: usize, mode: Mode) -> Op {
    Op::Decide(Decide {
        fence: prepared.fence(),
        partition: plan.groups[group],
        mode,
        charges: plan.charges(group, prepared),
    })
}

fn charges_of(op: &Op) -> usize {
    match op {
        Op::Decide(decide) => decide.charges.len(),
        _ => 0,
    }
}

pub(crate) fn wants_a_look(error: &StoreError) -> bool {
    matches!(error, StoreError::Fenced(_) | StoreError::LookAgain)
}

/// The error of a reply that isn't the one expected. Another reply was executed, whatever it was.
fn error_of(reply: Option<Result<Reply, StoreError>>) -> StoreError {
    match reply {
        Some(Err(error)) => error,
        Some(Ok(_)) => StoreError::Unknown("a reply of another kind".into()),
        None => StoreError::Unknown("no reply".into()),
    }
}
