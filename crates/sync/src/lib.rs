//! Rounds between regions: usage, loans and transfers, and the lives of the stores behind them.
//!
//! [`machine`] is the protocol: inputs in, effects out, no I/O and no clock of its own, so that the simulator runs
//! the very same code with a crash between any two effects. [`driver`] carries out its effects on a real store and a
//! real network, [`transport`] is that network.

pub mod clock;
mod closing;
pub mod driver;
mod keeper;
pub mod machine;
pub mod message;
mod parcel;
mod plan;
mod share;
mod status;
mod track;
pub mod transport;
pub mod wire;
mod work;

pub use closing::{CloseError, ClosingStatus, OpenError, Opened, Progress};
pub use driver::{Handle, Setup, spawn};
pub use keeper::Wish;
pub use machine::{
    Config, Effect, Input, JobId, Machine, PeerView, Pressure, ReplyToken, RolloutView,
};
pub use message::{Ask, Message, Trade, UsageEntry};
pub use share::share_of;
pub use status::{PeerStatus, SyncStatus};
pub use track::Mono;
