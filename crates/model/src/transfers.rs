//! Transfers of fixed windows, with the production functions.
//!
//! Regions' clocks go on independently of each other. Each gives, spends and takes in, for the window it is in and the
//! next one; rows stay on their way for ever. A store is lost or rolled back; another host goes on, whose clock may be
//! off by the skew, so that it can find itself in the window before. Whether a window has a base in a later life is
//! [`RegionState::base_from`]'s word.

mod act;
mod planted;

pub use act::{Action, Row, World};
pub use planted::Planted;

use crate::check::Protocol;
use apportion_core::lives::{OnEmpty, RegionState};
use apportion_core::{Actor, Life, Region, StoreMs};
use stateright::{Model, Property};

/// Windows that are looked at: the first ones.
const LABELS: usize = 4;
const DAY_MS: u64 = 86_400_000;
/// A clock moves by halves of a window: the second is its last moments, in which another host's clock may be in the next
/// window already.
const HALVES: u8 = 2;

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub regions: usize,
    /// Every region's base, in each window.
    pub base: u8,
    /// How far each clock goes, in halves of a window.
    pub halves: u8,
    /// Clocks start so far, in halves of a window.
    pub from: u8,
    pub gifts: u8,
    pub losses: u8,
    /// Clocks that are set back by a window or more while the store goes on.
    pub steps: u8,
}

#[derive(Clone, Debug)]
pub struct TransfersModel {
    pub bounds: Bounds,
    pub planted: Option<Planted>,
    actors: Vec<Vec<Actor>>,
}

// === impl Bounds ===

impl Bounds {
    pub const SMALL: Self = Self {
        regions: 2,
        base: 1,
        halves: 4,
        from: 0,
        gifts: 2,
        losses: 0,
        steps: 0,
    };
}

// === impl TransfersModel ===

impl Protocol for TransfersModel {
    const NAME: &'static str = "transfers";
    type Bounds = Bounds;
    type Planted = Planted;

    fn new(bounds: Bounds, planted: Option<Planted>) -> Self {
        let actors = (0..bounds.regions)
            .map(|i| {
                let region = Region::new(&format!("r{i}"));
                let actor = |life| Actor {
                    region: region.clone(),
                    life: Life::from_random(life),
                };
                (0..=u64::from(bounds.losses)).map(actor).collect()
            })
            .collect();
        Self {
            bounds,
            planted,
            actors,
        }
    }

    fn small() -> Vec<Bounds> {
        let small = Bounds::SMALL;
        vec![
            small,
            Bounds {
                gifts: 1,
                losses: 1,
                ..small
            },
            Bounds {
                steps: 1,
                gifts: 1,
                ..small
            },
            Bounds {
                regions: 3,
                halves: 2,
                ..small
            },
        ]
    }

    fn large() -> Vec<Bounds> {
        let small = Bounds::SMALL;
        vec![
            Bounds { base: 2, ..small },
            Bounds { gifts: 3, ..small },
            Bounds {
                losses: 1,
                halves: 6,
                ..small
            },
            Bounds { losses: 2, ..small },
            Bounds {
                regions: 3,
                losses: 1,
                gifts: 1,
                ..small
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
            "regions" => b.regions = usize::from(value),
            "base" => b.base = value,
            "halves" => b.halves = value,
            "from" => b.from = value,
            "gifts" => b.gifts = value,
            "losses" => b.losses = value,
            "steps" => b.steps = value,
            _ => return None,
        }
        Some(b)
    }
}

impl TransfersModel {
    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    fn actor(&self, region: u8, life: u8) -> &Actor {
        &self.actors[usize::from(region)][usize::from(life)]
    }

    /// The first label with a base in a life that began when the clock stood at `half`.
    fn base_from_label(&self, half: u8) -> usize {
        let label = usize::from(half / HALVES);
        match self.planted {
            Some(Planted::OpenWindowNotCovered) => return 0,
            Some(Planted::NextWindowNotCovered) => return label + 1,
            Some(Planted::SkewNotCovered) => return label + 2,
            _ => {}
        }
        let within = if half.is_multiple_of(HALVES) {
            DAY_MS / 2
        } else {
            DAY_MS - 30_000
        };
        let began = StoreMs(label as u64 * DAY_MS + within);
        let actor = self.actor(0, 0);
        let state = RegionState::on_empty(&actor.region, actor.life, "", began, OnEmpty::Lost, &[]);
        let from = state.base_from(DAY_MS);
        usize::try_from(from.0.div_ceil(DAY_MS)).unwrap_or(usize::MAX)
    }

    fn limit(&self) -> u64 {
        self.bounds.regions as u64 * u64::from(self.bounds.base)
    }
}

impl Model for TransfersModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.bounds)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.enumerate(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.apply(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let sum = Property::always("no window is used more than once", |m: &Self, w: &World| {
            (0..LABELS).all(|label| w.used(label) <= m.limit())
        });
        let kept = Property::always("what was given arrives", |m: &Self, w: &World| {
            let delivered = w.delivered(m);
            let mut open = (0..LABELS).filter(|label| w.is_open(*label));
            w.losses_left < m.bounds.losses
                || open.all(|label| delivered.rights(m, label) == m.limit())
        });
        match self.planted {
            Some(Planted::NewestNotLargestRow) => return vec![kept],
            Some(_) => return vec![sum],
            None => {}
        }
        vec![
            sum,
            kept,
            Property::sometimes("a window is used up", |m: &Self, w: &World| {
                (0..LABELS).any(|label| w.used(label) == m.limit())
            }),
            Property::sometimes(
                "one region uses what another gave",
                |m: &Self, w: &World| {
                    w.regions
                        .iter()
                        .any(|r| r.windows.iter().any(|window| window.used > m.bounds.base))
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests;
