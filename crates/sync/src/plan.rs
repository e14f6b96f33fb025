//! What to do about one key: from what its store says, what was measured, and what peers said, to the next allotment
//! and what to tell them. Pure; whoever loses the swap reads again and plans again.

mod loan;
mod window;

pub(crate) use window::ahead;

use crate::message::Trade;
use crate::track::{Mono, Track};
use apportion_core::allotment::{Allotment, UnknownForm};
use apportion_core::fence::Fence;
use apportion_core::key::SubjectHash;
use apportion_core::meter::{Rule, State, Terms};
use apportion_core::planted::{self, Bug};
use apportion_core::policy::Tolerance;
use apportion_core::{Actor, Algorithm, Limits, Policy, Regime, Region, StoreMs};
use apportion_store::{MeterId, Snapshot, Swap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that a plan for one key rests on.
pub(crate) struct Scene<'a> {
    pub(crate) regime: &'a Regime,
    pub(crate) fence: &'a Fence,
    pub(crate) policy: &'a Policy,
    /// What the policy's subjects are hashed under.
    pub(crate) hash: &'a SubjectHash,
    pub(crate) id: &'a MeterId,
    pub(crate) peers: &'a [Region],
    /// The present lives of the peers, as last heard.
    pub(crate) actors: &'a BTreeMap<Region, Actor>,
    pub(crate) interval_ms: u64,
    /// The store's clock at the reading.
    pub(crate) now: StoreMs,
    pub(crate) mono: Mono,
}

/// What comes of a plan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// To be swapped in before anything of `tell` is sent.
    pub(crate) swap: Option<Swap>,
    pub(crate) tell: BTreeMap<Region, Trade>,
    /// For windows: this region has nothing left.
    pub(crate) spent: bool,
}

/// What the store counted of a key, for its [`Track`]: attempts, or what was used where those aren't counted.
pub(crate) fn counted(snapshot: &Snapshot) -> u64 {
    let attempts = snapshot.traded.as_ref().map_or(0, |t| t.attempts);
    match snapshot.meter.as_ref().map(|m| &m.state) {
        Some(State::Window { used }) => attempts.max(*used),
        _ => attempts,
    }
}

/// The meter of `key` at `now`, where it is one that regions trade. Slots aren't: each region has its own. Nor is what
/// is never under: there no part of the limit decides.
pub(crate) fn traded_label(policy: &Policy, now: StoreMs) -> Option<Option<u64>> {
    if policy.tolerance == Tolerance::NeverUnder {
        return None;
    }
    match policy.algorithm {
        Algorithm::FixedWindow { period } => Some(Some(period.label(now))),
        Algorithm::TokenBucket { .. }
        | Algorithm::Gcra { .. }
        | Algorithm::SlidingLog { .. }
        | Algorithm::SlidingWindow { .. } => Some(None),
        Algorithm::Concurrency { .. } => None,
    }
}

/// Whether there can be such a meter, and regions trade it. A peer may name any.
pub(crate) fn is_traded(policy: &Policy, id: &MeterId) -> bool {
    traded_label(policy, StoreMs(0)).is_some_and(|label| label.is_some() == id.label.is_some())
}

/// Why a key is looked at by the region's own accord.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    /// To measure, and to give back what isn't needed.
    Tick,
    /// It is refusing, or about to.
    Urgent,
    /// The regular round: what is borrowed is asked for again.
    Round,
}

/// What is known of a key's limits where its meter says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// By a peer that asks.
    pub(crate) asked: Option<Limits>,
    /// With a request here, of this window or another.
    pub(crate) seen: Option<Limits>,
}

impl Plan {
    fn to(&mut self, region: &Region) -> &mut Trade {
        self.tell.entry(region.clone()).or_default()
    }
}

impl Scene<'_> {
    fn us(&self) -> Actor {
        self.regime.actor()
    }

    /// The limits that the key is known to go by: its subject's own, or those that its meter was last charged under, or
    /// else what others make of them.
    fn known_limits(&self, snapshot: &Snapshot, told: Told) -> Option<Limits> {
        let noted = snapshot.meter.as_ref().and_then(|m| m.limits);
        let of_subject = self.policy.limits_of_key(&self.id.key, self.hash);
        let asked = || {
            told.asked
                .filter(|limits| self.policy.tiers().contains(limits))
        };
        of_subject.or(noted).or_else(asked).or(told.seen)
    }

    /// The limits that the key goes by here.
    ///
    /// Where nobody knows the plan it is the smallest: whoever gives rights of a larger one gives what isn't there, and
    /// the taker spends it.
    pub(crate) fn limits(&self, snapshot: &Snapshot, told: Told) -> Limits {
        let smallest = || match planted::is_on(Bug::LargestPlanGiven) {
            true => self.policy.tiers().last().copied(),
            false => Some(self.policy.smallest()),
        };
        self.known_limits(snapshot, told)
            .or_else(smallest)
            .unwrap_or(self.policy.limits)
    }

    /// The limits to name in an ask.
    fn named_limits(&self, snapshot: &Snapshot, told: Told) -> Option<Limits> {
        let by_plan = self.policy.plans.is_some();
        self.known_limits(snapshot, told).filter(|_| by_plan)
    }

    pub(crate) fn rule(&self, limits: Limits) -> Arc<Rule> {
        Arc::new(self.regime.rule(self.policy, limits))
    }

    fn swap(
        &self,
        snapshot: &Snapshot,
        rule: &Arc<Rule>,
        terms: Terms,
        allotment: Allotment,
        keep: StoreMs,
    ) -> Swap {
        Swap {
            fence: *self.fence,
            id: self.id.clone(),
            rule: Arc::clone(rule),
            expect: snapshot.traded.as_ref().map_or(0, |t| t.version),
            terms,
            allotment: allotment.to_bytes(),
            keep_until: keep,
        }
    }
}

/// What the key's trade has come to; `None` where there was none.
///
/// # Errors
/// Where the allotment was written by a later version: then nothing is known of what was lent or given, and nothing is
/// planned.
pub(crate) fn stored(snapshot: &Snapshot) -> Result<Option<Allotment>, UnknownForm> {
    let traded = snapshot.traded.as_ref().filter(|t| t.version > 0);
    let allotment = traded.map(|t| Allotment::from_bytes(&t.allotment));
    allotment.transpose()
}

/// Looks after a key: gives back what isn't needed, asks for what is.
pub(crate) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    occasion: Occasion,
) -> Plan {
    let Some(stored) = stored(snapshot)
        .ok()
        .filter(|_| is_traded(scene.policy, scene.id))
    else {
        return Plan::default();
    };
    match scene.policy.algorithm {
        Algorithm::FixedWindow { period } => {
            window::survey(scene, track, snapshot, stored, occasion, period)
        }
        _ => loan::survey(scene, track, snapshot, stored, occasion),
    }
}

/// Takes in what `from` said of this key, and answers its ask.
pub(crate) fn answer(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    from: &Actor,
    epoch: apportion_core::Epoch,
    said: &Trade,
) -> Plan {
    let Some(stored) = stored(snapshot)
        .ok()
        .filter(|_| is_traded(scene.policy, scene.id))
    else {
        return Plan::default();
    };
    match scene.policy.algorithm {
        Algorithm::FixedWindow { period } => {
            window::answer(scene, track, snapshot, stored, from, said, period)
        }
        _ => loan::answer(scene, track, snapshot, stored, from, epoch, said),
    }
}

#[cfg(test)]
mod tests;
