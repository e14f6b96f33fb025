//! The chaos scenarios that are short enough for every run of the tests.

use chaos::scenario::{Report, Scenario, run};
use chaos::seed;

fn holds(name: &str) -> Report {
    let scenario = Scenario::named(name).expect("it is in the catalogue");
    let report = run(scenario, scenario.store, seed(name), &|line| {
        eprintln!("{line}");
    })
    .expect("it can be played");
    assert!(report.passed, "{report:#?}");
    report
}

#[test]
fn partition_heal() {
    holds("partition-heal");
}

/// How soon is measured on a machine at rest (docs/ACCURACY.md); here, that they do.
#[test]
fn shares_follow_all_demand_from_one_region_to_another_and_back() {
    let report = holds("flip");
    let turns = &report.flows[0].turns;
    assert!(!turns.is_empty());
    for turn in turns {
        assert!(turn.settled_after_seconds.is_some(), "{turns:#?}");
    }
}
