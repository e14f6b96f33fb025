//! What is simulated: how large the world is, what goes wrong in it, and what came of a run.

use crate::files::Rollouts;
use crate::world::{Record, Stated};
use apportion_core::lives::OnEmpty;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;

/// What goes wrong, as chances in a thousand. They are drawn once a simulated second, but where it says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// For each message: it is lost, or doubled, or up to 40 s late.
    pub lose: u32,
    pub double: u32,
    pub late: u32,
    /// A cut between two regions begins, one way or both; it lasts up to 20 s.
    pub cut: u32,
    /// A region is cut off from all others, for up to 45 s.
    pub isolate: u32,
    /// A node crashes; it is back within 8 s.
    pub crash: u32,
    /// A node stands still for up to 12 s.
    pub pause: u32,
    /// All nodes of a region restart, one after the other or at once; each is back within 2 s.
    pub restart: u32,
    /// A store forgets everything, or goes back to what it was a while ago.
    pub lose_store: u32,
    pub roll_back: u32,
    /// A store is lost as often as this while its region is cut off.
    pub lose_isolated: u32,
    /// For each call of a store: there is no answer. It was executed, or a part of it, or not.
    pub time_out: u32,
    /// For each call of a store: it is up to 15 s on its way.
    pub late_call: u32,
    /// A store's clock steps by up to 5 s, either way; by up to 30 s; by up to an hour.
    pub slip: u32,
    pub step: u32,
    pub leap: u32,
    /// Nobody asks for anything for up to 40 s.
    pub lull: u32,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Setup {
    pub policies: String,
    /// The same for two regions, which two thirds of the runs are of, if it is there.
    pub pair: Option<String>,
    pub regions: usize,
    pub nodes: usize,
    pub duration_ms: u64,
    /// Delay of a message, one way.
    pub delay_ms: (u64, u64),
    pub faults: Faults,
    /// Faults end here, so that what comes after shows recovery.
    pub faults_until_ms: u64,
    /// Half of the regions start at once, the others within so long.
    pub boots_ms: u64,
    /// Requests a second in all; which region gets them changes now and then.
    pub requests_per_s: u64,
    /// All of the traffic goes to the first region.
    pub one_sided: bool,
    /// With `one_sided`: from here on it goes to the second one.
    pub flip_at_ms: Option<u64>,
    pub on_empty: OnEmpty,
    /// With some, the policies are drawn from the seed.
    pub rollouts: Rollouts,
    /// Traffic and faults as they are stated, instead of what the seed draws.
    pub stated: Option<Stated>,
}

impl Setup {
    /// As a run has it.
    pub(crate) fn drawn(&self, rng: &mut SmallRng) -> Self {
        let mut setup = self.clone();
        if let Some(policies) = setup.pair.take_if(|_| rng.random_ratio(2, 3)) {
            setup.policies = policies;
            setup.regions = 2;
        }
        setup
    }
}

impl Faults {
    /// Nothing goes wrong, and nobody falls silent.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What came of a run that broke no promise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub asked: u64,
    pub admitted: u64,
    pub undecided: u64,
    pub losses: u64,
    pub steps: u64,
    /// Roll-outs that came to an end everywhere, and words that a region is off for good.
    pub rolled_out: u64,
    pub retired: u64,
    /// Units drawn on overdrafts, and requests refused under never-under.
    pub overdrawn: u64,
    pub known_used_up: u64,
    /// Units asked for, and units admitted and not put back, by key text.
    pub by_key: BTreeMap<String, (u64, u64)>,
    /// Units admitted in each region, before and after the flip.
    pub by_region: Vec<(u64, u64)>,
    /// All that happened, where traffic was stated.
    pub record: Record,
}
