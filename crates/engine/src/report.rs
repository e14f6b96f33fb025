//! What is answered for each policy: from a meter's reading to numbers that a caller can go by.

use crate::engine::{Engine, Pressure};
use crate::plan::{Matched, Plan, is_slots};
use crate::request::{DecidedBy, LimitReport, Outcome};
use apportion_core::meter::{Reading, reserve};
use apportion_core::policy::Tolerance;
use apportion_core::schedule::MICRO;
use apportion_core::{Algorithm, Policy, StoreMs};
use apportion_store::{Answer, Decided, NEWCOMERS_MS};

/// Less than this part of what is in force is left: time to look for more.
const LOW_PERCENT: u64 = 20;
/// A slot may be released at any time: it is asked for again after so long at the latest.
const SLOT_RETRY_MS: u64 = 1_000;

/// What a meter said, in its own units.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) now: StoreMs,
    pub(crate) fits: bool,
    pub(crate) crowded: bool,
    pub(crate) reading: Reading,
    /// What of it was drawn on the overdraft, and isn't put back.
    pub(crate) overdrawn: u64,
}

// === impl Told ===

impl Told {
    /// What `matched` was answered; a charge that was put back afterwards is there again.
    pub(crate) fn new(
        plan: &Plan,
        matched: &Matched,
        decided: &Decided,
        returned: &[bool],
    ) -> Self {
        let Answer {
            fits,
            crowded,
            mut reading,
            mut overdrawn,
        } = decided.answers[matched.place];
        if returned.get(matched.place) == Some(&true) {
            overdrawn = 0;
            let cost = plan.cost_of(matched);
            match &mut reading {
                Reading::Bucket { spendable, .. } => *spendable += cost,
                Reading::Window { used, .. } => *used = used.saturating_sub(cost),
                Reading::Units { available, .. } => *available += cost,
            }
        }
        Self {
            now: decided.now,
            fits,
            crowded,
            reading,
            overdrawn,
        }
    }

    /// What it would say `ms` later, if only time has passed.
    pub(crate) fn after(&self, ms: u64) -> Self {
        let mut told = self.clone();
        told.now = self.now.plus(ms);
        match &mut told.reading {
            Reading::Bucket {
                spendable,
                held,
                flow,
            } => {
                let room = flow.cap.saturating_sub(*held).saturating_sub(*spendable);
                *spendable += flow.gain(ms, room);
            }
            Reading::Window { .. } => {}
            Reading::Units {
                retry_ms, reset_ms, ..
            } => {
                *retry_ms = retry_ms.map(|retry_ms| retry_ms.saturating_sub(ms));
                *reset_ms = reset_ms.saturating_sub(ms);
            }
        }
        told
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
        let of = told.reading.of();
        let reserved = reserve(of, matched.reserve_ppm());
        let available = told.reading.available();
        let left = available.saturating_sub(reserved);
        let retry_after_ms = match told.fits {
            true => 0,
            false => self.wait_ms(plan, matched, told).max(1),
        };
        LimitReport {
            policy: policy.clone(),
            outcome,
            limit: matched.limits.limit,
            remaining: if policy.algorithm.is_bucket() {
                left / MICRO
            } else {
                left
            },
            reset_ms: match told.reading {
                Reading::Bucket {
                    spendable, flow, ..
                } => {
                    let refill_ms = flow.time_for(flow.cap.saturating_sub(spendable));
                    refill_ms.unwrap_or(self.interval_ms())
                }
                Reading::Window { label, .. } => time_left(policy, label, told.now),
                // All of its share is elsewhere: the next round may bring some.
                Reading::Units { of: 0, .. } if !is_slots(policy) => self.interval_ms(),
                Reading::Units { reset_ms, .. } => reset_ms,
            },
            retry_after_ms,
            decided_by: DecidedBy::Store,
            crowded: told.crowded,
            overdrawn: match policy.algorithm.is_bucket() {
                true => told.overdrawn.div_ceil(MICRO),
                false => told.overdrawn,
            },
        }
    }

    /// How long until the region could admit what it refused.
    fn wait_ms(&self, plan: &Plan, matched: &Matched, told: &Told) -> u64 {
        let policy = plan.policy(matched);
        let interval_ms = self.interval_ms();
        let need = plan.need_of(matched, told.reading.of());
        // What is known to be used up no other region can give.
        let may_get_more =
            plan.policies.regions.len() > 1 && policy.tolerance != Tolerance::NeverUnder;
        let at_most = |ms: u64, may: bool| if may { ms.min(interval_ms) } else { ms };
        let wait_ms = match told.reading {
            // Not for want of units.
            _ if need <= told.reading.available() => 0,
            Reading::Bucket {
                spendable, flow, ..
            } => {
                let refill_ms = (need <= flow.cap).then(|| flow.time_for(need - spendable));
                // It takes another share, or another span: the next round may bring either.
                at_most(refill_ms.flatten().unwrap_or(interval_ms), may_get_more)
            }
            Reading::Window { label, .. } => {
                let may_get_more = may_get_more && !self.is_exhausted(&matched.key, label);
                at_most(time_left(policy, label, told.now), may_get_more)
            }
            Reading::Units {
                retry_ms, reset_ms, ..
            } if is_slots(policy) => retry_ms.unwrap_or(reset_ms).min(SLOT_RETRY_MS),
            Reading::Units {
                retry_ms, reset_ms, ..
            } => match retry_ms {
                Some(retry_ms) => at_most(retry_ms, may_get_more),
                None if may_get_more || reset_ms == 0 => interval_ms,
                None => reset_ms,
            },
        };
        match told.crowded {
            true => wait_ms.max(NEWCOMERS_MS - told.now.0 % NEWCOMERS_MS),
            false => wait_ms,
        }
    }

    /// Tells the sync side of a key that ran out of rights or is about to. Slots aren't traded.
    pub(crate) fn note_pressure(&self, plan: &Plan, matched: &Matched, told: &Told) {
        let policy = plan.policy(matched);
        if is_slots(policy) || policy.tolerance == Tolerance::NeverUnder {
            return;
        }
        let (in_force, available) = (told.reading.of(), told.reading.available());
        let refused = !told.fits && plan.need_of(matched, in_force) > available;
        let left = u128::from(available) * 100;
        let is_short = refused || told.overdrawn > 0;
        if is_short || left < u128::from(in_force) * u128::from(LOW_PERCENT) {
            self.press(Pressure {
                policy: policy.clone(),
                limits: matched.limits,
                key: matched.key.clone(),
                label: match told.reading {
                    Reading::Window { label, .. } => Some(label),
                    Reading::Bucket { .. } | Reading::Units { .. } => None,
                },
                refused: is_short,
            });
        }
    }
}

/// A report of a policy that no meter spoke for.
pub(crate) fn unmetered(plan: &Plan, matched: &Matched, outcome: Outcome) -> LimitReport {
    LimitReport {
        policy: plan.policy(matched).clone(),
        outcome,
        limit: matched.limits.limit,
        remaining: 0,
        reset_ms: 0,
        retry_after_ms: 0,
        decided_by: DecidedBy::FailureMode,
        crowded: false,
        overdrawn: 0,
    }
}

/// How long the window `label` of a policy goes on.
pub(crate) fn time_left(policy: &Policy, label: u64, now: StoreMs) -> u64 {
    match policy.algorithm {
        Algorithm::FixedWindow { period } => period.bounds(label).1.since(now),
        _ => 0,
    }
}
