//! A region's part of one key's budget, for people to look at.

use crate::plan::{Scene, Told, is_traded, stored};
use crate::transport::Share;
use apportion_core::key::SubjectHash;
use apportion_core::meter::Settled;
use apportion_core::policy::Tolerance;
use apportion_core::schedule::{MICRO, PPB};
use apportion_core::{Algorithm, Policy, Regime, StoreMs};
use apportion_store::{MeterId, Snapshot};
use std::collections::BTreeMap;

/// What `regime`'s region has of the budget of `id`, in units of the limit, by what its store said at `now`.
///
/// Where the limit depends on the plan, it is that of the last request here. Slots are each region's own.
pub fn share_of(
    regime: &Regime,
    policy: &Policy,
    hash: &SubjectHash,
    id: &MeterId,
    snapshot: &Snapshot,
    now: StoreMs,
) -> Share {
    let (fence, actors) = (regime.fence(), BTreeMap::new());
    let scene = Scene {
        regime,
        fence: &fence,
        policy,
        hash,
        id,
        peers: &[],
        actors: &actors,
        interval_ms: 0,
        now,
        mono: 0,
    };
    let told = Told::default();
    let found = || stored(snapshot).ok().flatten();
    if let Algorithm::FixedWindow { period } = policy.algorithm {
        let window = scene.window_now(period, snapshot, found(), told);
        return Share {
            base: window.base as f64,
            lent: 0.0,
            borrowed: 0.0,
            given: window.transfers.given_units(),
            received: window.transfers.received_units(),
            in_force: (window.used + window.left) as f64,
            used: window.used as f64,
            as_of: now,
        };
    }
    if let Algorithm::Concurrency { .. } = policy.algorithm {
        let rule = scene.rule(scene.limits(snapshot, told));
        let settled = Settled::new(snapshot.meter.as_ref(), None, &rule, None, &fence, now);
        return Share {
            base: rule.limits.limit as f64,
            in_force: settled.of as f64,
            used: settled.counted() as f64,
            as_of: now,
            ..Share::default()
        };
    }
    if policy.tolerance == Tolerance::NeverUnder {
        // Each region goes by the whole, and by what it knows is used of it.
        let rule = scene.rule(scene.limits(snapshot, told));
        let settled = Settled::new(snapshot.meter.as_ref(), None, &rule, None, &fence, now);
        let used = match policy.algorithm.is_bucket() {
            true => settled.of.saturating_sub(settled.available()) as f64 / MICRO as f64,
            false => settled.counted() as f64,
        };
        return Share {
            base: rule.limits.limit as f64,
            in_force: rule.limits.limit as f64,
            used,
            as_of: now,
            ..Share::default()
        };
    }
    if !is_traded(policy, id) {
        return Share::default();
    }
    let loan = scene.loan_now(snapshot, found(), told);
    let units = |ppb: u64| loan.rule.limits.limit as f64 * ppb as f64 / PPB as f64;
    let scale = if policy.algorithm.is_bucket() {
        MICRO as f64
    } else {
        1.0
    };
    Share {
        base: units(loan.base),
        lent: units(loan.base.saturating_sub(loan.own)),
        borrowed: units(loan.loans.borrowed_at(now)),
        given: 0,
        received: 0,
        in_force: units(loan.share),
        used: loan.used as f64 / scale,
        as_of: now,
    }
}
