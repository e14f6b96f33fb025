//! Debug.
use crate::policies::{demand, policies, runs, setup};
#[allow(clippy::print_stdout)]
pub(crate) fn table(seeds: u64, only: &str) {
    let args: Vec<f64> = std::env::var("RATES")
        .unwrap_or("40,26.7,13.3".into())
        .split(',')
        .map(|x| x.parse().unwrap())
        .collect();
    let flip: Vec<f64> = std::env::var("THEN")
        .unwrap_or_default()
        .split(',')
        .filter_map(|x| x.parse().ok())
        .collect();
    let end = std::env::var("END").map_or(75_000, |e| e.parse().unwrap());
    for (name, policy) in policies(100).iter().filter(|(n, _)| n.contains(only)) {
        let mut flows = demand(&args, 1000, if flip.is_empty() { end } else { 45_000 });
        if !flip.is_empty() {
            flows.extend(demand(&flip, 45_000, end));
        }
        let setup = setup(policy, flows, end);
        for outcome in runs(&setup, seeds) {
            println!("{name}");
            for w in &outcome.record.weighed {
                let within =
                    |a: &&apportion_sim::Asked| a.at_ms + 200 > w.at_ms && a.at_ms <= w.at_ms;
                let mut counts = [[0u64; 2]; 3];
                for a in outcome.record.asked.iter().filter(within) {
                    counts[a.region][usize::from(a.admitted)] += a.units;
                }
                println!(
                    "{:>6} {:?} {:?}",
                    w.at_ms,
                    w.shares_ppb.iter().map(|s| s / 100_000).collect::<Vec<_>>(),
                    counts
                );
            }
        }
    }
}
