//! Models of the protocols between regions, checked to the end of small spaces.
//!
//! Where the simulator runs the whole product along many random ways, a model runs a small part of it along every way there
//! is: each order of events, each message lost, late or doubled, each store lost at each moment, within stated bounds.
//! Each model can also make mistakes, one at a time; that the checker finds them says that it would find others.
//!
//! `loans`, `transfers` and `first_life` call the production functions; `revisions` is written down anew.

pub mod check;
pub mod first_life;
pub mod loans;
pub mod revisions;
pub mod transfers;

#[cfg(test)]
mod tests;
