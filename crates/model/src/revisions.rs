//! Roll-out of revisions: the rules written down once more, as an independent check of them.
//!
//! A region goes by the smallest base of the revisions from the one in force on. It leaves older ones behind once all
//! who have less by a newer one than by any of those are known to go by it; if it has skipped a revision it doesn't know
//! who that is, and waits for all. A life that isn't its store's first has no base until each peer, asked in that life,
//! says that it goes by the same revision and no other.
//!
//! A base is a number here, and lowering it is one step: that loans and windows of the larger one must run out first
//! isn't modelled.

mod planted;
mod world;

pub use planted::Planted;
pub use world::{Action, RegionNow, Said, World};

use crate::check::Protocol;
use stateright::{Model, Property};

pub const REVISIONS: usize = 3;
pub const REGIONS_MAX: usize = 3;

/// What each revision deals to each region.
pub type Bases = [[u8; REGIONS_MAX]; REVISIONS];

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub regions: usize,
    /// A base is at most so much: all bases up to it are tried.
    pub base_max: u8,
    /// What a revision deals in all; any sum, if zero.
    pub sum: u8,
    pub losses: u8,
    /// Messages that arrive when what they say is no longer so.
    pub late: u8,
    /// Only these bases, and no others.
    pub only: Option<Bases>,
}

#[derive(Clone, Debug)]
pub struct RevisionsModel {
    pub bounds: Bounds,
    pub planted: Option<Planted>,
}

// === impl Bounds ===

impl Bounds {
    pub const SMALL: Self = Self {
        regions: 2,
        base_max: 2,
        sum: 0,
        losses: 0,
        late: 1,
        only: None,
    };

    pub const THREE: Self = Self {
        regions: 3,
        base_max: 2,
        sum: 2,
        losses: 0,
        late: 0,
        only: None,
    };

    fn deals(&self) -> Vec<[u8; REGIONS_MAX]> {
        let of = |i: usize| 0..=if i < self.regions { self.base_max } else { 0 };
        let all = of(0).flat_map(|a| of(1).flat_map(move |b| of(2).map(move |c| [a, b, c])));
        all.filter(|d| self.sum == 0 || d.iter().sum::<u8>() == self.sum)
            .collect()
    }
}

// === impl RevisionsModel ===

impl Protocol for RevisionsModel {
    const NAME: &'static str = "revisions";
    type Bounds = Bounds;
    type Planted = Planted;

    fn new(bounds: Bounds, planted: Option<Planted>) -> Self {
        Self { bounds, planted }
    }

    fn small() -> Vec<Bounds> {
        let small = Bounds {
            base_max: 1,
            ..Bounds::SMALL
        };
        vec![
            small,
            Bounds {
                losses: 1,
                late: 0,
                ..small
            },
            Bounds {
                only: Some([[2, 0, 0], [0, 2, 0], [0, 0, 2]]),
                ..Bounds::THREE
            },
            Bounds {
                only: Some([[1, 1, 0], [0, 0, 2], [0, 1, 1]]),
                ..Bounds::THREE
            },
        ]
    }

    fn large() -> Vec<Bounds> {
        let small = Bounds::SMALL;
        vec![
            Bounds { late: 2, ..small },
            Bounds {
                losses: 1,
                base_max: 1,
                ..small
            },
            Bounds::THREE,
            Bounds {
                base_max: 1,
                sum: 0,
                ..Bounds::THREE
            },
        ]
    }

    fn planted() -> &'static [Planted] {
        &Planted::ALL
    }

    fn shows_in(bug: Planted) -> Bounds {
        bug.shows_in()
    }

    fn set(bounds: Bounds, name: &str, value: u8) -> Option<Bounds> {
        let mut b = bounds;
        match name {
            "regions" => b.regions = usize::from(value).min(REGIONS_MAX),
            "base_max" => b.base_max = value,
            "sum" => b.sum = value,
            "losses" => b.losses = value,
            "late" => b.late = value,
            _ => return None,
        }
        Some(b)
    }
}

impl RevisionsModel {
    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }
}

impl Model for RevisionsModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        if let Some(bases) = self.bounds.only {
            return vec![World::new(&self.bounds, bases)];
        }
        let deals = self.bounds.deals();
        let mut worlds = Vec::new();
        for a in &deals {
            for b in &deals {
                for c in &deals {
                    worlds.push(World::new(&self.bounds, [*a, *b, *c]));
                }
            }
        }
        worlds
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.enumerate(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.apply(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let sum = Property::always(
            "bases sum to the largest limit in use",
            |m: &Self, w: &World| w.used(m) <= w.limit(),
        );
        let ends = Property::always("a roll-out comes to its end", |m: &Self, w: &World| {
            m.rolled_out(w)
        });
        match self.planted {
            Some(Planted::ConfirmedInForceOnly) => return vec![ends],
            Some(_) => return vec![sum],
            None => {}
        }
        vec![
            sum,
            ends,
            Property::sometimes("somebody waits for another", |_, w: &World| {
                w.regions
                    .iter()
                    .any(|r| !r.is_unsure && r.list().count() > 1)
            }),
            Property::sometimes("the newest is in force everywhere", |_, w: &World| {
                w.regions.iter().all(|r| r.front == REVISIONS - 1)
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
