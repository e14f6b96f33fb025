//! Keeps a node's view of its region: the life and epoch of the store, and how far its clock can be trusted.
//!
//! One cycle at a time: look at the store, put a new state if anything changed, bind to the life and write its record
//! if they changed, and only then say so. A cycle that loses a race begins anew.

use crate::machine::PeerView;
use crate::track::Mono;
use apportion_core::allotment::Timing;
use apportion_core::fence::{CHECK_MS, DRIFT_PPM, Span};
use apportion_core::lives::{LifeTable, OnEmpty, RegionState, Stage as ClosingStage, Standing};
use apportion_core::planted::{self, Bug};
use apportion_core::rollout::{Budget, Now, Refusal, Told, ToldRevision};
use apportion_core::{Life, Policy, PolicySet, Record, Regime, Region, StoreMs};
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
/// What an operator wants is forgotten if it couldn't be begun for so long.
const WISH_MS: u64 = 5_000;

/// What an operator wants, until it is done.
#[derive(Clone, Copy, Debug)]
struct Pending {
    wish: Wish,
    until: Mono,
    /// The present cycle has it in mind.
    in_hand: bool,
}

/// What an operator wants of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// To stop, so that the store can be restarted without loss.
    Close,
    /// To go on.
    Open,
    /// To go on at once in a new life, as after a loss.
    OpenAsLost,
}

#[derive(Debug)]
pub(crate) struct Keeper {
    region: Region,
    peers: Vec<Region>,
    timing: Timing,
    /// The longest that anything counts, of all policies.
    counts_ms: u64,
    policies: Arc<PolicySet>,
    revision: u64,
    revision_digest: u64,
    /// Of each policy by name@version: of what can't change under it, and of the whole.
    digests: Vec<(String, u64, u64)>,
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
    wish: Option<Pending>,
    /// Counts what operators wanted and was done, or was done already.
    pub(crate) wishes_done: u64,
    /// Regions that are to be taken down as off for good.
    retiring: BTreeSet<Region>,
    /// The newest revision that any region goes by.
    newest_heard: u64,
    due: Mono,
    /// Policies whose definition isn't the one that this store has on record under the same version.
    pub(crate) redefined: BTreeSet<String>,
    /// Why this node's file can't be gone by here.
    pub(crate) refusal: Option<Refusal>,
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
        policies: Arc<PolicySet>,
        on_empty: OnEmpty,
    ) -> Self {
        Self {
            region,
            peers,
            timing,
            counts_ms,
            revision: policies.revision,
            revision_digest: policies.revision_digest(),
            digests: policies
                .policies
                .iter()
                .map(|p| (p.id(), policies.state_digest(p), policies.policy_digest(p)))
                .collect(),
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
            wish: None,
            wishes_done: 0,
            retiring: BTreeSet::new(),
            newest_heard: 0,
            due: 0,
            redefined: BTreeSet::new(),
            refusal: None,
            foreign: None,
        }
    }

    /// What this node may go by now. `None` before its first contact with the store, and as long as its policies
    /// aren't those that the store's counts were made under.
    pub(crate) fn regime(&self) -> Option<Regime> {
        let fits = self.redefined.is_empty() && self.refusal.is_none();
        let (_, state) = self.view.as_ref().filter(|_| fits)?;
        if state.is_shut() {
            return None;
        }
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

    /// The region's state as this node last saw it.
    pub(crate) fn state(&self) -> Option<&Arc<RegionState>> {
        self.view.as_ref().map(|(_, state)| state)
    }

    /// The state of a region that is closed: there is nothing to go by, but something to say.
    pub(crate) fn sealed(&self) -> Option<&Arc<RegionState>> {
        self.state().filter(|state| state.is_sealed())
    }

    pub(crate) fn stage(&self) -> Option<ClosingStage> {
        let closing = self.state()?.closing.as_ref();
        closing.map(|closing| closing.stage)
    }

    pub(crate) fn wish(&mut self, wish: Wish, now: Mono) {
        self.wish = Some(Pending {
            wish,
            until: now + WISH_MS,
            in_hand: false,
        });
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
        let newest = table.rollout.revisions.last().map_or(0, |r| r.number);
        self.newest_heard = self.newest_heard.max(newest);
        let mut table = table.clone();
        if !agrees {
            table.present.clear();
        }
        match state.hear(&table, &self.peers) {
            None => false,
            Some(next) => {
                // A store that is closed isn't written to any more.
                let listens = self.stage() != Some(ClosingStage::Closed);
                if listens && next != **state && self.heard.len() < HEARD_MAX {
                    self.heard.push(table);
                    self.due = self.due.min(now);
                }
                true
            }
        }
    }

    /// The operator's word that a region's store is off for good.
    pub(crate) fn retire(&mut self, region: Region, now: Mono) {
        self.retiring.insert(region);
        self.due = self.due.min(now);
    }

    /// Notes which revision a peer goes by.
    pub(crate) fn compare(&self, told: &Told, peer: &mut PeerView) {
        let ours = (self.revision, self.revision_digest);
        let other = |r: &ToldRevision| r.number == ours.0 && r.digest != ours.1;
        peer.revision = told.revisions.last().map(|r| r.number);
        peer.conflicts = told.revisions.iter().any(other);
    }

    /// Regions whose word is waited for before older revisions are left behind.
    pub(crate) fn waits_for(&self) -> BTreeSet<Region> {
        let Some(state) = self.state().filter(|_| self.refusal.is_none()) else {
            return BTreeSet::new();
        };
        state
            .rollout
            .waits_for(&self.rollout_now(state, state.anchor))
    }

    fn rollout_now<'a>(&'a self, state: &RegionState, now: StoreMs) -> Now<'a> {
        Now {
            region: &self.region,
            peers: &self.peers,
            policies: &self.policies.policies,
            timing: self.timing,
            epoch_began: state.epoch_began,
            now,
            high_water: state.high_water,
            is_first: state.standing == Standing::First,
            is_asking: matches!(state.standing, Standing::Asking(_)),
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
                    self.retiring
                        .retain(|region| !next.rollout.is_retired(region));
                    self.believe(version, *next, (span, lapses_at), check);
                    self.bind(now)
                }
                _ => self.failed(now),
            },
            Stage::Adopting { record } if first.is_none() => {
                self.adopted = Some(record);
                self.bound(now)
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
        let newest = self.state().and_then(|state| state.rollout.newest());
        let to_be_noted =
            self.refusal.is_none() && newest.is_some_and(|newest| newest.adopted_at.is_none());
        let idle = self.heard.is_empty() && self.retiring.is_empty() && !to_be_noted;
        self.due = if idle { now + CHECK_MS } else { now };
        Step::Settled
    }

    fn believe(
        &mut self,
        version: u64,
        state: RegionState,
        (span, lapses_at): (Span, Mono),
        check: Option<Check>,
    ) {
        let stops = state.closing.as_ref().map(|c| c.stage) == Some(ClosingStage::Stopping);
        if self.wish.take_if(|p| p.in_hand && !stops).is_some() {
            self.wishes_done += 1;
        }
        let check = check.filter(|_| !state.is_shut());
        self.view = Some((version, Arc::new(state)));
        self.span = span;
        self.lapses_at = lapses_at;
        self.last = check;
    }

    fn looked(&mut self, sent: Mono, received: Mono, looked: Looked, random: u64) -> Step {
        let Looked {
            now,
            fingerprint,
            replication,
            overlap_ms,
            state,
        } = looked;
        let promoted = replication.was_promoted;
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
        let (mut next, mut span) = match &stored {
            None => {
                let born = RegionState::on_empty(
                    &self.region,
                    fresh,
                    &fingerprint,
                    now,
                    self.on_empty,
                    &self.peers,
                );
                (born.silent_for(overlap_ms, now), trusted(quick, now))
            }
            Some((_, state))
                if !state.is_of(&fingerprint, promoted)
                    && !state.is_sealed()
                    && !planted::is_on(Bug::RollbackGoesOn) =>
            {
                let reborn = state.clone().reborn(fresh, &fingerprint, now);
                (reborn.silent_for(overlap_ms, now), trusted(quick, now))
            }
            Some((_, state)) if state.is_shut() => (state.clone(), Span::never()),
            Some((_, state)) => self.vouch(state.clone(), sent, received, now),
        };
        if next.is_of(&fingerprint, promoted) || planted::is_on(Bug::RollbackGoesOn) {
            next.fingerprint.clone_from(&fingerprint);
        }
        next.overlap_ms = overlap_ms;
        let was_shut = next.is_shut();
        if next.closing.as_ref().map(|c| c.stage) == Some(ClosingStage::Closed) {
            self.heard.clear();
        }
        for table in &self.heard {
            next = next.hear(table, &self.peers).unwrap_or(next);
        }
        next = self.close_or_open(next, &fingerprint, received, now, random);
        if was_shut && !next.is_shut() {
            span = trusted(quick, now);
        }
        if now < next.silent_until {
            span = Span::never();
        }
        // What is closed has said its last word.
        if !next.is_shut() {
            let newest = next.rollout.newest().map_or(0, |newest| newest.number);
            let newest = newest.max(self.newest_heard).max(self.revision);
            for region in &self.retiring {
                let lives = next.known.get(region).cloned().unwrap_or_default();
                next = next.retire(region, newest, &lives);
            }
            if next.is_retired() {
                next = next
                    .reborn(fresh, &fingerprint, now)
                    .silent_for(overlap_ms, now);
                span = trusted(quick, now);
            }
            self.roll_out(&mut next, now);
        }
        // The store's clock was read after `sent`.
        let lapses_at = match span.contains(now) {
            true => sent + span.until.since(now),
            false => Mono::MAX,
        };
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
            self.retiring.clear();
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

    /// What the operator wants, and the next step of what is under way.
    fn close_or_open(
        &mut self,
        state: RegionState,
        fingerprint: &str,
        received: Mono,
        now: StoreMs,
        random: u64,
    ) -> RegionState {
        let lost = |state: RegionState| {
            let overlap_ms = state.overlap_ms;
            let reborn = state.reborn(Life::from_random(random), fingerprint, now);
            reborn.silent_for(overlap_ms, now)
        };
        self.wish = self.wish.filter(|pending| received <= pending.until);
        if let Some(pending) = &mut self.wish {
            pending.in_hand = true;
        }
        let next = match self.wish.map(|pending| pending.wish) {
            Some(Wish::Close) => state.begin_closing(random, now),
            Some(Wish::Open) => state.begin_opening(fingerprint),
            Some(Wish::OpenAsLost) if state.is_sealed() => lost(state),
            Some(Wish::OpenAsLost) | None => state,
        };
        let advanced = next.clone().advance_closing(fingerprint, now, &self.peers);
        advanced.unwrap_or_else(|| lost(next))
    }

    /// Goes by this node's file, if that is possible here, and leaves older ones behind, if that is possible by now.
    fn roll_out(&mut self, next: &mut RegionState, now: StoreMs) {
        let set = &self.policies;
        // Before there were revisions the whole definition was on record.
        let is_same = |id: &String, digest: u64, whole: u64| {
            let known = next.policies.get(id);
            known.is_none_or(|known| [digest, whole].contains(known))
        };
        let other = self
            .digests
            .iter()
            .filter(|(id, d, w)| !is_same(id, *d, *w));
        self.redefined = other.map(|(id, _, _)| id.clone()).collect();
        if !self.redefined.is_empty() {
            return;
        }
        let budget = |policy: &Policy| Budget::of(policy, &set.subject_hash);
        let (number, digest) = (self.revision, self.revision_digest);
        let brought = next
            .rollout
            .bring(number, digest, &self.region, &set.policies, budget);
        match brought {
            Err(refusal) => self.refusal = Some(refusal),
            Ok(mut rollout) => {
                self.refusal = None;
                if self.adopted == Some(next.record(number)) {
                    rollout = rollout.adopted(number, now.max(next.high_water));
                }
                next.rollout = rollout.advance(&self.rollout_now(next, now));
                next.forget_strangers(&self.peers);
                next.revision = number;
                let digests = self.digests.iter();
                next.policies
                    .extend(digests.map(|(id, digest, _)| (id.clone(), *digest)));
            }
        }
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
        if self.refusal.is_some() || !self.redefined.is_empty() {
            return self.settled(now);
        }
        if state.is_sealed() {
            self.adopted = None;
            self.attached = None;
            return self.settled(now);
        }
        let record = state.record(self.revision);
        let life = (state.life, state.fingerprint.clone());
        if self.adopted == Some(record) && self.attached.as_ref() == Some(&life) {
            return self.bound(now);
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

    /// Every partition has the record. Where that stops all decisions, the store may say that it is closed.
    fn bound(&mut self, now: Mono) -> Step {
        let Some((version, state)) = &self.view else {
            return self.failed(now);
        };
        let next = (**state).clone().closed();
        if next == **state {
            return self.settled(now);
        }
        let put = Op::PutState {
            expect: *version,
            value: next.to_bytes(),
        };
        self.stage = Stage::Putting {
            next: Box::new(next),
            span: Span::never(),
            lapses_at: Mono::MAX,
            check: None,
        };
        Step::Ask(vec![put])
    }

    /// Whether the region's own life is settled and every peer has been heard.
    pub(crate) fn has_met_all(&self) -> bool {
        self.view.as_ref().is_some_and(|(_, state)| {
            !matches!(state.standing, Standing::Asking(_))
                && !state.rollout.unsure
                && self
                    .peers
                    .iter()
                    .all(|peer| state.present.contains_key(peer) || state.rollout.is_retired(peer))
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
        keeper.due = keeper.due.min(1);
        let mut step = keeper.wake(keeper.due());
        while let Step::Ask(ops) = step {
            let replies = ops.into_iter().map(|op| memory.apply(NOW, op)).collect();
            step = keeper.replied(1, replies, 7);
        }
        assert_eq!(step, Step::Settled);
    }

    fn no_policies() -> Arc<PolicySet> {
        let set = PolicySet::parse("regions = [\"a\", \"b\"]", "policies.toml");
        Arc::new(set.expect("a set without policies"))
    }

    /// A closed region's scripts refuse the nodes that haven't heard of it, and its store is written to no more.
    #[test]
    fn a_region_that_closes_stops_all_its_nodes_before_it_says_so() {
        let (us, peer) = (Region::new("a"), Region::new("b"));
        let timing = Timing { term_ms: 10_000 };
        let peers = vec![peer.clone()];
        let new = || {
            let (us, peers) = (us.clone(), peers.clone());
            Keeper::new(us, peers, timing, 0, no_policies(), OnEmpty::New)
        };
        let (mut keeper, mut other) = (new(), new());
        let mut memory = Memory::new("run");
        settle(&mut keeper, &mut memory);
        settle(&mut other, &mut memory);
        let before = other.regime().expect("the store was reached").fence();
        let theirs = RegionState::on_empty(
            &peer,
            Life::from_random(9),
            "",
            NOW,
            OnEmpty::New,
            std::slice::from_ref(&us),
        );
        let tell = |keeper: &mut Keeper, theirs: &RegionState| {
            let table = keeper.state().expect("a state").table();
            let heard = theirs.hear(&table, std::slice::from_ref(&us));
            heard.expect("they are peers")
        };
        // They know each other.
        assert!(keeper.hear(&theirs.table(), true, 1));
        settle(&mut keeper, &mut memory);
        let theirs = tell(&mut keeper, &theirs);

        keeper.wish(Wish::Close, 1);
        settle(&mut keeper, &mut memory);
        assert_eq!(keeper.wishes_done, 1);
        assert!(keeper.regime().is_some(), "nobody was told yet");
        let theirs = tell(&mut keeper, &theirs);
        assert!(keeper.hear(&theirs.table(), true, 1));
        settle(&mut keeper, &mut memory);
        assert_eq!(keeper.stage(), Some(ClosingStage::Closed));
        assert_eq!(keeper.regime().map(|regime| regime.revision), None);
        let read = Op::Read {
            fence: before,
            partition: apportion_core::Partition(7),
            ids: Vec::new(),
        };
        assert!(matches!(
            memory.apply(NOW, read),
            Err(StoreError::Fenced(Some(_)))
        ));
        settle(&mut other, &mut memory);
        assert!(other.regime().is_none());

        let version = |memory: &mut Memory| match memory.apply(NOW, Op::Look) {
            Ok(Reply::Looked(looked)) => looked.state.map(|(version, _)| version),
            other => panic!("looked: {other:?}"),
        };
        let last = version(&mut memory);
        settle(&mut keeper, &mut memory);
        assert_eq!(version(&mut memory), last, "that was its last word");

        // Back under another fingerprint, it waits for the peer, and goes on.
        let mut memory = memory.restarted("another run");
        settle(&mut keeper, &mut memory);
        assert!(keeper.regime().is_none() && keeper.sealed().is_some());
        let theirs = tell(&mut keeper, &theirs);
        assert!(keeper.hear(&theirs.table(), true, 1));
        settle(&mut keeper, &mut memory);
        let after = keeper.regime().expect("it goes on").state;
        assert_eq!(after.life, before.record.life);
        assert_eq!(after.fingerprint, "another run");
    }

    #[test]
    fn a_span_is_over_by_the_nodes_own_clock_too() {
        let timing = Timing { term_ms: 10_000 };
        let us = Region::new("a");
        let mut keeper = Keeper::new(us, Vec::new(), timing, 0, no_policies(), OnEmpty::New);
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
        let set = no_policies();
        let ask = OnEmpty::Ask;
        let mut keeper = Keeper::new(us.clone(), peers, timing, 0, set, ask);
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
