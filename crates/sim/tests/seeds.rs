//! A few hundred seeded worlds of each kind in every run of the tests; many more by `cargo run --release -p
//! apportion-sim --bin sim`.

use apportion_sim::{Outcome, Setup, run};

/// How many seeds of each kind: `SIM_SEEDS`, from `SIM_FROM` on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, default| {
        std::env::var(name)
            .ok()
            .and_then(|v| v.parse().ok())
            .unwrap_or(default)
    };
    let from = number("SIM_FROM", 1);
    from..from + number("SIM_SEEDS", 120)
}

fn setup(kind: &str) -> Setup {
    let kinds = Setup::kinds();
    kinds
        .into_iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, setup)| setup)
        .expect("the kind is there")
}

/// Runs every seed, and says which one broke what.
fn hold(kind: &str) -> Vec<Outcome> {
    let setup = setup(kind);
    let results: Vec<_> = seeds().map(|seed| (seed, run(&setup, seed))).collect();
    let broken: Vec<String> = results
        .iter()
        .filter_map(|(seed, result)| {
            result
                .as_ref()
                .err()
                .map(|v| format!("seed {seed} at {} ms: {}", v.at_ms, v.what))
        })
        .collect();
    assert!(broken.is_empty(), "{kind}:\n{}", broken.join("\n"));
    results
        .into_iter()
        .filter_map(|(_, result)| result.ok())
        .collect()
}

#[test]
fn the_sum_and_the_usage_hold_where_nothing_fails() {
    let outcomes = hold("calm");
    assert!(outcomes.iter().all(|o| o.admitted > 0));
}

#[test]
fn the_sum_and_the_usage_hold_on_a_bad_network() {
    hold("network");
}

#[test]
fn the_sum_and_the_usage_hold_where_messages_overtake_each_other() {
    hold("reordered");
}

#[test]
fn the_sum_and_the_usage_hold_where_links_are_cut() {
    hold("cuts");
}

#[test]
fn the_sum_and_the_usage_hold_where_regions_are_cut_off() {
    hold("partitions");
}

#[test]
fn the_sum_and_the_usage_hold_where_nodes_crash_and_stand_still() {
    hold("crashes");
}

#[test]
fn the_sum_and_the_usage_hold_where_nodes_are_restarted() {
    hold("restarts");
}

#[test]
fn the_sum_and_the_usage_hold_where_nobody_vouches_for_a_clock() {
    hold("lapses");
}

#[test]
fn the_sum_and_the_usage_hold_where_answers_are_lost() {
    hold("timeouts");
}

#[test]
fn the_sum_holds_where_stores_are_lost_and_roll_back() {
    let outcomes = hold("losses");
    let faults: u64 = outcomes.iter().map(|o| o.losses).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_stores_roll_back() {
    let outcomes = hold("rollbacks");
    let faults: u64 = outcomes.iter().map(|o| o.losses).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_stores_are_lost_behind_a_partition() {
    let outcomes = hold("split losses");
    let faults: u64 = outcomes.iter().map(|o| o.losses).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_stores_are_lost_before_all_have_met() {
    let outcomes = hold("boots");
    let faults: u64 = outcomes.iter().map(|o| o.losses).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_clocks_slip() {
    let outcomes = hold("slips");
    let faults: u64 = outcomes.iter().map(|o| o.steps).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_clocks_step() {
    let outcomes = hold("clocks");
    let faults: u64 = outcomes.iter().map(|o| o.steps).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_clocks_leap() {
    let outcomes = hold("leaps");
    let faults: u64 = outcomes.iter().map(|o| o.steps).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_keys_are_idle_across_epochs_and_lives() {
    let outcomes = hold("idle");
    let faults: u64 = outcomes.iter().map(|o| o.steps).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_in_short_windows() {
    let outcomes = hold("short");
    let faults: u64 = outcomes.iter().map(|o| o.losses).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_where_stores_are_lost_again_and_again() {
    hold("forgetful");
}

#[test]
fn the_sum_holds_where_calls_are_late() {
    hold("stalls");
}

#[test]
fn the_sum_holds_in_deep_buckets() {
    hold("deep");
}

#[test]
fn the_sum_holds_where_traffic_comes_in_pulses() {
    hold("pulses");
}

#[test]
fn the_sum_holds_in_fixed_windows_whatever_fails() {
    hold("windows");
}

#[test]
fn the_sum_holds_in_sliding_windows_whatever_fails() {
    hold("sliding");
}

#[test]
fn the_sum_holds_in_buckets_whatever_fails() {
    hold("buckets");
}

#[test]
fn the_sum_holds_where_plans_change_whatever_fails() {
    hold("plans");
}

#[test]
fn the_sum_holds_where_grants_outlive_their_epoch() {
    let outcomes = hold("echoes");
    let faults: u64 = outcomes.iter().map(|o| o.steps).sum();
    assert!(faults > 0, "the fault was there");
}

#[test]
fn the_sum_holds_between_two_regions_whatever_fails() {
    hold("pair");
}

#[test]
fn the_sum_holds_whatever_fails_together() {
    hold("everything");
}

#[test]
fn the_sum_holds_while_policies_are_rolled_out() {
    let outcomes = hold("rollouts");
    let rolled_out: u64 = outcomes.iter().map(|o| o.rolled_out).sum();
    assert!(rolled_out > 0, "some came to their end everywhere");
}

#[test]
fn the_sum_holds_while_regions_join_and_go() {
    let outcomes = hold("regions");
    let retired: u64 = outcomes.iter().map(|o| o.retired).sum();
    assert!(retired > 0, "some were retired");
}

#[test]
fn no_tolerance_is_overstepped_where_nothing_fails() {
    let outcomes = hold("tolerant");
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(sum(|o| o.overdrawn) > 0, "overdrafts were drawn on");
    assert!(
        sum(|o| o.known_used_up) > 0,
        "limits were known to be used up"
    );
}

#[test]
fn no_tolerance_is_overstepped_where_nodes_and_links_fail() {
    hold("tolerant-crashes");
}

#[test]
fn no_tolerance_is_overstepped_whatever_fails_together() {
    hold("tolerant-everything");
}

#[test]
fn every_kind_has_a_test() {
    let source = include_str!("seeds.rs");
    for (kind, _) in Setup::kinds() {
        assert!(source.contains(&format!("hold(\"{kind}\")")), "{kind}");
    }
}

#[test]
fn one_region_alone_can_use_all_of_a_window() {
    let setup = Setup {
        one_sided: true,
        ..setup("calm")
    };
    let mut used = 0;
    for seed in seeds().take(20) {
        let outcome = run(&setup, seed).unwrap_or_else(|v| panic!("seed {seed}: {}", v.what));
        // What was asked for well beyond the budget, and early enough to be fetched, is used to its last unit.
        let days = outcome
            .by_key
            .iter()
            .filter(|(key, _)| key.starts_with("day@"));
        for (key, (asked, admitted)) in days.filter(|(_, (asked, _))| *asked > 200) {
            assert_eq!(*admitted, 100, "seed {seed}: {key} was asked for {asked}");
            used += 1;
        }
    }
    assert!(used > 0, "some key was in demand");
}

const ONE_LOG: &str = r#"
regions = ["a", "b", "c"]
[[policy]]
name = "log"
key = []
algorithm = "sliding-log"
limit = 60
per = "20s"
"#;

#[test]
fn shares_of_a_sliding_window_follow_the_demand_and_come_back_when_it_flips() {
    let setup = Setup {
        policies: ONE_LOG.into(),
        pair: None,
        one_sided: true,
        flip_at_ms: Some(60_000),
        duration_ms: 150_000,
        ..setup("calm")
    };
    for seed in seeds().take(10) {
        let outcome = run(&setup, seed).unwrap_or_else(|v| panic!("seed {seed}: {}", v.what));
        // A minute of three windows, and 80 s of four: 60 units each, of which 20 are the region's own.
        let (first, second) = (outcome.by_region[0].0, outcome.by_region[1].1);
        assert!(
            first > 135,
            "seed {seed}: {first} of 180 admitted before the flip"
        );
        assert!(
            second > 180,
            "seed {seed}: {second} of 240 admitted after it"
        );
    }
}

#[test]
fn a_seed_is_the_whole_story() {
    let setup = setup("everything");
    assert_eq!(run(&setup, 7), run(&setup, 7));
}
