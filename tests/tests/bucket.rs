//! A rate that follows its traffic from one region to another, and is never exceeded on the way.

use apportion_tests::start_met;
use chaos::history::{Bucket, Record};
use chaos::{ClusterSpec, History, Outcome, StoreKind, Traffic, drive};
use std::time::{Duration, Instant};

const POLICY: &str = r#"
[[policy]]
name = "rate"
match = { route = "/rate" }
key = ["tenant"]
algorithm = "token-bucket"
limit = 600
per = "1m"
burst = 60
tolerance = "never-over"
usage = "1h"
"#;

const BUCKET: Bucket = Bucket {
    limit: 600,
    per_ms: 60_000,
    burst: 60,
};

const HALF: Duration = Duration::from_secs(60);
/// For the share to follow.
const GRACE: Duration = Duration::from_secs(3);
const SATURATING_PER_SECOND: usize = 40;

fn saturate(region: &str) -> Traffic {
    let requests = SATURATING_PER_SECOND * 60;
    let attributes = [("route", "/rate"), ("tenant", "flip")];
    Traffic::new(region, &attributes, requests, HALF).workers(8)
}

fn a_rate_follows_its_traffic_and_is_never_exceeded(store: StoreKind) {
    let probe = [("route", "/rate"), ("tenant", "probe")];
    let cluster = start_met(&ClusterSpec::new(store, POLICY).probe(&probe));
    let history = History::new();
    let began = Instant::now();
    let mut switches = Vec::new();
    for region in ["us-east", "eu-west"] {
        switches.push((region, began.elapsed()));
        drive(cluster.api(), &history, &[saturate(region)]);
    }

    let counts: Vec<String> = history
        .tally_by_region()
        .iter()
        .map(|(region, tally)| format!("{region}: {tally}"))
        .collect();
    eprintln!("{counts:?}");
    history.check_bucket(BUCKET).expect("the rate holds");
    for (region, from) in switches {
        let (from, to) = (from + GRACE, from + HALF);
        let within = |record: &&Record| {
            record.region == region
                && record.outcome == Outcome::Allowed
                && (from..to).contains(&record.sent_at)
        };
        let admitted = history.records().iter().filter(within).count();
        let full = 10.0 * (to - from).as_secs_f64();
        let part = admitted as f64 / full;
        eprintln!("{region}: {admitted} of {full} admitted from {GRACE:?} on");
        assert!(part >= 0.95, "{region} admitted {admitted} of {full}");
    }
}

#[test]
fn memory() {
    a_rate_follows_its_traffic_and_is_never_exceeded(StoreKind::Memory);
}

#[test]
fn redis() {
    a_rate_follows_its_traffic_and_is_never_exceeded(StoreKind::Redis);
}
