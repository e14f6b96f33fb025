//! Decides a request: which policies match, what their meters say, what is answered.
//!
//! One call to the store of the region decides; no other region is asked. What a node knows of its region's store
//! comes from the sync side through [`Shared`], and what the sync side should look at goes back the same way.

mod charge;
mod engine;
mod outlook;
mod plan;
mod prepared;
mod report;
pub mod request;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use engine::{Engine, Pressure, Shared};
pub use outlook::Outlook;
pub use plan::{MATCHES_MAX, MAX_COST};
pub use request::{CheckError, CheckRequest, DecidedBy, Decision, LimitReport, Outcome};
