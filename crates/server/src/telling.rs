//! The store as the sync side has it: what it changes of a key is told to the node's denied-cache.

use crate::store::AnyStore;
use apportion_core::Key;
use apportion_engine::DeniedCache;
use apportion_store::{Op, Reply, Store, StoreError};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Telling {
    pub(crate) store: AnyStore,
    pub(crate) denied: Arc<DeniedCache>,
}

impl Store for Telling {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        let swapped: Vec<Key> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Swap(swap) => Some(swap.id.key.clone()),
                _ => None,
            })
            .collect();
        let replies = self.store.call(ops).await;
        // Also where the outcome isn't known: it costs a question.
        swapped.iter().for_each(|key| self.denied.changed(key));
        replies
    }
}
