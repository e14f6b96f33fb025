//! Loans, with the production functions on small clocks.
//!
//! Each region is its store (its loans, the clock, until when all counts as lent) and one slow node, which may stop
//! between any two of: planning, swapping, telling. All else that a node does is one step, as if another, quick node did
//! it. What was ever said stays on its way for ever: it may arrive late, twice, out of order or never.
//!
//! The rules are [`Loans`]'s own; what this model adds is who calls them when, and what a share in force is when a clock
//! has stepped. A tick is a span, the longest step of a clock that nobody sees.

mod act;
mod planted;
mod said;
mod state;

pub use act::Action;
pub use planted::Planted;
pub use said::Said;
pub use state::{Node, RegionNow, World};

use crate::check::Protocol;
use apportion_core::allotment::{LentAll, Timing};
use apportion_core::fence::SPAN_MS;
use apportion_core::{Actor, Life, Region, StoreMs};
use stateright::{Model, Property};

/// Every region's part of the whole.
pub const BASE: u64 = 3;
/// What of it is never lent.
pub const FLOOR: u64 = 1;
/// What can be.
pub const LENDABLE: u64 = BASE - FLOOR;

/// Of a loan, on the borrower's clock.
pub const TERM_TICKS: u64 = 2;
/// One tick for a step that nobody saw on either side.
pub const MARGIN_TICKS: u64 = 2;
/// How long a lender goes without.
pub const RECLAIM_TICKS: u64 = TERM_TICKS + MARGIN_TICKS;
/// What a clock shows at the start: it may be set back.
const CLOCK_TICKS: u64 = 8;
/// By how much a step that is seen moves a clock.
const STEP_TICKS: u64 = 3;

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub regions: usize,
    /// Of true time.
    pub ticks: u8,
    pub asks: u8,
    /// Statements that are made.
    pub statements: u8,
    /// Steps of a clock that the next look at it will see.
    pub steps: u8,
    /// Stores that are lost or rolled back.
    pub losses: u8,
    /// A clock may be a tick ahead, from any moment on and until any other.
    pub wobble: bool,
    /// Regions have a slow node each.
    pub slow: bool,
}

#[derive(Clone, Debug)]
pub struct LoansModel {
    pub bounds: Bounds,
    pub planted: Option<Planted>,
    actors: Vec<Vec<Actor>>,
}

// === impl Bounds ===

impl Bounds {
    /// Two regions, and nothing goes wrong but the network.
    pub const CALM: Self = Self {
        regions: 2,
        ticks: 5,
        asks: 2,
        statements: 1,
        steps: 0,
        losses: 0,
        wobble: false,
        slow: false,
    };
}

// === impl LoansModel ===

impl Protocol for LoansModel {
    const NAME: &'static str = "loans";
    type Bounds = Bounds;
    type Planted = Planted;

    fn new(bounds: Bounds, planted: Option<Planted>) -> Self {
        let lives = u64::from(bounds.losses) + 1;
        let actors = (0..bounds.regions)
            .map(|i| {
                let region = Region::new(&format!("r{i}"));
                let actor = |life| Actor {
                    region: region.clone(),
                    life: Life::from_random(life),
                };
                (0..lives).map(actor).collect()
            })
            .collect();
        Self {
            bounds,
            planted,
            actors,
        }
    }

    fn small() -> Vec<Bounds> {
        let calm = Bounds {
            ticks: 4,
            ..Bounds::CALM
        };
        let one = Bounds { asks: 1, ..calm };
        vec![
            calm,
            Bounds { slow: true, ..one },
            Bounds { losses: 1, ..one },
            Bounds { steps: 1, ..one },
            Bounds {
                wobble: true,
                ..one
            },
            Bounds { regions: 3, ..calm },
        ]
    }

    fn large() -> Vec<Bounds> {
        let calm = Bounds::CALM;
        let one = Bounds { asks: 1, ..calm };
        vec![
            Bounds { slow: true, ..calm },
            Bounds { losses: 1, ..calm },
            Bounds { steps: 1, ..calm },
            Bounds {
                losses: 1,
                steps: 1,
                wobble: true,
                ..one
            },
            Bounds {
                regions: 3,
                losses: 1,
                wobble: true,
                ..one
            },
            Bounds {
                asks: 3,
                ticks: 4,
                ..calm
            },
            Bounds {
                wobble: true,
                ..calm
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
            "ticks" => b.ticks = value,
            "asks" => b.asks = value,
            "statements" => b.statements = value,
            "steps" => b.steps = value,
            "losses" => b.losses = value,
            "wobble" => b.wobble = value > 0,
            "slow" => b.slow = value > 0,
            _ => return None,
        }
        Some(b)
    }
}

impl LoansModel {
    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    fn actor(&self, region: usize, life: u8) -> &Actor {
        &self.actors[region][usize::from(life)]
    }

    fn timing() -> Timing {
        Timing {
            term_ms: ms(TERM_TICKS),
        }
    }

    /// How long lenders go without, here.
    fn reclaim_ms(&self) -> u64 {
        match self.planted {
            Some(Planted::NoMargin) => ms(TERM_TICKS),
            Some(Planted::NeverReclaimed) => ms(1_000),
            _ => ms(RECLAIM_TICKS),
        }
    }

    fn lent_all(&self, now: StoreMs) -> Option<LentAll> {
        let wait = match self.planted {
            Some(Planted::NoLentAll) => return None,
            Some(Planted::LentAllTooShort) => TERM_TICKS,
            _ => RECLAIM_TICKS,
        };
        Some(LentAll {
            until: now.plus(ms(wait)),
        })
    }

    fn total(&self) -> u64 {
        BASE * self.bounds.regions as u64
    }
}

impl Model for LoansModel {
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
        let sum = Property::always("shares in force sum to the whole", |m: &Self, w: &World| {
            let shares = (0..m.bounds.regions).map(|i| w.share(m, i));
            shares.sum::<u64>() <= m.total()
        });
        let back = Property::always("what was lent comes back in time", |m: &Self, w: &World| {
            let later = w.left_alone(m);
            (0..m.bounds.regions).all(|i| later.share(m, i) == BASE)
        });
        // A mistake is looked for where it hurts.
        match self.planted {
            Some(Planted::NeverReclaimed) => return vec![back],
            Some(_) => return vec![sum],
            None => {}
        }
        vec![
            sum,
            back,
            Property::always("charges cover credits", |m: &Self, w: &World| {
                w.charges_cover_credits(m)
            }),
            Property::sometimes("a loan is in use", |m: &Self, w: &World| {
                (0..m.bounds.regions).any(|i| w.share(m, i) > BASE)
            }),
            Property::sometimes("a loan came back by its timer", |m: &Self, w: &World| {
                w.came_back(m, false)
            }),
            Property::sometimes("a loan came back early", |m: &Self, w: &World| {
                w.came_back(m, true)
            }),
        ]
    }
}

pub(crate) const fn ms(ticks: u64) -> u64 {
    ticks * SPAN_MS
}

#[cfg(test)]
mod tests;
