//! Sample traffic for `dev --load`: a constant rate that moves from region to region, so that the budget has to follow.
//!
//! The rate doesn't wait for answers: a slow answer delays no later request. It is a demonstration, not a benchmark.

use crate::face::Limiter;
use apportion_core::{Attributes, Policy};
use apportion_engine::{CheckError, CheckRequest, Decision};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Requests that may wait for their answers at once; beyond that the load is skipped, and said to be.
const MAX_IN_FLIGHT: usize = 512;
const REPORT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Requests a second, over all regions; at least 1.
    pub per_second: u32,
    /// Subjects that take turns; at least 1.
    pub tenants: u32,
    /// Time in one region before the traffic moves to the next.
    pub stay: Duration,
}

/// What became of one region's requests since the last report.
#[derive(Debug, Default)]
struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

/// Drives `regions` in turn until `shutdown`, and logs a line a second for each.
pub async fn drive<L: Limiter>(regions: Vec<L>, options: LoadOptions, shutdown: CancellationToken) {
    if regions.is_empty() {
        return;
    }
    let regions: Vec<(L, Arc<Tally>)> = regions
        .into_iter()
        .map(|region| (region, Arc::default()))
        .collect();
    tokio::join!(
        send(&regions, &options, &shutdown),
        report(&regions, &shutdown)
    );
}

async fn send<L: Limiter>(
    regions: &[(L, Arc<Tally>)],
    options: &LoadOptions,
    shutdown: &CancellationToken,
) {
    let requests = requests(&regions[0].0, options.tenants.max(1));
    let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let start = Instant::now();
    let mut tick = interval(Duration::from_secs(1) / options.per_second.max(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for request in requests.iter().cycle() {
        if shutdown.run_until_cancelled(tick.tick()).await.is_none() {
            return;
        }
        let moves = start.elapsed().as_millis() / options.stay.as_millis().max(1);
        let (region, tally) = &regions[(moves % regions.len() as u128) as usize];
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tally.skipped.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let (region, tally, request) = (region.clone(), Arc::clone(tally), request.clone());
        tokio::spawn(async move {
            tally.count(&region.check(request).await);
            drop(place);
        });
    }
}

async fn report<L: Limiter>(regions: &[(L, Arc<Tally>)], shutdown: &CancellationToken) {
    let mut tick = interval(REPORT);
    tick.tick().await;
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        for (region, tally) in regions {
            let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
            tracing::info!(
                region = %region.region(),
                admitted = take(&tally.admitted),
                refused = take(&tally.refused),
                failed = take(&tally.failed),
                skipped = take(&tally.skipped),
                "load",
            );
        }
    }
}

/// One request for each policy and tenant, which that policy matches.
fn requests<L: Limiter>(limiter: &L, tenants: u32) -> Vec<CheckRequest> {
    let policies = limiter.policies();
    let mut distinct = BTreeSet::new();
    for tenant in 1..=tenants {
        let tenant = format!("load-{tenant}");
        if policies.policies.is_empty() {
            distinct.insert(Attributes::from([("tenant".to_owned(), tenant.clone())]));
        }
        for policy in &policies.policies {
            distinct.insert(attributes(policy, &tenant));
        }
    }
    distinct
        .into_iter()
        .map(|attributes| CheckRequest {
            attributes,
            cost: 1,
            ..CheckRequest::default()
        })
        .collect()
}

fn attributes(policy: &Policy, tenant: &str) -> Attributes {
    let mut attributes: Attributes = policy
        .attributes
        .iter()
        .map(|(name, pattern)| (name.clone(), pattern.as_str().replace('*', tenant)))
        .collect();
    for name in &policy.key {
        attributes
            .entry(name.clone())
            .or_insert_with(|| tenant.to_owned());
    }
    attributes
}

// === impl LoadOptions ===

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            per_second: 100,
            tenants: 3,
            stay: Duration::from_secs(15),
        }
    }
}

// === impl Tally ===

impl Tally {
    fn count(&self, answer: &Result<Decision, CheckError>) {
        let counter = match answer {
            Ok(decision) if decision.allowed => &self.admitted,
            Ok(_) => &self.refused,
            Err(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::fake::Fake;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn load_keeps_its_rate_and_moves_from_region_to_region() {
        let regions = ["us-east", "eu-west"].map(Fake::in_region);
        let options = LoadOptions {
            per_second: 50,
            tenants: 2,
            stay: Duration::from_secs(10),
        };
        let shutdown = CancellationToken::new();
        let load = tokio::spawn(drive(regions.to_vec(), options, shutdown.clone()));

        sleep(Duration::from_millis(9_990)).await;
        assert_eq!(regions.each_ref().map(Fake::asked), [500, 0]);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(regions.each_ref().map(Fake::asked), [500, 500]);

        shutdown.cancel();
        load.await.expect("the load ends when it is told to");
    }
}
