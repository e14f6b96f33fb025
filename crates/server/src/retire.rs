//! The operator's word that another region's store is off for good.

use crate::node::Node;
use apportion_core::Region;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long the word may take to be in this region's store.
const WITHIN: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(20);

/// Why a region wasn't retired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetireError {
    #[error("{0} is the region that was asked; expected another one, that is off for good")]
    Itself(Region),
    #[error("no region {name:?} shares a budget here; there are {known}")]
    Unknown { name: String, known: String },
    #[error(
        "region {0} is within reach right now, so its store isn't off; say force to retire it all the same"
    )]
    Reachable(Region),
    #[error(
        "whether region {0} is within reach isn't known: this node hasn't listened for long enough; ask again in a few \
         seconds, or say force"
    )]
    TooEarly(Region),
    #[error(
        "the store is out of reach, or another node was faster each time; nothing is known to be written"
    )]
    NotWritten,
}

impl Node {
    /// Takes down that `name`'s store is off for good. It stands in this region's store when this returns, and the other
    /// regions hear of it with the next round. Saying it again changes nothing.
    ///
    /// # Errors
    /// Where that can't be, or isn't known to be written.
    pub async fn retire(&self, name: &str, force: bool) -> Result<Region, RetireError> {
        let status = self.sync_status();
        let region = Region::new(name);
        if region == status.region {
            return Err(RetireError::Itself(region));
        }
        if !status.rollout.regions.contains(&region) && !status.peers.contains_key(&region) {
            let known = status.rollout.regions.iter().chain([&status.region]);
            let known: std::collections::BTreeSet<&str> = known.map(Region::as_str).collect();
            return Err(RetireError::Unknown {
                name: name.to_owned(),
                known: known.into_iter().collect::<Vec<_>>().join(", "),
            });
        }
        if let Some(peer) = status.peers.get(&region).filter(|_| !force) {
            if peer.reachable {
                return Err(RetireError::Reachable(region));
            }
            if !peer.silent {
                return Err(RetireError::TooEarly(region));
            }
        }
        self.sync().retire(region.clone()).await;
        let written = async {
            while !self.sync_status().rollout.retired.contains(&region) {
                sleep(GLANCE).await;
            }
        };
        timeout(WITHIN, written)
            .await
            .map(|()| region)
            .map_err(|_| RetireError::NotWritten)
    }
}
