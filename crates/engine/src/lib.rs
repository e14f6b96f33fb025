//! Decides a request: which policies match, what their meters say, what is answered.

pub mod request;

pub use request::{CheckError, CheckRequest, DecidedBy, Decision, LimitReport, Outcome};
