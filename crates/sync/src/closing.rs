//! Closing and opening a region, as an operator sees it: one call, and what came of it.
//!
//! The steps are the region's, in its store, and any of its nodes takes the next one. So a call that is broken off
//! leaves nothing half done that asking again wouldn't finish.

use crate::driver::Handle;
use crate::keeper::Wish;
use crate::status::SyncStatus;
use apportion_core::lives::{RegionState, Stage, TELL_MS};
use apportion_core::{Life, Region};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is looked at how far things are.
const GLANCE: Duration = Duration::from_millis(20);
/// For how long a call waits: for peers to be told, and for the store before and after.
const WITHIN: Duration = Duration::from_millis(TELL_MS + 4_000);

/// How far the region's last closing is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClosingStatus {
    pub life: Life,
    /// Counts the closings of this life.
    pub number: u32,
    pub progress: Progress,
    /// Peers that haven't confirmed what they are told.
    pub unconfirmed: Vec<Region>,
    /// Peers that are closing themselves.
    pub closing_peers: Vec<Region>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Peers are told. The region decides as ever.
    Telling,
    Stopping,
    Closed,
    /// Peers are asked to strike the nonce off. The region is closed.
    Opening,
    Open,
}

/// Why a region isn't closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CloseError {
    #[error(
        "it has no peer that could vouch for its store afterwards; a lone region can't be closed"
    )]
    Lone,
    #[error("not all regions have met yet, so it isn't settled what its store may spend")]
    Asking,
    #[error("not confirmed by {}: they have to know before the store is stopped", names(.0))]
    Unconfirmed(Vec<Region>),
    #[error("{} must be open meanwhile, and is closing or closed itself", names(.0))]
    PeerCloses(Vec<Region>),
    #[error("it is being opened")]
    Opening,
    #[error("its store is out of reach")]
    StoreUnavailable,
}

/// Why a region is still closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} must strike off the nonce first, and can't be reached", names(.0))]
    Unconfirmed(Vec<Region>),
    #[error("its store is out of reach")]
    StoreUnavailable,
}

/// An open region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    pub life: Life,
    /// It was closed when this call came, and its life couldn't go on.
    pub lost: bool,
}

fn names(regions: &[Region]) -> String {
    let names: Vec<&str> = regions.iter().map(Region::as_str).collect();
    names.join(", ")
}

// === impl ClosingStatus ===

impl ClosingStatus {
    pub(crate) fn of(state: &RegionState, peers: &[Region]) -> Option<Self> {
        let closing = state.closing.as_ref()?;
        Some(Self {
            life: state.life,
            number: closing.nonce.number,
            progress: match closing.stage {
                Stage::Telling { .. } => Progress::Telling,
                Stage::Stopping => Progress::Stopping,
                Stage::Closed => Progress::Closed,
                Stage::Opening { .. } => Progress::Opening,
                Stage::Open { .. } => Progress::Open,
            },
            unconfirmed: closing.unconfirmed(peers),
            closing_peers: state.closing_peers(peers),
        })
    }

    /// No decisions are made.
    pub fn is_shut(&self) -> bool {
        !matches!(self.progress, Progress::Telling | Progress::Open)
    }
}

// === impl SyncStatus ===

impl SyncStatus {
    /// How far the closing is of a region that decides nothing for its sake.
    pub fn closed(&self) -> Option<&ClosingStatus> {
        self.closing.as_ref().filter(|closing| closing.is_shut())
    }
}

// === impl Handle ===

impl Handle {
    /// Stops all decisions of the region, in all of its nodes, so that its store can be restarted without loss. Done
    /// where it was done before.
    ///
    /// # Errors
    /// Where it isn't closed, and goes on deciding.
    pub async fn close(&self) -> Result<(), CloseError> {
        let before = self.status();
        if !self.has_peers() {
            return Err(CloseError::Lone);
        }
        if before.standing == "asking" && before.closing.is_none() {
            return Err(match before.life {
                Some(_) => CloseError::Asking,
                None => CloseError::StoreUnavailable,
            });
        }
        let deadline = Instant::now() + WITHIN;
        if !self.done(Wish::Close, deadline).await {
            return Err(CloseError::StoreUnavailable);
        }
        let mut why = CloseError::StoreUnavailable;
        while Instant::now() < deadline {
            let Some(closing) = self.status().closing else {
                return Err(why);
            };
            match closing.progress {
                Progress::Closed => return Ok(()),
                Progress::Opening => return Err(CloseError::Opening),
                Progress::Open => return Err(why),
                Progress::Telling if !closing.closing_peers.is_empty() => {
                    why = CloseError::PeerCloses(closing.closing_peers);
                }
                Progress::Telling if !closing.unconfirmed.is_empty() => {
                    why = CloseError::Unconfirmed(closing.unconfirmed);
                }
                Progress::Telling | Progress::Stopping => {}
            }
            sleep(GLANCE).await;
        }
        Err(why)
    }

    /// Waits until the store has seen what the operator wants.
    async fn done(&self, wish: Wish, deadline: Instant) -> bool {
        let before = self.status().wishes_done;
        if !self.wish(wish) {
            return false;
        }
        while self.status().wishes_done == before {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(GLANCE).await;
        }
        true
    }

    /// Lets a closed region go on: in its life, once peers have struck off the nonce, or (`as_lost`) at once in a new
    /// one. Done where it is open.
    ///
    /// # Errors
    /// Where it is still closed. It goes on by itself once it can.
    pub async fn open(&self, as_lost: bool) -> Result<Opened, OpenError> {
        let wish = if as_lost {
            Wish::OpenAsLost
        } else {
            Wish::Open
        };
        let before = self.status();
        let closed_life = before.closed().map(|closing| closing.life);
        let deadline = Instant::now() + WITHIN;
        if !self.done(wish, deadline).await {
            return Err(OpenError::StoreUnavailable);
        }
        loop {
            let status = self.status();
            let regime = self.regime().load_full();
            if let Some(regime) = regime.filter(|_| status.closed().is_none()) {
                let life = regime.state.life;
                let lost = closed_life.is_some_and(|closed| closed != life);
                return Ok(Opened { life, lost });
            }
            if Instant::now() >= deadline {
                let waits = status.closed().filter(|c| c.progress == Progress::Opening);
                return Err(match waits {
                    Some(closing) if status.store_ok && !closing.unconfirmed.is_empty() => {
                        OpenError::Unconfirmed(closing.unconfirmed.clone())
                    }
                    _ => OpenError::StoreUnavailable,
                });
            }
            sleep(GLANCE).await;
        }
    }
}
