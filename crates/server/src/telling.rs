//! The store as the sync side has it: what it changes of a key is told to the node's denied-cache, and what peers are
//! heard to have overshot is counted.

use crate::metrics::overshot;
use crate::store::AnyStore;
use apportion_core::{Key, Region};
use apportion_engine::DeniedCache;
use apportion_store::{Op, Reply, Store, StoreError};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Telling {
    pub(crate) region: Region,
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
        let told: Vec<Vec<Key>> = ops.iter().map(keys_heard).collect();
        let replies = self.store.call(ops).await;
        for (keys, reply) in told.iter().zip(&replies) {
            if let Ok(Reply::Heard(beyond)) = reply {
                let over = keys.iter().zip(beyond).filter(|(_, units)| **units > 0);
                over.for_each(|(key, units)| overshot(&self.region, key.policy_id(), *units));
            }
        }
        // Also where the outcome isn't known: it costs a question.
        swapped.iter().for_each(|key| self.denied.changed(key));
        replies
    }
}

/// The keys of which an operation takes in what peers say, in their order.
fn keys_heard(op: &Op) -> Vec<Key> {
    match op {
        Op::Hear { heard, .. } => heard.iter().map(|h| h.id.key.clone()).collect(),
        _ => Vec::new(),
    }
}
