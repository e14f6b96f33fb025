//! Regions under a simulated network, simulated clocks, crashes and losses: the production core, embedded store and
//! sync machine, driven by one seed. Every admission is checked against a perfect global limiter.

mod audit;
mod files;
mod kinds;
mod plans;
mod world;

pub use audit::{Audit, Violation};
pub use files::Rollouts;
pub use world::{Faults, Outcome, Setup, World};

/// Runs `setup` from `seed`.
///
/// # Errors
/// The first admission that a perfect limiter could not have made, or the first disagreement about usage.
pub fn run(setup: &Setup, seed: u64) -> Result<Outcome, Violation> {
    World::new(setup, seed).run()
}
