//! Regions that can't hear each other admit what is theirs, and no more; what was stranded is used after healing.

use apportion_tests::{
    DAILY_BASE, DAILY_LIMIT, GENEROUS, daily, daily_cluster, daily_traffic, same_usage, use_up,
};
use chaos::scenario::cut_some;
use chaos::time::keep_clear_of_window_end;
use chaos::{Cluster, History, StoreKind, drive, seed, wait_until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn start(store: StoreKind) -> Cluster {
    keep_clear_of_window_end(Duration::from_secs(86_400), Duration::from_secs(180));
    daily_cluster(store)
}

/// What a region could admit at once, of a subject that nobody has used.
fn remaining(cluster: &Cluster, region: &str) -> Option<u64> {
    let answer = cluster.api().peek(region, &daily("unused")).ok()?;
    Some(answer.limits.first()?.remaining)
}

fn parted_regions_admit_exactly_their_base_shares(store: StoreKind) {
    let mut cluster = start(store);
    let base = BTreeMap::from(DAILY_BASE.map(|(region, share)| (region.to_owned(), share)));
    wait_until(GENEROUS, "every region to have its base share", || {
        base.iter()
            .all(|(region, share)| remaining(&cluster, region) == Some(*share))
    })
    .expect("base shares sum to the limit");
    cluster.cut_all();

    let history = History::new();
    let to = [("us-east", 120), ("eu-west", 120), ("ap-south", 120)];
    let traffic = daily_traffic("parted", &to, Duration::from_secs(8));
    drive(cluster.api(), &history, &traffic);
    assert_eq!(history.admitted_by_region(), base, "{}", history.tally());

    cluster.heal_all();
    let key = [("tenant", "parted")];
    assert_eq!(same_usage(cluster.api(), "daily", &key, DAILY_LIMIT), base);
    use_up(cluster.api(), &history, "parted");
    cluster.check_healthy().expect("all nodes are well");
}

/// No traffic in two regions: their shares are stranded while the links are cut, and of use afterwards.
fn what_a_partition_stranded_is_used_after_healing(store: StoreKind) {
    let mut cluster = start(store);
    cluster.cut_all();
    let history = History::new();
    let traffic = daily_traffic("stranded", &[("eu-west", 100)], Duration::from_secs(5));
    drive(cluster.api(), &history, &traffic);
    assert_eq!(history.admitted(), 33, "{}", history.tally());

    cluster.heal_all();
    wait_until(GENEROUS, "eu-west to get the rest", || {
        let traffic = daily_traffic("stranded", &[("eu-west", 10)], Duration::from_secs(1));
        drive(cluster.api(), &history, &traffic);
        history.admitted() >= DAILY_LIMIT
    })
    .expect("all can be used from one region");
    assert_eq!(history.admitted(), DAILY_LIMIT);
    let key = [("tenant", "stranded")];
    let split = same_usage(cluster.api(), "daily", &key, DAILY_LIMIT);
    assert_eq!(split, history.admitted_by_region());
    cluster.check_healthy().expect("all nodes are well");
}

fn links_cut_and_healed_at_random_never_break_the_sum(store: StoreKind) {
    let mut rng = StdRng::seed_from_u64(seed("partition"));
    let mut cluster = start(store);
    // One budget that is gone in a moment, one that lasts through many cuts.
    let (rush, walk) = (History::new(), History::new());
    let over = Duration::from_secs(20);
    let to = [("us-east", 334), ("eu-west", 333), ("ap-south", 333)];
    let rush_traffic = daily_traffic("rush", &to, over);
    let to = [("us-east", 100), ("eu-west", 40), ("ap-south", 10)];
    let walk_traffic = daily_traffic("walk", &to, over);

    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let cuts = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let count = rng.random_range(1..=6);
                eprintln!("{}", cut_some(&cluster, &mut rng, count));
                thread::sleep(Duration::from_millis(rng.random_range(200..1500)));
                cluster.heal_all();
                thread::sleep(Duration::from_millis(rng.random_range(0..800)));
            }
        });
        thread::scope(|scope| {
            scope.spawn(|| drive(cluster.api(), &rush, &rush_traffic));
            scope.spawn(|| drive(cluster.api(), &walk, &walk_traffic));
        });
        done.store(true, Ordering::Relaxed);
        cuts.join().expect("the cutter ends");
    });
    cluster.heal_all();

    assert_eq!(rush.records().len(), 1000);
    for (history, tenant) in [(&rush, "rush"), (&walk, "walk")] {
        history.check_limit(DAILY_LIMIT).expect("the sum holds");
        use_up(cluster.api(), history, tenant);
        let split = same_usage(cluster.api(), "daily", &[("tenant", tenant)], DAILY_LIMIT);
        assert_eq!(split, history.admitted_by_region());
    }
    cluster.check_healthy().expect("all nodes are well");
}

macro_rules! on_each_store {
    ($($story:ident),* $(,)?) => {
        mod memory { $(#[test] fn $story() { super::$story(chaos::StoreKind::Memory); })* }
        mod redis { $(#[test] fn $story() { super::$story(chaos::StoreKind::Redis); })* }
    };
}

on_each_store!(
    parted_regions_admit_exactly_their_base_shares,
    what_a_partition_stranded_is_used_after_healing,
    links_cut_and_healed_at_random_never_break_the_sum,
);
