//! A region's part of one key's budget, for people to look at.

use crate::plan::Scene;
use crate::transport::Share;
use apportion_core::schedule::{MICRO, PPB};
use apportion_core::{Algorithm, Policy, Regime, StoreMs};
use apportion_store::{MeterId, Snapshot};
use std::collections::BTreeMap;

/// What `regime`'s region has of the budget of `id`, in units of the limit, by what its store said at `now`.
pub fn share_of(
    regime: &Regime,
    policy: &Policy,
    id: &MeterId,
    snapshot: &Snapshot,
    now: StoreMs,
) -> Share {
    let (fence, actors) = (regime.fence(), BTreeMap::new());
    let scene = Scene {
        regime,
        fence: &fence,
        policy,
        id,
        peers: &[],
        actors: &actors,
        interval_ms: 0,
        now,
        mono: 0,
    };
    match policy.algorithm {
        Algorithm::TokenBucket { limit, .. } => {
            let Some(rate) = scene.rate() else {
                return Share::default();
            };
            let rate = scene.rate_now(rate, snapshot);
            let units = |ppb: u64| limit as f64 * ppb as f64 / PPB as f64;
            Share {
                base: units(rate.base),
                lent: units(rate.base.saturating_sub(rate.own)),
                borrowed: units(rate.loans.borrowed_at(now)),
                given: 0,
                received: 0,
                in_force: units(rate.share),
                used: rate.cap.saturating_sub(rate.spendable) as f64 / MICRO as f64,
                as_of: now,
            }
        }
        Algorithm::FixedWindow { per_ms, .. } => {
            let window = scene.window_now(per_ms, snapshot);
            Share {
                base: window.base as f64,
                lent: 0.0,
                borrowed: 0.0,
                given: window.transfers.given_units(),
                received: window.transfers.received_units(),
                in_force: (window.used + window.left) as f64,
                used: window.used as f64,
                as_of: now,
            }
        }
    }
}
