//! A region's store: a batch of operations in, replies out.
//!
//! Two stores do the same: [`memory`] runs the meters of `core` in process, [`RedisStore`] runs their Lua twins next to the
//! data. Differential tests hold the two equal. A store knows meters, terms and counters; loans, transfers and lives
//! are opaque bytes to it, swapped by compare-and-set.

mod batch;
pub mod memory;
pub mod op;
mod redis;

pub use memory::{Memory, MemoryStore};
pub use op::*;
pub use redis::{Inspection, RedisStore};

use std::future::Future;

/// One region's store, shared by any number of nodes.
pub trait Store: Send + Sync + 'static {
    /// Runs `ops` in order. Each is atomic in itself, the batch is not.
    ///
    /// Every operation is sent at most once: what has an unknown outcome is not tried again here.
    fn call(&self, ops: Vec<Op>) -> impl Future<Output = Vec<Result<Reply, StoreError>>> + Send;

    /// Runs one operation.
    fn one(&self, op: Op) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        async move {
            let mut replies = self.call(vec![op]).await;
            replies
                .pop()
                .unwrap_or_else(|| Err(StoreError::Unknown("no reply".into())))
        }
    }
}
