//! The scenarios there are.

use super::{Fault, Flow, Promise, Scenario};
use crate::StoreKind;
use crate::history::Bucket;
use std::time::Duration;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const CATALOGUE: &[Scenario] = &[Scenario {
    name: "partition-heal",
    about: "every link is cut under uneven load, then some, then all heal",
    store: StoreKind::Redis,
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
            promise: Promise::Window { limit: 900 },
        },
        Flow {
            policy: "rate",
            attributes: &[("route", "/rate/a"), ("tenant", "acme")],
            key: &[("tenant", "acme")],
            per_second: &[("us-east", 2), ("eu-west", 15), ("ap-south", 5)],
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
}];

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
