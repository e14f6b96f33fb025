//! Asking the store: one call for one partition, holds for several.
//!
//! Charges in several partitions are laid as holds, all but the last; the last is charged when all the others are held,
//! and settles whether the request passes. Then the holds end. Whatever breaks in between leaves holds that expire as
//! spent: under, never over.

use crate::denied::Asked;
use crate::engine::Engine;
use crate::plan::Plan;
use crate::prepared::Prepared;
use crate::remember::Kept;
use apportion_core::fence::HOLD_MAX_MS;
use apportion_core::policy::PPM;
use apportion_core::{Partition, StoreMs};
use apportion_store::{
    Charge, Decide, Decided, EndHolds, Mode, Op, Remember, Reply, Store, StoreError,
};

/// A hold's id is below 2^53.
const HOLD_ID_SHIFT: u32 = 64 - 53;
/// A cost that nothing has room for beside the whole limit, also where doubles round.
const NEVER_FITS: u64 = 1_000;

/// What came of asking the store, group by group of the plan.
pub(crate) struct Round {
    pub(crate) said: Vec<Said>,
    /// Holds that are still laid.
    pub(crate) held: Vec<Held>,
    /// That of its holds and slots.
    pub(crate) id: u64,
    /// All that was said is what a request of the same name was told before.
    pub(crate) replayed: bool,
    /// Holds may be laid still that should have been put back: they will count as spent.
    pub(crate) in_doubt: bool,
    /// When the store was asked.
    pub(crate) asked: Asked,
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
        let mut round = Round {
            said: Vec::new(),
            held: Vec::new(),
            id: rand::random::<u64>() >> HOLD_ID_SHIFT,
            replayed: false,
            in_doubt: false,
            asked: self.shared.denied.ask(),
        };
        if plan.groups.len() > 1 && !plan.peek {
            return self.hold_and_charge(plan, prepared, round).await;
        }
        let mode = if plan.peek { Mode::Peek } else { Mode::Charge };
        let remember = plan.remember(round.id, &[]);
        let decide = |group| Decide {
            remember: remember.clone(),
            ..decide(plan, prepared, group, round.id, mode)
        };
        let decides = (0..plan.groups.len()).map(decide).collect();
        round.said = self.ask(decides).await;
        round.replay(plan);
        round
    }

    /// Charges several partitions, all or nothing.
    async fn hold_and_charge(&self, plan: &Plan, prepared: &Prepared, mut round: Round) -> Round {
        let hold = Mode::Hold {
            ttl_ms: HOLD_MAX_MS,
        };
        let first = (0..plan.groups.len()).filter(|g| *g != plan.last);
        let holds = first.map(|group| decide(plan, prepared, group, round.id, hold));
        round.said = self.ask(holds.collect()).await;
        let remember = plan.remember(round.id, &round.said);
        round.said.insert(plan.last, Said::Unread);
        round.held = laid(plan, &round.said, round.id);
        if let Some(error) = round.turned_away() {
            round.said[plan.last] = Said::Failed(error.clone());
            return round;
        }
        let mut first = (0..plan.groups.len()).filter(|g| *g != plan.last);
        let all_held = first.all(|g| self.passes(plan, g, &round.said[g]));
        if all_held {
            let charge = Decide {
                remember,
                ..decide(plan, prepared, plan.last, round.id, Mode::Charge)
            };
            let mut last = self.ask(vec![charge]).await;
            round.said[plan.last] = last.pop().unwrap_or(Said::Unread);
            if round.turned_away().is_some() || round.is_reused() {
                return round;
            }
            round.replay(plan);
        }
        self.settle(plan, prepared, &mut round, all_held).await;
        round
    }

    /// Ends the holds of a round: as charged if the request passes, else put back.
    async fn settle(&self, plan: &Plan, prepared: &Prepared, round: &mut Round, all_held: bool) {
        let last = &round.said[plan.last];
        let is_new = !round.replayed && !round.is_reused();
        let pass = all_held && is_new && self.passes(plan, plan.last, last);
        // If it was charged after all, a retry is told so, and isn't charged in the other partitions.
        let may_have_passed =
            plan.name.is_some() && matches!(last, Said::Failed(e) if e.outcome_unknown());
        let release = !pass && !may_have_passed;
        let mut held = std::mem::take(&mut round.held);
        let mut then = Vec::new();
        if !all_held && round.refused() {
            // What the last group would have said is told with a refusal; and what it has said, to a retry.
            let peek = decide(plan, prepared, plan.last, round.id, Mode::Peek);
            then.push(Op::Decide(peek));
            then.extend(recall(plan, prepared, round.id).map(Op::Decide));
        }
        let (returned, then) = self.end(plan, prepared, &held, release, then).await;
        round.in_doubt = release && returned.iter().any(Vec::is_empty);
        if !round.replayed {
            for (held, returned) in held.iter().zip(&returned) {
                round.said[held.group].put_back(returned.clone(), release);
            }
        }
        let charges = plan.members(plan.last).count();
        for (place, reply) in then.into_iter().enumerate() {
            let said = Said::of(Some(reply), charges);
            match (place, said) {
                (_, Said::Failed(StoreError::RequestIdReused)) => {
                    round.said[plan.last] = Said::Failed(StoreError::RequestIdReused);
                }
                (_, Said::Failed(error)) => self.note_look_again(&error),
                (0, said) => round.said[plan.last] = said,
                (_, Said::Decided { decided, .. }) if decided.replayed.is_some() => {
                    round.said[plan.last] = Said::decided(decided);
                    round.replay(plan);
                }
                _ => {}
            }
        }
        if !release {
            // A slot that isn't taken for its time is free too soon.
            let mut returned = returned.into_iter();
            held.retain(|held| {
                returned.next().is_some_and(|found| found.is_empty())
                    && plan.members(held.group).any(|m| plan.takes_slots(m))
            });
            self.end(plan, prepared, &held, release, Vec::new()).await;
        }
    }

    async fn ask(&self, decides: Vec<Decide>) -> Vec<Said> {
        let mut decides = decides;
        let expected: Vec<usize> = decides.iter().map(|d| d.charges.len()).collect();
        let carried = self.carry(&mut decides);
        let ops = decides.into_iter().map(Op::Decide).collect();
        let mut replies = self.store.call(ops).await.into_iter();
        let said = expected.into_iter().map(|charges| {
            let said = Said::of(replies.next(), charges);
            if let Said::Failed(error) = &said {
                self.note_look_again(error);
            }
            said
        });
        let said: Vec<Said> = said.collect();
        self.bring_back(carried, &said);
        said
    }

    /// Puts back what a round left held when it was turned away; false where some of it may be held still.
    pub(crate) async fn let_go(&self, plan: &Plan, prepared: &Prepared, held: &[Held]) -> bool {
        let (returned, _) = self.end(plan, prepared, held, true, Vec::new()).await;
        !returned.iter().any(Vec::is_empty)
    }

    /// Ends holds; says of each which charges it found. In the same call goes what is to be asked `then`.
    ///
    /// The answer doesn't hang on it: a hold that isn't ended expires as spent.
    async fn end(
        &self,
        plan: &Plan,
        prepared: &Prepared,
        held: &[Held],
        release: bool,
        then: Vec<Op>,
    ) -> (Vec<Vec<bool>>, Vec<Result<Reply, StoreError>>) {
        // By partition, not by group: the plan may be newer than the hold.
        let charges = |held: &Held| {
            let mut groups = plan.groups.iter();
            let group = groups.position(|g| g.partition == held.partition)?;
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
        ops.extend(then);
        if ops.is_empty() {
            return (Vec::new(), Vec::new());
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
        if release {
            let groups = plan.groups.iter().enumerate();
            let ended = groups.filter(|(_, g)| held.iter().any(|h| h.partition == g.partition));
            for matched in ended.flat_map(|(group, _)| plan.members(group)) {
                self.shared.denied.changed(&matched.key);
            }
        }
        (returned, replies.collect())
    }
}

// === impl Plan ===

impl Plan {
    /// How the request is to be known again, where its caller named it.
    fn remember(&self, id: u64, others: &[Said]) -> Option<Remember> {
        let name = self.name.as_ref()?;
        Some(Remember {
            id: name.id.clone(),
            content: name.content,
            others: Kept::new(id, others).to_bytes(),
        })
    }
}

fn decide(plan: &Plan, prepared: &Prepared, group: usize, id: u64, mode: Mode) -> Decide {
    Decide {
        fence: prepared.fence(),
        partition: plan.groups[group].partition,
        id,
        mode,
        charges: plan.charges(group, prepared),
        remember: None,
    }
}

/// Asks whether the request was admitted before, and for nothing else: a charge that has to leave the whole limit is
/// never admitted, and one of no units isn't counted.
fn recall(plan: &Plan, prepared: &Prepared, id: u64) -> Option<Decide> {
    let remember = plan.remember(id, &[])?;
    let mut decide = decide(plan, prepared, plan.last, id, Mode::Charge);
    decide.charges.truncate(1);
    for charge in &mut decide.charges {
        *charge = Charge {
            cost: NEVER_FITS,
            units: 0,
            reserve_ppm: u32::try_from(PPM).expect("a million"),
            shadow: false,
            member: None,
            ..charge.clone()
        };
    }
    decide.remember = Some(remember);
    Some(decide)
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

    /// The request's name is another one's.
    pub(crate) fn is_reused(&self) -> bool {
        let reused = |s: &Said| matches!(s, Said::Failed(StoreError::RequestIdReused));
        self.said.iter().any(reused)
    }

    fn refused(&self) -> bool {
        let refused = |s: &Said| matches!(s, Said::Decided { decided, .. } if !decided.admitted);
        self.said.iter().any(refused)
    }

    /// Where the last group answered as it did before, makes all of it the answer that was given then.
    fn replay(&mut self, plan: &Plan) {
        let Some(Said::Decided { decided, .. }) = self.said.get_mut(plan.last) else {
            return;
        };
        let Some(kept) = decided.replayed.take() else {
            return;
        };
        let last = Said::decided(decided.clone());
        let kept = Kept::from_bytes(&kept).map(|kept| (kept.id, kept.into_said()));
        if let Some((id, mut said)) = kept
            && said.len() + 1 == plan.groups.len()
        {
            said.insert(plan.last, last);
            if said.iter().enumerate().all(|(g, s)| s.answers(plan, g)) {
                self.said = said;
                self.id = id;
                self.replayed = true;
                return;
            }
        }
        self.said[plan.last] = Said::Failed(StoreError::RequestIdReused);
    }
}

// === impl Said ===

impl Said {
    pub(crate) fn decided(decided: Decided) -> Self {
        Self::Decided {
            decided,
            returned: Vec::new(),
        }
    }

    fn of(reply: Option<Result<Reply, StoreError>>, charges: usize) -> Self {
        match reply {
            Some(Ok(Reply::Decided(decided))) if decided.answers.len() == charges => {
                Self::decided(decided)
            }
            // Nothing was charged: an earlier request of this name had other charges.
            Some(Ok(Reply::Decided(decided))) if decided.replayed.is_some() => {
                Self::Failed(StoreError::RequestIdReused)
            }
            other => Self::Failed(error_of(other)),
        }
    }

    /// Whether it can be an answer of the group.
    fn answers(&self, plan: &Plan, group: usize) -> bool {
        match self {
            Self::Decided { decided, .. } => decided.answers.len() == plan.members(group).count(),
            Self::Failed(_) | Self::Unread => true,
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
            partition: plan.groups[group].partition,
            id,
            laid_at: decided.now,
        }),
        _ => None,
    });
    held.collect()
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
