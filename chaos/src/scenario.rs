//! Scenarios: a deployment, traffic, faults at given times, and what must hold throughout and afterwards. Each is data;
//! one runner plays them all.

mod catalogue;
mod run;

pub use catalogue::CATALOGUE;
pub use run::{Report, cut_some, run};

use crate::StoreKind;
use crate::history::Bucket;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub store: StoreKind,
    pub nodes_per_region: usize,
    /// The `[[policy]]` tables.
    pub policies: &'static str,
    pub probe: &'static [(&'static str, &'static str)],
    pub flows: &'static [Flow],
    /// In the order of their times.
    pub faults: &'static [(Duration, Fault)],
    /// How long traffic comes.
    pub lasts: Duration,
}

/// Traffic for one subject of one policy.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    pub policy: &'static str,
    /// Of every request.
    pub attributes: &'static [(&'static str, &'static str)],
    /// Those that make the policy's subject.
    pub key: &'static [(&'static str, &'static str)],
    /// Requests a second, by region.
    pub per_second: Rates,
    /// From these times on it is another rate.
    pub turns: &'static [(Duration, Rates)],
    pub promise: Promise,
}

/// Requests a second, by region.
pub type Rates = &'static [(&'static str, usize)];

#[derive(Debug, Clone, Copy)]
pub enum Promise {
    /// Never more than `limit`; once all is healed, all of it can be used, and every region tells the same usage.
    Window { limit: u64 },
    /// In no interval more than the bucket gives; once all is healed, every region tells the same usage.
    Bucket(Bucket),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One way, on every link.
    DelayAll(Duration),
    CutAll,
    /// So many links drawn by the seed, each in directions drawn by it.
    CutSome(usize),
    HealAll,
}

// === impl Scenario ===

impl Scenario {
    pub fn named(name: &str) -> Option<&'static Self> {
        CATALOGUE.iter().find(|scenario| scenario.name == name)
    }
}
