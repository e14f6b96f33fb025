//! How it stands with this region and its peers, for people: shown on request, and logged once when it changes.

use crate::clock::Clock;
use crate::closing::{ClosingStatus, Progress};
use crate::machine::{Machine, RolloutView};
use crate::track::Mono;
use apportion_core::lives::Standing;
use apportion_core::rollout::Refusal;
use apportion_core::{Actor, Epoch, Life, Regime, Region};
use std::collections::{BTreeMap, BTreeSet};
use tracing::{error, info, warn};

/// A peer that wasn't heard from for three intervals is out of reach, and at least for this long.
const SILENT_MS: Mono = 5_000;
const SILENT_INTERVALS: u64 = 3;

/// A node's view of its own region and the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncStatus {
    pub region: Region,
    pub store_ok: bool,
    /// `None` before the first contact with the store.
    pub life: Option<Life>,
    pub epoch: Epoch,
    /// In words: "asking", "first", "later".
    pub standing: &'static str,
    pub peers: BTreeMap<Region, PeerStatus>,
    /// Policies that the store has on record with another definition under the same version.
    pub redefined: BTreeSet<String>,
    /// Why this node's file can't be gone by in its region.
    pub refusal: Option<Refusal>,
    pub rollout: RolloutView,
    /// The store holds the state of this other region.
    pub foreign: Option<Region>,
    /// The last closing of the region in this life.
    pub closing: Option<ClosingStatus>,
    /// Counts what operators wanted of this node, and was done.
    pub wishes_done: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// It was heard from lately.
    pub reachable: bool,
    /// This node has listened for long enough, and in vain.
    pub silent: bool,
    /// Milliseconds since it was last heard from; `None`: never.
    pub lag_ms: Option<u64>,
    pub actor: Option<Actor>,
    /// Its policies aren't ours, so nothing is traded with it.
    pub policies_differ: bool,
    /// The newest revision that it goes by; `None` before it was heard from.
    pub revision: Option<u64>,
    /// Our revision's number stands for another content there.
    pub conflicts: bool,
}

/// What a status is made from.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    region: Region,
    began: Mono,
    silent_ms: Mono,
    store_ok: bool,
    view: Option<View>,
    peers: BTreeMap<Region, crate::machine::PeerView>,
    redefined: BTreeSet<String>,
    refusal: Option<Refusal>,
    rollout: RolloutView,
    foreign: Option<Region>,
    closing: Option<ClosingStatus>,
    wishes_done: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct View {
    life: Life,
    epoch: Epoch,
    standing: &'static str,
}

/// Notices what changed, and says so once.
#[derive(Debug)]
pub(crate) struct Watch {
    facts: Facts,
    reachable: BTreeMap<Region, bool>,
}

// === impl Facts ===

impl Facts {
    fn is_silent(&self, peer: &crate::machine::PeerView, now: Mono) -> bool {
        let since = peer.heard_at.unwrap_or(self.began);
        now.saturating_sub(since) > self.silent_ms
    }

    pub(crate) fn at(&self, now: Mono) -> SyncStatus {
        let peer = |view: &crate::machine::PeerView| {
            let lag_ms = view.heard_at.map(|at| now.saturating_sub(at));
            PeerStatus {
                reachable: lag_ms.is_some_and(|lag| lag <= self.silent_ms),
                silent: self.is_silent(view, now),
                lag_ms,
                actor: view.actor.clone(),
                policies_differ: view.policies_differ,
                revision: view.revision,
                conflicts: view.conflicts,
            }
        };
        SyncStatus {
            region: self.region.clone(),
            store_ok: self.store_ok,
            life: (self.view.map(|view| view.life)).or(self.closing.as_ref().map(|c| c.life)),
            epoch: self.view.map_or_else(Epoch::default, |view| view.epoch),
            standing: self.view.map_or("asking", |view| view.standing),
            peers: self
                .peers
                .iter()
                .map(|(region, view)| (region.clone(), peer(view)))
                .collect(),
            redefined: self.redefined.clone(),
            refusal: self.refusal,
            rollout: self.rollout.clone(),
            foreign: self.foreign.clone(),
            closing: self.closing.clone(),
            wishes_done: self.wishes_done,
        }
    }
}

impl View {
    fn of(regime: &Regime) -> Self {
        Self {
            life: regime.state.life,
            epoch: regime.state.epoch,
            standing: match regime.state.standing {
                Standing::Asking(_) => "asking",
                Standing::First => "first",
                Standing::Later => "later",
            },
        }
    }
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new(region: Region, interval_ms: u64, machine: &Machine, clock: Clock) -> Self {
        Self {
            reachable: BTreeMap::new(),
            facts: Facts {
                region,
                began: clock.now(),
                silent_ms: interval_ms.saturating_mul(SILENT_INTERVALS).max(SILENT_MS),
                store_ok: false,
                view: None,
                peers: machine.peers().clone(),
                redefined: BTreeSet::new(),
                refusal: None,
                rollout: machine.rollout(),
                foreign: None,
                closing: None,
                wishes_done: 0,
            },
        }
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn store(&mut self, ok: bool) {
        let region = &self.facts.region;
        if ok {
            info!(%region, "the store answers");
        } else {
            warn!(%region, "the store is out of reach, or changed under this node; trying on");
        }
        self.facts.store_ok = ok;
    }

    pub(crate) fn regime(&mut self, regime: &Regime) {
        let region = &self.facts.region;
        let view = View::of(regime);
        let View {
            life,
            epoch,
            standing,
        } = view;
        let epoch_number = epoch.0;
        match self.facts.view.replace(view) {
            Some(before) if before == view => {}
            Some(before) if before.life == life && before.standing == standing => warn!(
                %region, %life, epoch = epoch_number,
                "a new epoch: the store's clock stepped, or no node vouched for it; what was borrowed is dropped, and \
                 all that may be lent counts as lent for a while"
            ),
            None if epoch_number > 1 || standing != "asking" => info!(
                %region, %life, standing, epoch = epoch_number, "going on in this life of the store"
            ),
            _ => match standing {
                "first" => info!(
                    %region, %life,
                    "this is the store's first life: nothing was lost, the whole base share is in force"
                ),
                "later" => warn!(
                    %region, %life,
                    "the store has lost its history, and a later life began: rates start empty with all that may be lent \
                     counted as lent for a while, and windows have no base here until the one after the next"
                ),
                _ => info!(
                    %region, %life,
                    "the store is empty: asking the other regions whether it is new; until all have answered, it \
                     counts as lost"
                ),
            },
        }
    }

    /// Takes over what the machine knows, and says what is new of it.
    pub(crate) fn look(&mut self, machine: &Machine, now: Mono) {
        let region = &self.facts.region;
        if let Some(other) = machine.foreign()
            && self.facts.foreign.replace(other.clone()).as_ref() != Some(other)
        {
            error!(%region, %other, "this is the store of another region; nothing is written to it");
        }
        let refusal = machine.refusal();
        if refusal != self.facts.refusal {
            match refusal {
                Some(Refusal::Behind(newer)) => error!(
                    %region, newer, "this node's policies are of an older revision than the store has seen; it decides nothing"
                ),
                Some(Refusal::OtherContent) => error!(
                    %region, "this region goes by other policies under the same revision; this node decides nothing"
                ),
                Some(Refusal::TooMany) => error!(
                    %region, "too many revisions are under way in this region; this node decides nothing"
                ),
                None => {}
            }
            self.facts.refusal = refusal;
        }
        let rollout = machine.rollout();
        let (before, oldest) = (self.facts.rollout.oldest, rollout.oldest);
        if before.is_some_and(|b| b < rollout.revision) && oldest == Some(rollout.revision) {
            info!(%region, revision = rollout.revision, "this revision of the policies is in force here");
        }
        for off in rollout.retired.difference(&self.facts.rollout.retired) {
            warn!(%region, %off, "the region was retired: its store is taken to be off for good");
        }
        if !rollout.waits_for.is_empty() && rollout.waits_for != self.facts.rollout.waits_for {
            let regions: Vec<&str> = rollout.waits_for.iter().map(Region::as_str).collect();
            info!(
                %region, revision = rollout.revision, waits_for = regions.join(", "),
                "what this revision raises waits for these regions"
            );
        }
        self.facts.rollout = rollout;
        for id in machine.redefined() {
            if self.facts.redefined.insert(id.to_owned()) {
                error!(
                    %region, policy = id,
                    "this policy isn't the one that the store has on record under the same version; give it a new version"
                );
            }
        }
        let closing = machine.closing();
        let progress = |c: &Option<ClosingStatus>| c.as_ref().map(|c| c.progress);
        if progress(&closing) != progress(&self.facts.closing) {
            match progress(&closing) {
                Some(Progress::Closed) => info!(
                    %region, "the region is closed: its store can be stopped, and goes on from what it has saved"
                ),
                Some(Progress::Opening) => info!(
                    %region, "the region is closed, and the other regions are asked to strike off its nonce"
                ),
                Some(Progress::Open) => info!(%region, "the region is open"),
                None if self.facts.closing.is_some() => info!(%region, "the closed life is over"),
                Some(Progress::Telling | Progress::Stopping) | None => {}
            }
        }
        self.facts.closing = closing;
        self.facts.wishes_done = machine.wishes_done();
        for (peer, view) in machine.peers() {
            let before = self
                .facts
                .peers
                .get(peer)
                .is_some_and(|v| v.policies_differ);
            match (before, view.policies_differ) {
                (false, true) => warn!(
                    %region, %peer, "the peer has other policies, or another loan_term; nothing is traded with it until they agree"
                ),
                (true, false) => {
                    info!(%region, %peer, "the peer has the same policies and loan_term again")
                }
                _ => {}
            }
            let known = self.facts.peers.get(peer);
            let ours = self.facts.rollout.revision;
            if view.conflicts && !known.is_some_and(|v| v.conflicts) {
                error!(
                    %region, %peer, revision = ours,
                    "the peer has other policies under the same revision; one of the two files needs a higher one"
                );
            }
            let behind = |v: &crate::machine::PeerView| v.revision.is_some_and(|r| r < ours);
            if behind(view) && !known.is_some_and(behind) {
                warn!(
                    %region, %peer, revision = ours, theirs = view.revision,
                    "the peer goes by an older revision of the policies"
                );
            }
        }
        self.facts.peers.clone_from(machine.peers());
        for (peer, view) in &self.facts.peers {
            let since = view.heard_at.unwrap_or(self.facts.began);
            let silent = self.facts.is_silent(view, now);
            let reachable = !silent && view.heard_at.is_some();
            match self.reachable.get(peer) {
                Some(before) if *before == reachable => continue,
                // Not heard from yet, but it is early.
                None if !reachable && !silent => continue,
                _ => {}
            }
            if reachable {
                info!(%region, %peer, "the peer is within reach");
            } else if view.heard_at.is_some() {
                warn!(%region, %peer, silent_ms = now - since, "the peer is out of reach");
            } else {
                warn!(%region, %peer, "the peer hasn't been heard from yet");
            }
            self.reachable.insert(peer.clone(), reachable);
        }
    }
}
