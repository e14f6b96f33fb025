//! Steady demand below the limit.

use crate::policies::{SETTLED_MS, demand, policies, runs, setup};
use apportion_sim::measure::{Ground, churn_per_minute, false_refusals};

const LIMIT: u64 = 100;
const PRESSURE: f64 = 0.8;
const DURATION_MS: u64 = 330_000;

#[allow(clippy::print_stdout)]
pub(crate) fn table(seeds: u64, only: &str) {
    println!(
        "| policy | demand by region | shares moved, of the limit a minute | refused wrongly |"
    );
    println!("|---|---|---|---|");
    for (name, policy) in policies(LIMIT).iter().filter(|(n, _)| n.contains(only)) {
        for (skew, weights) in [("even", [1.0, 1.0, 1.0]), ("3:2:1", [3.0, 2.0, 1.0])] {
            let sum: f64 = weights.iter().sum();
            let rates = weights.map(|w| w / sum * LIMIT as f64 * PRESSURE);
            let setup = setup(policy, demand(&rates, 1_000, DURATION_MS), DURATION_MS);
            let ground = Ground::of(&setup);
            let within = 2 * SETTLED_MS..DURATION_MS;
            let (mut churn, mut wrong, mut asked) = (0.0, 0, 0);
            for outcome in runs(&setup, seeds) {
                churn += churn_per_minute(&outcome.record, within.clone()) / seeds as f64;
                let (w, a) = false_refusals(&ground, &outcome.record, within.clone());
                wrong += w;
                asked += a;
            }
            println!(
                "| {name} | {skew} | {:.2}% | {:.4}% |",
                churn * 100.0,
                wrong as f64 / asked as f64 * 100.0
            );
        }
    }
}
