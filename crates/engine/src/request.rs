//! What is asked of a node and what it answers, before any wire format.

use apportion_core::{Attributes, Policy, Region, StoreMs};
use std::sync::Arc;

/// One question: may this request pass?
#[derive(Debug, Clone)]
pub struct CheckRequest {
    pub attributes: Attributes,
    /// Units to charge, at least 1.
    pub cost: u64,
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
}

/// What one policy said.
#[derive(Debug, Clone)]
pub struct LimitReport {
    pub policy: Arc<Policy>,
    pub outcome: Outcome,
    /// The customer's global limit, in units.
    pub limit: u64,
    /// What this region can admit now, in whole units.
    pub remaining: u64,
    /// Time to full quota.
    pub reset_ms: u64,
    /// Earliest time at which this region could admit; 0 where it did.
    pub retry_after_ms: u64,
    pub decided_by: DecidedBy,
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
            invalid => invalid,
        }
    }
}
