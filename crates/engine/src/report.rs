//! What is answered for each policy: from a meter's reading to numbers that a caller can go by.

use crate::engine::{Engine, Pressure};
use crate::plan::{Matched, Plan};
use crate::request::{DecidedBy, LimitReport, Outcome};
use apportion_core::meter::{Reading, label_bounds};
use apportion_core::schedule::MICRO;
use apportion_core::{Algorithm, Policy, StoreMs};
use apportion_store::{Answer, Decided};
use std::sync::Arc;

/// Less than this part of what is in force is left: time to look for more.
const LOW_PERCENT: u64 = 20;

/// What a meter said, in its own units.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) now: StoreMs,
    pub(crate) fits: bool,
    pub(crate) reading: Reading,
}

impl Told {
    /// What `matched` was answered; a charge that was put back afterwards is there again.
    pub(crate) fn new(
        plan: &Plan,
        matched: &Matched,
        decided: &Decided,
        returned: &[bool],
    ) -> Self {
        let Answer { fits, mut reading } = decided.answers[matched.place];
        if returned.get(matched.place) == Some(&true) {
            match &mut reading {
                Reading::Bucket { spendable, .. } => *spendable += plan.cost * MICRO,
                Reading::Window { used, .. } => *used = used.saturating_sub(plan.cost),
            }
        }
        Self {
            now: decided.now,
            fits,
            reading,
        }
    }
}

impl<S> Engine<S> {
    pub(crate) fn report(
        &self,
        plan: &Plan,
        matched: &Matched,
        told: &Told,
        allowed: bool,
    ) -> LimitReport {
        let policy = plan.policy(matched);
        let outcome = match (told.fits, allowed) {
            (true, true) => Outcome::Allowed,
            (true, false) => Outcome::NotCharged,
            (false, _) if policy.shadow => Outcome::ShadowRefused,
            (false, _) => Outcome::Refused,
        };
        let may_get_more = plan.policies.regions.len() > 1;
        let (remaining, reset_ms, wait_ms) = match told.reading {
            Reading::Bucket {
                spendable, flow, ..
            } => {
                let cost = plan.cost * MICRO;
                let refill_ms = flow.time_for(flow.cap.saturating_sub(spendable));
                let wait_ms = (cost <= flow.cap)
                    .then(|| flow.time_for(cost.saturating_sub(spendable)))
                    .flatten()
                    // It takes another share, or another span: the next round may bring either.
                    .unwrap_or(self.interval_ms());
                let wait_ms = match may_get_more {
                    true => wait_ms.min(self.interval_ms()),
                    false => wait_ms,
                };
                let reset_ms = refill_ms.unwrap_or(self.interval_ms());
                (spendable / MICRO, reset_ms, wait_ms)
            }
            Reading::Window { label, .. } => {
                let left_ms = time_left(policy, label, told.now);
                let wait_ms = match may_get_more && !self.is_exhausted(&matched.key, label) {
                    true => left_ms.min(self.interval_ms()),
                    false => left_ms,
                };
                (told.reading.available(), left_ms, wait_ms)
            }
        };
        LimitReport {
            policy: policy.clone(),
            outcome,
            limit: policy.limit(),
            remaining,
            reset_ms,
            retry_after_ms: if told.fits { 0 } else { wait_ms.max(1) },
            decided_by: DecidedBy::Store,
        }
    }

    /// Tells the sync side of a key that ran out of rights or is about to.
    pub(crate) fn note_pressure(&self, plan: &Plan, matched: &Matched, told: &Told) {
        let policy = plan.policy(matched);
        let (cost, in_force, label) = match told.reading {
            Reading::Bucket { flow, .. } => (plan.cost * MICRO, flow.cap, None),
            Reading::Window { rights, label, .. } => (plan.cost, rights, Some(label)),
        };
        let refused = !told.fits && !told.reading.admits(cost);
        let left = u128::from(told.reading.available()) * 100;
        if refused || left < u128::from(in_force) * u128::from(LOW_PERCENT) {
            self.press(Pressure {
                policy: policy.clone(),
                key: matched.key.clone(),
                label,
                refused,
            });
        }
    }
}

/// A report of a policy that no meter spoke for.
pub(crate) fn unmetered(policy: &Arc<Policy>, outcome: Outcome) -> LimitReport {
    LimitReport {
        policy: policy.clone(),
        outcome,
        limit: policy.limit(),
        remaining: 0,
        reset_ms: 0,
        retry_after_ms: 0,
        decided_by: DecidedBy::FailureMode,
    }
}

fn time_left(policy: &Policy, label: u64, now: StoreMs) -> u64 {
    match policy.algorithm {
        Algorithm::FixedWindow { per_ms, .. } => label_bounds(label, per_ms).1.since(now),
        Algorithm::TokenBucket { .. } => 0,
    }
}
