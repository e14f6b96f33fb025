//! Decides a request: which policies match, what their meters say, what is answered.
//!
//! One call to the store of the region decides; no other region is asked. What a node knows of its region's store
//! comes from the sync side through [`Shared`], and what the sync side should look at goes back the same way.

mod charge;
mod denied;
mod engine;
mod outlook;
mod plan;
mod prepared;
mod recall;
mod release;
mod remember;
mod report;
pub mod request;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use denied::{DENIED_MAX, DeniedCache, TELL_AFTER_MS};
pub use engine::{Engine, Pressure, Shared};
pub use outlook::Outlook;
pub use plan::{MATCHES_MAX, MAX_COST};
pub use recall::{FLUSH_MAX, SURE_MAX_MS, UNSURE_MS};
pub use request::{
    CheckError, CheckRequest, DecidedBy, Decision, LimitReport, MAX_REQUEST_ID_BYTES, Outcome,
};
