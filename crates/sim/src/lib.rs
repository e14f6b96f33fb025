//! Regions under a simulated network, simulated clocks, crashes and losses: the production core, embedded store and
//! sync machine, driven by one seed. Every admission is checked against a perfect global limiter.

mod audit;
mod files;
mod kinds;
mod knowing;
pub mod measure;
pub mod perfect;
mod plans;
pub mod plot;
pub mod report;
pub mod scenario;
mod setup;
mod world;

pub use audit::{Audit, Violation};
pub use files::Rollouts;
pub use setup::{Faults, Outcome, Setup};
pub use world::{Asked, Fault, Flow, Record, Scripted, Stated, Weighed, World};

/// Runs `setup` from `seed`.
///
/// # Errors
/// The first admission that a perfect limiter could not have made, or the first disagreement about usage.
pub fn run(setup: &Setup, seed: u64) -> Result<Outcome, Violation> {
    World::new(setup, seed).run()
}

/// Runs `setup` from `seed` as [`run`] does, and tells what happened, line by line.
///
/// # Errors
/// The same.
pub fn trace(
    setup: &Setup,
    seed: u64,
    tell: impl FnMut(&str) + 'static,
) -> Result<Outcome, Violation> {
    World::new(setup, seed).traced(Box::new(tell)).run()
}
