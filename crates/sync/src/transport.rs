//! The network between regions: gRPC, with a limit on everything.
//!
//! [`Peers`] is the client's side, one lazily connected channel a peer; [`server`] the other. Neither decides anything
//! nor tries anything twice: what is lost comes again with a later round.

pub mod client;
pub mod server;
#[cfg(test)]
pub(crate) mod tests;

pub use client::{ExchangeError, Options, PeerAddressError, Peers};
pub use server::{Incoming, SyncService, serve};

use apportion_core::{Key, StoreMs};
use std::pin::Pin;
use std::time::Duration;

/// A message that is larger isn't taken, on either side.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// From sending to answer, connecting included. How long an answer takes depends on the link and on the peer's store,
/// not on the interval: so does this.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an incoming message may wait for the machine's answer: less than the peer waits, so that it is told.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection that is silent so long is asked for a sign of life, and given up after as long again: a black hole is
/// noticed within eight seconds.
pub const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Flow control windows for a stream, and for a connection: wide enough for a link across the world.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Asks a region for its part of one key's budget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareQuery {
    pub key: Key,
    /// Of a fixed window; `None`: the present one.
    pub label: Option<u64>,
}

/// A region's part of one key's budget, in units of the limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Share {
    pub base: f64,
    pub lent: f64,
    pub borrowed: f64,
    pub given: u64,
    pub received: u64,
    pub in_force: f64,
    pub used: f64,
    /// The region's store clock at the reading.
    pub as_of: StoreMs,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShareError {
    #[error("no policy {0:?} there")]
    UnknownPolicy(String),
    #[error("the store is out of reach: {0}")]
    StoreUnavailable(String),
    #[error("the region is out of reach: {0}")]
    Unreachable(String),
}

/// Knows this region's own part of any key's budget.
pub trait ShareSource: Send + Sync + 'static {
    fn shares(&self, query: ShareQuery) -> BoxFuture<'_, Result<Share, ShareError>>;
}
