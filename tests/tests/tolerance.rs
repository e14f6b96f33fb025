//! What regions that can't hear each other admit under each tolerance, and that they agree once they can.

use apportion_tests::{GENEROUS, PAUSE, same_usage, start_met};
use chaos::time::keep_clear_of_window_end;
use chaos::traffic::{Traffic, ask_on};
use chaos::{Cluster, ClusterSpec, History, StoreKind, drive, wait_until};
use std::collections::BTreeMap;
use std::time::Duration;

const POLICIES: &str = r#"
[[policy]]
name = "strict"
match = { route = "/strict" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
tolerance = "never-over"
usage = "1h"

[[policy]]
name = "lax"
match = { route = "/lax" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
tolerance = { over = "10%" }
usage = "1h"

[[policy]]
name = "kind"
match = { route = "/kind" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
tolerance = "never-under"
usage = "1h"
"#;

const LIMIT: u64 = 100;
const REGIONS: [&str; 3] = ["us-east", "eu-west", "ap-south"];

fn start(store: StoreKind) -> Cluster {
    keep_clear_of_window_end(Duration::from_secs(86_400), Duration::from_secs(180));
    start_met(&ClusterSpec::new(store, POLICIES).probe(&attributes("/strict", "probe")))
}

fn attributes<'a>(route: &'a str, tenant: &'a str) -> [(&'a str, &'a str); 2] {
    [("route", route), ("tenant", tenant)]
}

fn by_region(units: [u64; 3]) -> BTreeMap<String, u64> {
    let names = REGIONS.iter().map(|r| (*r).to_owned());
    names.zip(units).collect()
}

/// As many requests to each region, more than any could ever admit.
fn rush(cluster: &Cluster, route: &str, tenant: &str, requests: usize) -> History {
    let history = History::new();
    let over = Duration::from_secs(6);
    let to = |region: &&str| Traffic::new(region, &attributes(route, tenant), requests, over);
    let traffic: Vec<Traffic> = REGIONS.iter().map(to).collect();
    drive(cluster.api(), &history, &traffic);
    history
}

fn parted_regions_admit_what_their_tolerance_says_and_agree_after_healing(store: StoreKind) {
    let mut cluster = start(store);
    let bases = [("us-east", 33), ("eu-west", 33), ("ap-south", 34)];
    wait_until(GENEROUS, "every region to have its base share", || {
        bases.iter().all(|(region, base)| {
            let unused = attributes("/strict", "unused");
            let answer = cluster.api().peek(region, &unused).ok();
            answer.and_then(|a| a.limits.first().map(|l| l.remaining)) == Some(*base)
        })
    })
    .expect("base shares sum to the limit");
    cluster.cut_all();
    let expected = [
        ("strict", by_region([33, 33, 34])),
        // A tenth more: of these ten ap-south has four.
        ("lax", by_region([36, 36, 38])),
        // Nobody knows what the others admitted.
        ("kind", by_region([LIMIT; 3])),
    ];
    for (policy, units) in &expected {
        let history = rush(&cluster, &format!("/{policy}"), "parted", 120);
        let told = history.tally();
        assert_eq!(history.admitted_by_region(), *units, "{policy}: {told}");
    }
    cluster.heal_all();
    for (policy, units) in &expected {
        let total = units.values().sum();
        let split = same_usage(cluster.api(), policy, &[("tenant", "parted")], total);
        assert_eq!(split, *units, "{policy}");
    }
    cluster.check_healthy().expect("all nodes are well");
}

/// Nothing has to be lent for it, and once the others have heard they refuse, though none of it was theirs.
fn never_under_gives_all_of_the_limit_to_whoever_asks_and_to_nobody_after_it(store: StoreKind) {
    let mut cluster = start(store);
    let history = History::new();
    let traffic = Traffic::new(
        "us-east",
        &attributes("/kind", "alone"),
        110,
        Duration::from_secs(2),
    );
    drive(cluster.api(), &history, &[traffic]);
    assert_eq!(history.admitted(), LIMIT, "{}", history.tally());
    wait_until(GENEROUS, "the others to know that it is used up", || {
        REGIONS.iter().all(|region| {
            let answer = cluster.api().peek(region, &attributes("/kind", "alone"));
            answer.is_ok_and(|answer| answer.limits.first().is_some_and(|l| l.remaining == 0))
        })
    })
    .expect("what is admitted in one region the others hear");
    let after = History::new();
    let asked = |history: &History| history.records().len() >= 30;
    let alone = attributes("/kind", "alone");
    ask_on(cluster.api(), &after, &alone, PAUSE, GENEROUS, asked);
    assert_eq!(after.admitted(), 0, "{}", after.tally());
    cluster.check_healthy().expect("all nodes are well");
}

macro_rules! on_each_store {
    ($($story:ident),* $(,)?) => {
        mod memory { $(#[test] fn $story() { super::$story(chaos::StoreKind::Memory); })* }
        mod redis { $(#[test] fn $story() { super::$story(chaos::StoreKind::Redis); })* }
    };
}

on_each_store!(
    parted_regions_admit_what_their_tolerance_says_and_agree_after_healing,
    never_under_gives_all_of_the_limit_to_whoever_asks_and_to_nobody_after_it,
);
