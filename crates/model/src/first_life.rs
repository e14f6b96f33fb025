//! Which empty store is new: the production rules for lives, under losses in every order.
//!
//! Any region may hear at any time what another says of the lives just then; and, a bounded number of times, what it said
//! long ago. A store may be emptied, or start again with its data; each begins a life.

mod planted;
mod world;

pub use planted::Planted;
pub use world::{Action, World};

use crate::check::Protocol;
use apportion_core::Region;
use apportion_core::lives::Standing;
use stateright::{Model, Property};

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub regions: usize,
    pub losses: u8,
    /// Messages that arrive when what they say is no longer so.
    pub late: u8,
}

#[derive(Clone, Debug)]
pub struct FirstLifeModel {
    pub bounds: Bounds,
    pub planted: Option<Planted>,
    regions: Vec<Region>,
    /// Of each region, all others.
    peers: Vec<Vec<Region>>,
}

// === impl Bounds ===

impl Bounds {
    pub const SMALL: Self = Self {
        regions: 3,
        losses: 1,
        late: 0,
    };
}

// === impl FirstLifeModel ===

impl Protocol for FirstLifeModel {
    const NAME: &'static str = "first-life";
    type Bounds = Bounds;
    type Planted = Planted;

    fn new(bounds: Bounds, planted: Option<Planted>) -> Self {
        let regions: Vec<Region> = (0..bounds.regions)
            .map(|i| Region::new(&format!("r{i}")))
            .collect();
        let others = |r: &Region| regions.iter().filter(|p| *p != r).cloned().collect();
        let peers = regions.iter().map(others).collect();
        Self {
            bounds,
            planted,
            regions,
            peers,
        }
    }

    fn small() -> Vec<Bounds> {
        let small = Bounds::SMALL;
        let two = Bounds {
            regions: 2,
            losses: 2,
            late: 1,
        };
        vec![two, small]
    }

    fn large() -> Vec<Bounds> {
        let small = Bounds::SMALL;
        vec![
            Bounds {
                regions: 2,
                losses: 3,
                late: 1,
            },
            Bounds { losses: 2, ..small },
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
            "regions" => b.regions = usize::from(value),
            "losses" => b.losses = value,
            "late" => b.late = value,
            _ => return None,
        }
        Some(b)
    }
}

impl FirstLifeModel {
    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }
}

impl Model for FirstLifeModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.enumerate(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.apply(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let once = Property::always("no second life is taken for the first", |_, w: &World| {
            !w.is_taken_twice
        });
        let settles = Property::always("once all hear each other, nobody asks", |m: &Self, w| {
            m.settled(w)
        });
        match self.planted {
            Some(Planted::SilentWhileAsking) => return vec![settles],
            Some(_) => return vec![once],
            None => {}
        }
        vec![
            once,
            settles,
            Property::sometimes("a first life is found", |_, w: &World| {
                w.regions
                    .iter()
                    .any(|r| r.state.standing == Standing::First)
            }),
            Property::sometimes("a lost life is found out", |_, w: &World| {
                let emptied = |r: &world::RegionNow| r.was_emptied;
                w.regions
                    .iter()
                    .any(|r| emptied(r) && r.state.standing == Standing::Later)
            }),
            Property::sometimes("all are first", |_, w: &World| {
                w.regions
                    .iter()
                    .all(|r| r.state.standing == Standing::First)
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
