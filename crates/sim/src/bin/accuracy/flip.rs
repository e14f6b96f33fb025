//! All demand goes from one region to another, and back again.

use crate::policies::{demand, policies, runs, setup};
use apportion_sim::measure::{Ground, admitted, settles_ms};
use apportion_sim::perfect::Other;

/// After the shares have settled, and in the midst of a window of a minute.
const FLIP_MS: u64 = 45_000;
const AFTER_MS: u64 = 14_000;
const GOAL: f64 = 0.95;

#[allow(clippy::print_stdout)]
pub(crate) fn table(seeds: u64, only: &str) {
    println!(
        "| policy | limit | demand | 95% of the optimum after | and, 14 s later, after going back |"
    );
    println!("|---|---|---|---|---|");
    for per_second in [100, 10, 1] {
        for (name, policy) in policies(per_second)
            .iter()
            .filter(|(n, _)| n.contains(only))
        {
            for pressure in [1.5, 0.8] {
                let rate = per_second as f64 * pressure;
                let back = FLIP_MS + AFTER_MS;
                let end = back + AFTER_MS;
                let mut flows = demand(&[rate, 0.0, 0.0], 1_000, FLIP_MS);
                flows.extend(demand(&[0.0, rate, 0.0], FLIP_MS, back));
                flows.extend(demand(&[rate, 0.0, 0.0], back, end));
                let setup = setup(policy, flows, end);
                let ground = Ground::of(&setup);
                // The fewer requests, the more runs it takes to see a rate.
                let seeds = seeds * (100 / per_second).min(10);
                let runs: Vec<_> = runs(&setup, seeds)
                    .into_iter()
                    .map(|outcome| {
                        let perfect = ground.admits(Other::Central, &outcome.record.asked);
                        let ours = admitted(&outcome.record);
                        assert_eq!(ours.len(), perfect.len());
                        (outcome.record.asked, perfect)
                    })
                    .collect();
                let settled = |within| {
                    let ms = settles_ms(&runs, within, GOAL);
                    ms.map_or("not within 13 s".to_owned(), |ms| {
                        format!("{:.2} s", ms as f64 / 1_000.0)
                    })
                };
                let (there, again) = (settled(FLIP_MS..back), settled(back..end));
                println!("| {name} | {per_second}/s | {rate}/s | {there} | {again} |");
            }
        }
    }
}
