//! What to do about one key: from what its store says, what was measured, and what peers said, to the next allotment
//! and what to tell them. Pure; whoever loses the swap reads again and plans again.

mod rate;
mod window;

pub(crate) use window::ahead;

use crate::message::Trade;
use crate::track::{Mono, Track};
use apportion_core::allotment::Allotment;
use apportion_core::fence::Fence;
use apportion_core::meter::{Meter, Rule, Terms};
use apportion_core::{Actor, Algorithm, Policy, Regime, Region, StoreMs};
use apportion_store::{MeterId, Snapshot, Swap};
use std::collections::BTreeMap;

/// Everything that a plan for one key rests on.
pub(crate) struct Scene<'a> {
    pub(crate) regime: &'a Regime,
    pub(crate) fence: &'a Fence,
    pub(crate) policy: &'a Policy,
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
    match &snapshot.meter {
        Some(Meter::Window(window)) => attempts.max(window.used),
        _ => attempts,
    }
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

impl Plan {
    fn to(&mut self, region: &Region) -> &mut Trade {
        self.tell.entry(region.clone()).or_default()
    }
}

impl Scene<'_> {
    fn us(&self) -> Actor {
        self.regime.actor()
    }

    fn swap(
        &self,
        snapshot: &Snapshot,
        rule: Rule,
        terms: Terms,
        allotment: Allotment,
        keep: StoreMs,
    ) -> Swap {
        Swap {
            fence: *self.fence,
            id: self.id.clone(),
            rule,
            expect: snapshot.traded.as_ref().map_or(0, |t| t.version),
            terms,
            allotment: allotment.to_bytes(),
            keep_until: keep,
        }
    }
}

fn stored(snapshot: &Snapshot) -> Option<Allotment> {
    let traded = snapshot.traded.as_ref().filter(|t| t.version > 0)?;
    Allotment::from_bytes(&traded.allotment).ok()
}

/// False where the allotment was written by a later version: then nothing is known of what was lent or given, and
/// nothing is planned.
fn is_readable(snapshot: &Snapshot) -> bool {
    let traded = snapshot.traded.as_ref().filter(|t| t.version > 0);
    traded.is_none_or(|t| Allotment::from_bytes(&t.allotment).is_ok())
}

/// How long it takes the budget to admit several requests: over that, falling demand is believed.
pub(crate) fn slow_ms(policy: &Policy) -> u64 {
    let (limit, per_ms) = match policy.algorithm {
        Algorithm::TokenBucket { limit, per_ms, .. } | Algorithm::FixedWindow { limit, per_ms } => {
            (limit, per_ms)
        }
    };
    (per_ms.saturating_mul(8) / limit.max(1)).clamp(2_000, 15_000)
}

/// Looks after a key: gives back what isn't needed, asks for what is.
pub(crate) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    occasion: Occasion,
) -> Plan {
    if !is_readable(snapshot) {
        return Plan::default();
    }
    match scene.policy.algorithm {
        Algorithm::TokenBucket { .. } => rate::survey(scene, track, snapshot, occasion),
        Algorithm::FixedWindow { per_ms, .. } => {
            window::survey(scene, track, snapshot, occasion, per_ms)
        }
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
    if !is_readable(snapshot) {
        return Plan::default();
    }
    match scene.policy.algorithm {
        Algorithm::TokenBucket { .. } => rate::answer(scene, track, snapshot, from, epoch, said),
        Algorithm::FixedWindow { per_ms, .. } => {
            window::answer(scene, track, snapshot, from, said, per_ms)
        }
    }
}

#[cfg(test)]
mod tests;
