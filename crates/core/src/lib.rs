//! What Apportion is about, as pure functions: policies, keys, meters, shares, loans, transfers, usage and lives.
//!
//! Nothing here does I/O, awaits, reads a clock or draws a random number: time and seeds come in as arguments.
//! So the simulator, the memory store and the nodes run the very same code, and the Lua that runs in Redis has
//! something exact to be compared with.

pub mod allotment;
pub mod demand;
pub mod division;
pub mod fence;
pub mod ids;
pub mod key;
pub mod lives;
pub mod meter;
pub mod period;
pub mod planted;
pub mod policy;
pub mod regime;
pub mod rollout;
pub mod schedule;
pub mod tally;
pub mod usage;

pub use ids::{Actor, Epoch, Life, Record, Region, StoreMs};
pub use key::{Attributes, Key, KeyError, Partition, SubjectHash};
pub use period::Period;
pub use policy::{Algorithm, Limits, Policy, PolicyErrors, PolicySet};
pub use regime::Regime;
