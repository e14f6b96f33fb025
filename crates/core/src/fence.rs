//! What a node vouches for with every call: which history of the store it means, and for how long the store's clock
//! can be trusted.

use crate::ids::{Record, StoreMs};
use serde::{Deserialize, Serialize};

/// How long after its anchor a store's clock is trusted. Longer than a node's restart.
pub const SPAN_MS: u64 = 5_000;
/// How often a node compares the store's clock with its own monotonic one.
pub const CHECK_MS: u64 = 1_000;
/// By how much the clocks of stores and nodes may run fast or slow against each other: one part in a thousand.
pub const DRIFT_PPM: u64 = 1_000;
/// What every timer that protects the sum waits beyond its due: three spans, for steps that nobody can see, and one for
/// a take-over of the anchor on each side.
pub const MARGIN_MS: u64 = 5 * SPAN_MS;
/// The longest that anything is held out of a meter. Below [`MARGIN_MS`], so that what was held on borrowed share is
/// settled before the lender can use that share again.
pub const HOLD_MAX_MS: u64 = 5_000;
/// How far the clocks of two hosts that serve one region's store, one after the other, may differ.
pub const SKEW_MS: u64 = 60_000;

/// Rights of a window are given at most so long before it begins, by the giver's clock.
pub const GIVEN_AHEAD_MS: u64 = 60_000;
/// For how long a store and a replica of it that took over can both decide: until the old one has noticed that its replica
/// is gone, or else the last span is over that was begun before; and a span for each of their clocks.
pub const fn overlap_ms(replica_max_lag_ms: u64) -> u64 {
    with_drift(replica_max_lag_ms + 3 * SPAN_MS)
}

/// `[from, until]` on the store's clock. Outside, a script uses no borrowed share, reclaims nothing, refills nothing
/// and opens no window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    pub from: StoreMs,
    pub until: StoreMs,
}

/// What a rate key that isn't in the store stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Missing {
    /// It expired full, or was never used.
    Full,
    /// It may have been lost: empty at that moment, refilled since.
    EmptyAt(StoreMs),
}

/// Carried by every call that touches a meter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    pub record: Record,
    pub span: Span,
    /// The first moment of the present epoch: meters of an older one go on from here.
    pub epoch_began: StoreMs,
    pub missing: Missing,
    /// A window that ends at or before this has been seen to pass, and is closed for good.
    pub closed_before: StoreMs,
    /// The store has replicas: outside the span nothing is decided, since one of them may have taken over.
    pub replicated: bool,
}

impl Span {
    pub fn after(anchor: StoreMs) -> Self {
        Self {
            from: anchor,
            until: anchor.plus(SPAN_MS),
        }
    }

    /// Trusts nothing: a span that no moment is in.
    pub const fn never() -> Self {
        Self {
            from: StoreMs(1),
            until: StoreMs(0),
        }
    }

    pub fn contains(&self, now: StoreMs) -> bool {
        self.from <= now && now <= self.until
    }
}

/// `ms` by the slowest clock, measured on the fastest.
pub const fn with_drift(ms: u64) -> u64 {
    ms + (ms * DRIFT_PPM).div_ceil(1_000_000)
}
