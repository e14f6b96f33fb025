//! What is measured: a policy of each algorithm, and three regions 75 ms apart.

use apportion_core::lives::OnEmpty;
use apportion_sim::{Faults, Flow, Outcome, Setup, Stated, run};
use std::thread;

/// Regions have met, and shares have settled, by then.
pub(crate) const SETTLED_MS: u64 = 30_000;

/// Names, and lines of a policy for a limit of so many units a second.
pub(crate) fn policies(per_second: u64) -> Vec<(&'static str, String)> {
    let of = |algorithm: &str, seconds: u64, more: &str| {
        let limit = per_second * seconds;
        format!("algorithm = \"{algorithm}\"\nlimit = {limit}\nper = \"{seconds}s\"\n{more}")
    };
    let burst = format!("burst = {}\n", per_second.max(1));
    vec![
        ("token bucket", of("token-bucket", 1, &burst)),
        ("GCRA", of("gcra", 1, &burst)),
        ("fixed window, 10 s", of("fixed-window", 10, "")),
        ("fixed window, 1 min", of("fixed-window", 60, "")),
        ("sliding log, 10 s", of("sliding-log", 10, "")),
        ("sliding window, 10 s", of("sliding-window", 10, "")),
        ("sliding window, 1 s", of("sliding-window", 1, "")),
        (
            "sliding window of one bucket, 10 s",
            of("sliding-window", 10, "buckets = 1\n"),
        ),
    ]
}

/// Three regions with a round trip of 150 ms, two nodes each.
pub(crate) fn setup(policy: &str, flows: Vec<Flow>, duration_ms: u64) -> Setup {
    let policies = format!(
        "regions = [\"a\", \"b\", \"c\"]\n[[policy]]\nname = \"it\"\nkey = [\"tenant\"]\n{policy}"
    );
    Setup {
        policies,
        pair: None,
        regions: 3,
        nodes: 2,
        duration_ms,
        delay_ms: (75, 75),
        faults: Faults::default(),
        faults_until_ms: 0,
        boots_ms: 0,
        requests_per_s: 0,
        one_sided: false,
        flip_at_ms: None,
        on_empty: OnEmpty::Ask,
        stated: Some(Stated {
            policy: "it".into(),
            flows,
            faults: Vec::new(),
            interval_ms: 2_000,
            term_ms: 10_000,
            keys: 1,
        }),
    }
}

/// A demand of so many requests a second for each region.
pub(crate) fn demand(per_second: &[f64], from_ms: u64, until_ms: u64) -> Vec<Flow> {
    per_second
        .iter()
        .enumerate()
        .filter(|(_, per_second)| **per_second > 0.0)
        .map(|(region, per_second)| Flow {
            region,
            per_second: *per_second,
            from_ms,
            until_ms,
            cost: 1,
            keys: 1,
        })
        .collect()
}

/// Runs every seed, on all cores.
///
/// # Panics
/// Where a promise is broken.
pub(crate) fn runs(setup: &Setup, seeds: u64) -> Vec<Outcome> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let of_core = |core: u64| {
        let seeds = (1..=seeds).skip(core as usize).step_by(cores);
        let run = |seed| (seed, run(setup, seed));
        let outcomes = seeds.map(run).map(|(seed, outcome)| {
            outcome.unwrap_or_else(|v| panic!("seed {seed} at {} ms: {}", v.at_ms, v.what))
        });
        outcomes.collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores as u64)
            .map(|core| scope.spawn(move || of_core(core)))
            .collect();
        let join = |t: thread::ScopedJoinHandle<'_, Vec<Outcome>>| t.join().expect("no panic");
        threads.into_iter().flat_map(join).collect()
    })
}
