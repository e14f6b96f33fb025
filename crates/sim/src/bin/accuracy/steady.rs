//! Steady demand above the limit.

use crate::policies::{SETTLED_MS, demand, policies, runs, setup};
use apportion_sim::measure::{Ground, admitted};
use apportion_sim::perfect::Other;

const SKEWS: [(&str, [f64; 3]); 4] = [
    ("even", [1.0, 1.0, 1.0]),
    ("3:2:1", [3.0, 2.0, 1.0]),
    ("8:1:1", [8.0, 1.0, 1.0]),
    ("all in one", [1.0, 0.0, 0.0]),
];
const LIMIT: u64 = 100;
const PRESSURE: f64 = 1.5;
const DURATION_MS: u64 = 150_000;

#[allow(clippy::print_stdout)]
pub(crate) fn table(seeds: u64, only: &str) {
    println!(
        "| policy | demand by region | Apportion | static shares | G-counter without shares: admitted, overshoot |"
    );
    println!("|---|---|---|---|---|");
    for (name, policy) in policies(LIMIT).iter().filter(|(n, _)| n.contains(only)) {
        for (skew, weights) in SKEWS {
            let sum: f64 = weights.iter().sum();
            let rates = weights.map(|w| w / sum * LIMIT as f64 * PRESSURE);
            let setup = setup(policy, demand(&rates, 1_000, DURATION_MS), DURATION_MS);
            let ground = Ground::of(&setup);
            let within = SETTLED_MS..DURATION_MS;
            let mut sums = [0u64; 4];
            let mut over = 0;
            for outcome in runs(&setup, seeds) {
                let asked = &outcome.record.asked;
                let perfect = ground.admits(Other::Central, asked);
                let shares = ground.admits(Other::Static, asked);
                let gossip = Other::Gossip {
                    interval_ms: 2_000,
                    delay_ms: 75,
                };
                let gossip = ground.admits(gossip, asked);
                let of = |admitted: &[bool]| ground.verdict(asked, admitted, within.clone());
                let ours = of(&admitted(&outcome.record));
                assert_eq!(ours.over, 0, "more than a perfect limiter");
                sums[0] += ours.admitted;
                sums[1] += of(&perfect).admitted;
                sums[2] += of(&shares).admitted;
                sums[3] += of(&gossip).admitted;
                over += of(&gossip).over;
            }
            let part = |units: u64| units as f64 / sums[1] as f64;
            println!(
                "| {name} | {skew} | {:.3} | {:.3} | {:.3}, {:.1}% |",
                part(sums[0]),
                part(sums[2]),
                part(sums[3]),
                part(over) * 100.0
            );
        }
    }
}
