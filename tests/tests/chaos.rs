//! The chaos scenarios that are short enough for every run of the tests.

use chaos::scenario::{Scenario, run};
use chaos::seed;

fn holds(name: &str) {
    let scenario = Scenario::named(name).expect("it is in the catalogue");
    let report = run(scenario, scenario.store, seed(name), &|line| {
        eprintln!("{line}");
    })
    .expect("it can be played");
    assert!(report.passed, "{report:#?}");
}

#[test]
fn partition_heal() {
    holds("partition-heal");
}
