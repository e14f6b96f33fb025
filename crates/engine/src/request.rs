//! What is asked of a node and what it answers, before any wire format.

use apportion_core::{Attributes, Policy, Region, StoreMs};
use std::sync::Arc;

/// Longest name that a caller gives a request, bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

/// One question: may this request pass?
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    pub attributes: Attributes,
    /// Units to charge, at least 1.
    pub cost: u64,
    /// The class of policies that have classes.
    pub priority: Option<String>,
    /// Names the request, so that a retry is charged once: 1 to [`MAX_REQUEST_ID_BYTES`] of printable ASCII. Means nothing
    /// with `peek`.
    pub request_id: Option<String>,
    /// Ask without consuming.
    pub peek: bool,
}

/// The answer to a [`CheckRequest`].
#[derive(Debug, Clone)]
pub struct Decision {
    pub allowed: bool,
    pub region: Region,
    /// The deciding store's clock.
    pub decided_at: StoreMs,
    /// One for each matching policy, in the order of the file.
    pub limits: Vec<LimitReport>,
    /// Names the slots that were taken; to be given to [`Engine::release`](crate::Engine::release) when the work is done.
    pub reservation: Option<String>,
    /// This is what the request with this `request_id` was answered before; nothing was charged now.
    pub replayed: bool,
}

/// What one policy said.
#[derive(Debug, Clone)]
pub struct LimitReport {
    pub policy: Arc<Policy>,
    pub outcome: Outcome,
    /// The customer's global limit, in units: the one that applied to this request.
    pub limit: u64,
    /// What this region can admit now of the request's class, in whole units.
    pub remaining: u64,
    /// Time to full quota.
    pub reset_ms: u64,
    /// Earliest time at which this region could admit; 0 where it did.
    pub retry_after_ms: u64,
    pub decided_by: DecidedBy,
    /// It was refused because too many subjects were new in this second.
    pub crowded: bool,
    /// Units that were drawn on the overdraft: beyond this region's rights, and counted by its policy's tolerance.
    pub overdrawn: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Refused,
    /// A shadow policy would have refused.
    ShadowRefused,
    /// Another policy refused, so this one was not charged.
    NotCharged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedBy {
    Store,
    /// This node, by what the store has refused before.
    DeniedCache,
    FailureMode,
}

/// Why a request could not be decided.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    /// The caller's mistake; `field` names what is wrong.
    #[error("{field}: {message}")]
    Invalid {
        field: &'static str,
        message: String,
    },
    /// Nothing was charged.
    #[error(
        "request_id: it was used for another request, or other policies match the request now; expected a name that is new"
    )]
    RequestIdReused,
    /// A policy that fails closed matches, and its store is out of reach or doesn't answer in time.
    /// `outcome_unknown`: the call may have been executed.
    #[error("the store of region {region} is out of reach: {reason}")]
    StoreUnavailable {
        region: Region,
        reason: String,
        outcome_unknown: bool,
    },
}

// === impl CheckError ===

impl CheckError {
    pub(crate) fn invalid(field: &'static str, message: String) -> Self {
        Self::Invalid { field, message }
    }

    /// The same, but unknown if anything else about the request is.
    pub(crate) fn or_unknown(self, unknown: bool) -> Self {
        match self {
            Self::StoreUnavailable {
                region,
                reason,
                outcome_unknown,
            } => Self::StoreUnavailable {
                region,
                reason,
                outcome_unknown: outcome_unknown || unknown,
            },
            other => other,
        }
    }
}
