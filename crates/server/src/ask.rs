//! What a caller asked, as the wire formats have it in common, and the checks that hold on each of them.

use crate::errors::Failure;
use apportion_core::key::check_attributes;
use apportion_core::{Attributes, Policy};
use apportion_engine::{CheckRequest, MAX_COST};

/// A check as it was asked, before any of it is believed.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    pub(crate) attributes: Attributes,
    /// Left out: 1.
    pub(crate) cost: Option<u64>,
    pub(crate) priority: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) peek: bool,
}

/// The bounds of a cost, in words.
pub(crate) fn expected_cost() -> String {
    format!("expected a whole number from 1 to {MAX_COST}")
}

// === impl Ask ===

impl Ask {
    pub(crate) fn into_request(self) -> Result<CheckRequest, Failure> {
        check_attributes(&self.attributes)?;
        let cost = self.cost.unwrap_or(1);
        if !(1..=MAX_COST).contains(&cost) {
            return Err(Failure::invalid(
                "cost",
                format!("{}, found {cost}", expected_cost()),
            ));
        }
        Ok(CheckRequest {
            attributes: self.attributes,
            cost,
            priority: self.priority,
            request_id: self.request_id,
            peek: self.peek,
        })
    }
}

/// The key attributes of `policy` with their values: a subject, for people.
pub(crate) fn subject_of(policy: &Policy, key: &apportion_core::Key) -> Attributes {
    policy.key.iter().cloned().zip(key.subject()).collect()
}
