//! The scenarios there are.

use super::{Fault, Flow, Promise, Rates, Scenario};
use crate::StoreKind;
use crate::history::Bucket;
use std::time::Duration;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const CATALOGUE: &[Scenario] = &[PARTITION_HEAL, FLIP, PARTITION];

const PARTITION_HEAL: Scenario = Scenario {
    name: "partition-heal",
    about: "every link is cut under uneven load, then some, then all heal",
    store: StoreKind::Redis,
    nodes_per_region: 1,
    policies: r#"
[[policy]]
name = "quota"
match = { route = "/quota/*" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 900
per = "24h"
usage = "1h"

[[policy]]
name = "rate"
match = { route = "/rate/*" }
key = ["tenant"]
algorithm = "token-bucket"
limit = 600
per = "1m"
burst = 60
usage = "1h"
"#,
    probe: &[("route", "/quota/probe"), ("tenant", "probe")],
    flows: &[
        Flow {
            policy: "quota",
            attributes: &[("route", "/quota/a"), ("tenant", "acme")],
            key: &[("tenant", "acme")],
            per_second: &[("us-east", 20), ("eu-west", 10), ("ap-south", 3)],
            turns: &[],
            promise: Promise::Window { limit: 900 },
        },
        Flow {
            policy: "rate",
            attributes: &[("route", "/rate/a"), ("tenant", "acme")],
            key: &[("tenant", "acme")],
            per_second: &[("us-east", 2), ("eu-west", 15), ("ap-south", 5)],
            turns: &[],
            promise: Promise::Bucket(Bucket {
                limit: 600,
                per_ms: 60_000,
                burst: 60,
            }),
        },
    ],
    faults: &[
        (s(0), Fault::DelayAll(Duration::from_millis(40))),
        (s(6), Fault::CutAll),
        (s(16), Fault::HealAll),
        (s(20), Fault::CutSome(3)),
        (s(26), Fault::CutSome(2)),
        (s(31), Fault::HealAll),
    ],
    lasts: s(36),
};

const BUDGET: &str = r#"
[[policy]]
name = "api"
key = ["tenant"]
algorithm = "token-bucket"
limit = 100
per = "1s"
burst = 100
usage = "1h"
"#;
const BUCKET: Bucket = Bucket {
    limit: 100,
    per_ms: 1_000,
    burst: 100,
};
/// Half again as much as the budget, all in one region.
const EAST: Rates = &[("us-east", 150)];
const WEST: Rates = &[("eu-west", 150)];

const FLIP: Scenario = Scenario {
    name: "flip",
    about: "all demand goes from one region to another and back, 75 ms apart, two nodes each",
    store: StoreKind::Redis,
    nodes_per_region: 2,
    policies: BUDGET,
    probe: &[("tenant", "probe")],
    flows: &[Flow {
        policy: "api",
        attributes: &[("tenant", "acme")],
        key: &[("tenant", "acme")],
        per_second: EAST,
        turns: &[(s(15), WEST), (s(27), EAST)],
        promise: Promise::Bucket(BUCKET),
    }],
    faults: &[
        (s(0), Fault::DelayAll(Duration::from_millis(75))),
        (s(38), Fault::HealAll),
    ],
    lasts: s(39),
};

const PARTITION: Scenario = Scenario {
    name: "partition",
    about: "demand in all regions, 75 ms apart, two nodes each; every link is cut for 20 s",
    store: StoreKind::Redis,
    nodes_per_region: 2,
    policies: BUDGET,
    probe: &[("tenant", "probe")],
    flows: &[Flow {
        policy: "api",
        attributes: &[("tenant", "acme")],
        key: &[("tenant", "acme")],
        per_second: &[("us-east", 75), ("eu-west", 50), ("ap-south", 25)],
        // The same demand, so that what came of the cut and of the healing is told.
        turns: &[
            (s(12), &[("us-east", 75), ("eu-west", 50), ("ap-south", 25)]),
            (s(32), &[("us-east", 75), ("eu-west", 50), ("ap-south", 25)]),
        ],
        promise: Promise::Bucket(BUCKET),
    }],
    faults: &[
        (s(0), Fault::DelayAll(Duration::from_millis(75))),
        (s(12), Fault::CutAll),
        (s(32), Fault::HealAll),
    ],
    lasts: s(45),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_in_order_and_end_healed_while_traffic_lasts() {
        for scenario in CATALOGUE {
            let times: Vec<_> = scenario.faults.iter().map(|(at, _)| *at).collect();
            assert!(times.is_sorted(), "{}", scenario.name);
            let (last, fault) = scenario.faults.last().expect("a scenario has a fault");
            assert_eq!(*fault, Fault::HealAll, "{}", scenario.name);
            assert!(*last < scenario.lasts, "{}", scenario.name);
        }
    }
}
