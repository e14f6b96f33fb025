//! Three regions share one budget: all of it can be used from anywhere, and no more than all of it.

use apportion_tests::{DAILY_LIMIT, Deployment, Kind, daily_traffic, same_usage, use_up};
use chaos::{History, drive};
use std::time::Duration;

const SPREAD: Duration = Duration::from_secs(20);

/// The base share is 34; the rest has to come from the peers.
fn one_region_alone_can_use_the_whole_budget(kind: Kind) {
    let deployment = Deployment::daily(kind);
    let history = History::new();
    let traffic = daily_traffic("alone", &[("ap-south", 300)], SPREAD);
    drive(deployment.api(), &history, &traffic);
    assert_eq!(history.admitted(), DAILY_LIMIT, "{}", history.tally());
    let split = same_usage(
        deployment.api(),
        "daily",
        &[("tenant", "alone")],
        DAILY_LIMIT,
    );
    assert_eq!(split, history.admitted_by_region());
}

fn three_regions_together_use_exactly_the_budget(kind: Kind) {
    let deployment = Deployment::daily(kind);
    let history = History::new();
    let to = [("us-east", 300), ("eu-west", 300), ("ap-south", 300)];
    drive(
        deployment.api(),
        &history,
        &daily_traffic("together", &to, SPREAD),
    );
    assert_eq!(history.admitted(), DAILY_LIMIT, "{}", history.tally());
    let key = [("tenant", "together")];
    let split = same_usage(deployment.api(), "daily", &key, DAILY_LIMIT);
    assert_eq!(split, history.admitted_by_region());
}

fn all_at_once_never_passes_the_budget(kind: Kind) {
    let deployment = Deployment::daily(kind);
    let history = History::new();
    let to = [("us-east", 300), ("eu-west", 300), ("ap-south", 300)];
    let traffic: Vec<_> = daily_traffic("rush", &to, Duration::ZERO)
        .into_iter()
        .map(|traffic| traffic.workers(50))
        .collect();
    drive(deployment.api(), &history, &traffic);
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
    assert_eq!(history.records().len(), 900);
    use_up(deployment.api(), &history, "rush");
    let split = same_usage(
        deployment.api(),
        "daily",
        &[("tenant", "rush")],
        DAILY_LIMIT,
    );
    // So many at once may be too many for a busy machine: those without an answer are in the count, and not in the history.
    if history.in_doubt() == 0 {
        assert_eq!(split, history.admitted_by_region());
    }
}

macro_rules! on_each {
    ($($module:ident: $kind:expr),*; $stories:tt) => {
        $(mod $module { on_each!(@stories $kind, $stories); })*
    };
    (@stories $kind:expr, [$($story:ident),* $(,)?]) => {
        use apportion_tests::Kind;
        $(#[test] fn $story() { super::$story($kind); })*
    };
}

on_each!(memory: Kind::Memory, redis: Kind::Redis, dev: Kind::Dev; [
    one_region_alone_can_use_the_whole_budget,
    three_regions_together_use_exactly_the_budget,
    all_at_once_never_passes_the_budget,
]);

mod dev_on_redis {
    #[test]
    fn all_at_once_never_passes_the_budget() {
        super::all_at_once_never_passes_the_budget(super::Kind::DevOnRedis);
    }
}
