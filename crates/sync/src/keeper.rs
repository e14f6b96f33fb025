//! Keeps a node's view of its region: the life and epoch of the store, and how far its clock can be trusted.
//!
//! One cycle at a time: look at the store, put a new state if anything changed, bind to the life and write its record
//! if they changed, and only then say so. A cycle that loses a race begins anew.

use crate::track::Mono;
use apportion_core::allotment::Timing;
use apportion_core::fence::{CHECK_MS, DRIFT_PPM, Span};
use apportion_core::lives::{LifeTable, OnEmpty, RegionState, Standing};
use apportion_core::planted::{self, Bug};
use apportion_core::{Life, Record, Regime, Region, StoreMs};
use apportion_store::{Looked, Op, Reply, StoreError};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A look that took longer says too little about when the store's clock was read.
const LOOK_MAX_MS: u64 = 500;
/// Rounding of two clocks to milliseconds, and the time between them.
const SLOP_MS: u64 = 5;
/// Life tables that wait for the next cycle.
const HEARD_MAX: usize = 64;
/// After a cycle that failed.
const RETRY_MS: u64 = 200;

#[derive(Debug)]
pub(crate) struct Keeper {
    region: Region,
    peers: Vec<Region>,
    timing: Timing,
    /// The longest that anything counts, of all policies.
    counts_ms: u64,
    revision: u64,
    policies: Vec<(String, u64)>,
    on_empty: OnEmpty,
    stage: Stage,
    /// What the store held when it was last seen, by version.
    view: Option<(u64, Arc<RegionState>)>,
    span: Span,
    /// When that is over by this node's own clock. Until then it can't be told from one that the store's clock stepped back
    /// into.
    lapses_at: Mono,
    /// The record that this node knows to be in every partition.
    adopted: Option<Record>,
    attached: Option<(Life, String)>,
    last: Option<Check>,
    heard: Vec<LifeTable>,
    due: Mono,
    /// Policies whose definition isn't the one that this store has on record under the same version.
    pub(crate) redefined: BTreeSet<String>,
    /// The store has seen a node with this newer revision of the policies.
    pub(crate) behind: Option<u64>,
    /// The store holds the state of this other region, and isn't touched.
    pub(crate) foreign: Option<Region>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Looking {
        sent: Mono,
    },
    Putting {
        next: Box<RegionState>,
        span: Span,
        lapses_at: Mono,
        check: Option<Check>,
    },
    Adopting {
        record: Record,
    },
}

/// The store's clock, read between two moments of this node's.
#[derive(Clone, Copy, Debug)]
struct Check {
    sent: Mono,
    received: Mono,
    store: StoreMs,
    life: Life,
    epoch: apportion_core::Epoch,
    /// The region's anchor then.
    anchor: StoreMs,
    /// This node's looks reach back to that anchor without a gap.
    is_bridged: bool,
}

/// What a step of the keeper leads to.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Wait,
    Ask(Vec<Op>),
    /// The cycle is over; the regime may be new.
    Settled,
    /// It failed: the store is out of reach, or somebody else was faster.
    Failed,
}

impl Keeper {
    pub(crate) fn new(
        region: Region,
        peers: Vec<Region>,
        timing: Timing,
        counts_ms: u64,
        revision: u64,
        policies: Vec<(String, u64)>,
        on_empty: OnEmpty,
    ) -> Self {
        Self {
            region,
            peers,
            timing,
            counts_ms,
            revision,
            policies,
            on_empty,
            stage: Stage::Idle,
            view: None,
            span: Span::never(),
            lapses_at: Mono::MAX,
            adopted: None,
            attached: None,
            last: None,
            heard: Vec::new(),
            due: 0,
            redefined: BTreeSet::new(),
            behind: None,
            foreign: None,
        }
    }

    /// What this node may go by now. `None` before its first contact with the store, and as long as its policies
    /// aren't those that the store's counts were made under.
    pub(crate) fn regime(&self) -> Option<Regime> {
        let fits = self.redefined.is_empty() && self.behind.is_none();
        let (_, state) = self.view.as_ref().filter(|_| fits)?;
        self.adopted
            .filter(|record| *record == state.record(self.revision))?;
        Some(Regime {
            state: Arc::clone(state),
            span: self.span,
            revision: self.revision,
            timing: self.timing,
        })
    }

    /// When the span is over, unless the store is looked at before.
    pub(crate) fn lapses_at(&self) -> Mono {
        self.lapses_at
    }

    /// Trusts nothing any more once the span is over by this node's own clock, though the store's may have stepped back
    /// into it. True where that is new.
    pub(crate) fn lapse(&mut self, now: Mono) -> bool {
        let lapses = self.lapses_at <= now;
        if lapses {
            self.span = Span::never();
            self.lapses_at = Mono::MAX;
        }
        lapses
    }

    pub(crate) fn due(&self) -> Mono {
        match self.stage {
            Stage::Idle => self.due,
            _ => Mono::MAX,
        }
    }

    /// The store has to be looked at before anything else.
    pub(crate) fn look_again(&mut self, now: Mono) {
        self.adopted = None;
        self.attached = None;
        self.due = self.due.min(now);
    }

    /// Takes in what a peer says of lives. `false`: it speaks for a life that is over.
    ///
    /// A peer with other policies doesn't answer the question whether this life is the first: as long as regions don't
    /// agree on what their base shares are parts of, an empty store doesn't begin to spend one.
    pub(crate) fn hear(&mut self, table: &LifeTable, agrees: bool, now: Mono) -> bool {
        let Some((_, state)) = &self.view else {
            return false;
        };
        let mut table = table.clone();
        if !agrees {
            table.present.clear();
        }
        match state.hear(&table, &self.peers) {
            None => false,
            Some(next) => {
                if next != **state && self.heard.len() < HEARD_MAX {
                    self.heard.push(table);
                    self.due = self.due.min(now);
                }
                true
            }
        }
    }

    pub(crate) fn wake(&mut self, now: Mono) -> Step {
        if self.due() > now {
            return Step::Wait;
        }
        self.stage = Stage::Looking { sent: now };
        Step::Ask(vec![Op::Look])
    }

    pub(crate) fn replied(
        &mut self,
        now: Mono,
        replies: Vec<Result<Reply, StoreError>>,
        random: u64,
    ) -> Step {
        let first = replies.iter().find_map(|r| r.as_ref().err().cloned());
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Looking { sent } => match replies.into_iter().next() {
                Some(Ok(Reply::Looked(looked))) => self.looked(sent, now, looked, random),
                _ => self.failed(now),
            },
            Stage::Putting {
                next,
                span,
                lapses_at,
                check,
            } => match replies.into_iter().next() {
                Some(Ok(Reply::Put(version))) => {
                    self.heard.clear();
                    self.believe(version, *next, (span, lapses_at), check);
                    self.bind(now)
                }
                _ => self.failed(now),
            },
            Stage::Adopting { record } if first.is_none() => {
                self.adopted = Some(record);
                self.settled(now)
            }
            Stage::Adopting { .. } => {
                self.attached = None;
                self.failed(now)
            }
            Stage::Idle => Step::Wait,
        }
    }

    fn failed(&mut self, now: Mono) -> Step {
        self.stage = Stage::Idle;
        self.due = now + RETRY_MS;
        Step::Failed
    }

    fn settled(&mut self, now: Mono) -> Step {
        self.stage = Stage::Idle;
        self.due = if self.heard.is_empty() {
            now + CHECK_MS
        } else {
            now
        };
        Step::Settled
    }

    fn believe(
        &mut self,
        version: u64,
        state: RegionState,
        (span, lapses_at): (Span, Mono),
        check: Option<Check>,
    ) {
        self.view = Some((version, Arc::new(state)));
        self.span = span;
        self.lapses_at = lapses_at;
        self.last = check;
    }

    fn looked(&mut self, sent: Mono, received: Mono, looked: Looked, random: u64) -> Step {
        let Looked {
            now,
            fingerprint,
            state,
        } = looked;
        let quick = received - sent <= LOOK_MAX_MS;
        let stored = match &state {
            None => None,
            Some((version, bytes)) => match RegionState::from_bytes(bytes) {
                Ok(state) if state.region == self.region => Some((*version, state)),
                // Written by a later version: not ours to judge.
                Err(_) => return self.failed(received),
                Ok(state) => {
                    self.foreign = Some(state.region);
                    return self.failed(received);
                }
            },
        };
        let version = stored.as_ref().map_or(0, |(version, _)| *version);
        let fresh = Life::from_random(random);
        let (mut next, span) = match &stored {
            None => {
                let born = RegionState::on_empty(
                    &self.region,
                    fresh,
                    &fingerprint,
                    now,
                    self.on_empty,
                    &self.peers,
                );
                (born, trusted(quick, now))
            }
            Some((_, state))
                if state.fingerprint != fingerprint && planted::is_on(Bug::RollbackGoesOn) =>
            {
                let state = RegionState {
                    fingerprint,
                    ..state.clone()
                };
                self.vouch(state, sent, received, now)
            }
            Some((_, state)) if state.fingerprint != fingerprint => (
                state.clone().reborn(fresh, &fingerprint, now),
                trusted(quick, now),
            ),
            Some((_, state)) => self.vouch(state.clone(), sent, received, now),
        };
        // The store's clock was read after `sent`.
        let lapses_at = match span.contains(now) {
            true => sent + span.until.since(now),
            false => Mono::MAX,
        };
        for table in &self.heard {
            next = next.hear(table, &self.peers).unwrap_or(next);
        }
        next.revision = next.revision.max(self.revision);
        self.behind = (next.revision > self.revision).then_some(next.revision);
        self.redefined.clear();
        for (id, digest) in &self.policies {
            let known = *next.policies.entry(id.clone()).or_insert(*digest);
            if known != *digest {
                self.redefined.insert(id.clone());
            }
        }
        let check = quick.then_some(Check {
            sent,
            received,
            store: now,
            life: next.life,
            epoch: next.epoch,
            anchor: next.anchor,
            is_bridged: self.is_bridged(stored.as_ref().map(|(_, state)| state), &next),
        });
        if stored.as_ref().is_some_and(|(_, state)| *state == next) {
            self.heard.clear();
            self.believe(version, next, (span, lapses_at), check.or(self.last));
            return self.bind(received);
        }
        let put = Op::PutState {
            expect: version,
            value: next.to_bytes(),
        };
        self.stage = Stage::Putting {
            next: Box::new(next),
            span,
            lapses_at,
            check,
        };
        Step::Ask(vec![put])
    }

    /// Compares the store's clock with this node's since its last look, and goes on from the region's anchor or opens
    /// a new epoch.
    fn vouch(
        &self,
        state: RegionState,
        sent: Mono,
        received: Mono,
        now: StoreMs,
    ) -> (RegionState, Span) {
        let in_span = Span::after(state.anchor).contains(now);
        let last = self
            .last
            .filter(|c| c.life == state.life && c.epoch == state.epoch);
        let quick = received - sent <= LOOK_MAX_MS;
        let Some(last) = last else {
            // Nothing of our own to compare with yet. An anchor that is fresh is good for what is left of its span; to
            // move it takes a look more.
            if in_span {
                let span = Span::after(state.anchor);
                return (state, span);
            }
            let next = state.next_epoch(now);
            return (next, trusted(quick, now));
        };
        if received <= last.sent {
            return (state, self.span);
        }
        let least = sent.saturating_sub(last.received);
        let most = received - last.sent;
        let drift = |ms: u64| (ms * DRIFT_PPM).div_ceil(1_000_000) + SLOP_MS;
        let elapsed = now.since(last.store);
        let steady = now >= last.store.minus(SLOP_MS)
            && elapsed + drift(least) >= least
            && elapsed <= most + drift(most);
        if (!steady || !in_span) && !planted::is_on(Bug::UnseenStep) {
            let next = state.next_epoch(now);
            return (next, trusted(quick, now));
        }
        if !quick || least < CHECK_MS / 2 {
            return (state, self.span);
        }
        // Another node may have moved the region's anchor just now; ours is as good for our own calls.
        let span = Span::after(now);
        if now.since(state.anchor) < CHECK_MS / 2 {
            return (state, span);
        }
        if last.is_bridged || state.anchor > last.anchor {
            return (state.anchored(now), span);
        }
        // Nobody else moved it since our first look: the node that did is gone, and what the clock did between its last
        // look and our first nobody saw. One such gap is in the margins of every timer; two within it aren't.
        let again = state.taken_over_at != StoreMs(0)
            && now.since(state.taken_over_at) <= self.timing.reclaim_ms(self.counts_ms);
        if again {
            return (state.next_epoch(now), span);
        }
        let taken = RegionState {
            taken_over_at: now,
            ..state
        };
        (taken.anchored(now), span)
    }

    /// Whether this node's own looks reach back to the region's anchor without a gap: it set that anchor, or another
    /// node moved it between two of these looks.
    fn is_bridged(&self, before: Option<&RegionState>, next: &RegionState) -> bool {
        let last = self
            .last
            .filter(|c| c.life == next.life && c.epoch == next.epoch);
        let moved = before.is_none_or(|b| {
            b.anchor != next.anchor || b.life != next.life || b.epoch != next.epoch
        });
        moved || last.is_some_and(|last| last.is_bridged || next.anchor > last.anchor)
    }

    /// Binds to the life and writes its record wherever that isn't known to be done.
    fn bind(&mut self, now: Mono) -> Step {
        let Some((version, state)) = &self.view else {
            return self.failed(now);
        };
        if self.behind.is_some() || !self.redefined.is_empty() {
            return self.settled(now);
        }
        let record = state.record(self.revision);
        let life = (state.life, state.fingerprint.clone());
        if self.adopted == Some(record) && self.attached.as_ref() == Some(&life) {
            return self.settled(now);
        }
        let attach = Op::Attach {
            life: state.life,
            fingerprint: state.fingerprint.clone(),
        };
        let ops = vec![
            attach,
            Op::Adopt {
                state_version: *version,
                record,
            },
        ];
        self.attached = Some(life);
        self.stage = Stage::Adopting { record };
        Step::Ask(ops)
    }

    /// Whether the region's own life is settled and every peer has been heard.
    pub(crate) fn has_met_all(&self) -> bool {
        self.view.as_ref().is_some_and(|(_, state)| {
            !matches!(state.standing, Standing::Asking(_))
                && self
                    .peers
                    .iter()
                    .all(|peer| state.present.contains_key(peer))
        })
    }
}

/// The span that begins with a look, if that was quick enough to say when it was.
fn trusted(quick: bool, now: StoreMs) -> Span {
    if quick {
        Span::after(now)
    } else {
        Span::never()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_core::fence::SPAN_MS;
    use apportion_store::Memory;

    const NOW: StoreMs = StoreMs(1_800_000_000_000);

    /// Runs the keeper's cycle to its end.
    fn settle(keeper: &mut Keeper, memory: &mut Memory) {
        let mut step = keeper.wake(keeper.due());
        while let Step::Ask(ops) = step {
            let replies = ops.into_iter().map(|op| memory.apply(NOW, op)).collect();
            step = keeper.replied(1, replies, 7);
        }
        assert_eq!(step, Step::Settled);
    }

    #[test]
    fn a_span_is_over_by_the_nodes_own_clock_too() {
        let timing = Timing { term_ms: 10_000 };
        let us = Region::new("a");
        let mut keeper = Keeper::new(us, Vec::new(), timing, 0, 1, Vec::new(), OnEmpty::New);
        let mut memory = Memory::new("run");
        settle(&mut keeper, &mut memory);
        let trusts = |keeper: &Keeper| keeper.regime().expect("it is bound").span.contains(NOW);
        assert_eq!(keeper.lapses_at(), SPAN_MS);
        // The store isn't heard any more, and its clock may be anywhere.
        assert_eq!(keeper.wake(keeper.due()), Step::Ask(vec![Op::Look]));
        assert!(!keeper.lapse(SPAN_MS - 1));
        assert!(trusts(&keeper));
        assert!(keeper.lapse(SPAN_MS));
        assert!(!trusts(&keeper));
        assert!(!keeper.lapse(SPAN_MS + 1));
    }

    #[test]
    fn a_peer_with_other_policies_does_not_make_an_empty_store_a_first_one() {
        let (us, peer) = (Region::new("a"), Region::new("b"));
        let timing = Timing { term_ms: 10_000 };
        let peers = vec![peer.clone()];
        let mut keeper = Keeper::new(us.clone(), peers, timing, 0, 1, Vec::new(), OnEmpty::Ask);
        let mut memory = Memory::new("run");
        settle(&mut keeper, &mut memory);
        let asking = keeper.regime().expect("the store was reached").state;

        let life = Life::from_random(9);
        let ask = OnEmpty::Ask;
        let theirs = RegionState::on_empty(&peer, life, "", NOW, ask, std::slice::from_ref(&us));
        let heard = theirs.hear(&asking.table(), std::slice::from_ref(&us));
        let table = heard.expect("they are peers").table();
        for (agrees, may_admit) in [(false, false), (true, true)] {
            assert!(keeper.hear(&table, agrees, 1));
            settle(&mut keeper, &mut memory);
            let state = keeper.regime().expect("the store was reached").state;
            assert_eq!(state.may_admit(), may_admit);
            assert_eq!(state.standing == Standing::First, agrees);
        }
    }
}
