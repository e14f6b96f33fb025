use super::*;
use crate::plot;
use std::path::Path;

fn example() -> Scenario {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
    Scenario::load(&docs.join("flip-and-cut.toml")).expect("the example is good")
}

fn quiet(scenario: &Scenario, seed: u64, seeds: u64) -> Report {
    simulate(scenario, seed, seeds, |_| ()).expect("no promise is broken")
}

#[test]
fn a_seed_gives_the_same_report_and_another_seed_another() {
    let scenario = example();
    let json = |report: &Report| serde_json::to_string(report).expect("plain data");
    let once = quiet(&scenario, 1, 1);
    assert_eq!(once, quiet(&scenario, 1, 1));
    let other = quiet(&scenario, 2, 1);
    assert_ne!(json(&once), json(&other));
    let both = quiet(&scenario, 1, 2);
    assert_eq!(
        both.apportion.admitted,
        once.apportion.admitted + other.apportion.admitted
    );
    assert_eq!(both.sync_bytes, once.sync_bytes + other.sync_bytes);
}

#[test]
fn the_figures_of_the_example_are_those_of_a_limiter_that_follows_demand() {
    let report = quiet(&example(), 1, 1);
    let all = |of: fn(&OfRegion) -> u64| report.regions.iter().map(of).sum::<u64>();
    assert_eq!(all(|r| r.asked), all(|r| r.admitted) + all(|r| r.refused));
    assert_eq!(all(|r| r.admitted), report.apportion.admitted);
    assert_eq!(report.apportion.beyond_limit, 0);
    assert_eq!(
        report.apportion.stranded,
        report.perfect.admitted - report.apportion.admitted
    );
    // A third of the budget is in a region that asks for nothing, and another third mostly too.
    assert!(report.static_shares.admitted * 2 < report.perfect.admitted);
    assert!(report.apportion.admitted > report.static_shares.admitted * 3 / 2);
    assert!(report.central_store.out_of_reach > 0);
    let happened: Vec<_> = report
        .events
        .iter()
        .map(|e| (e.at_ms, e.what.as_str()))
        .collect();
    assert_eq!(
        happened,
        [
            (0, "traffic: us-east 150/s"),
            (
                40_000,
                "traffic: eu-west 0/s to 150/s, us-east 150/s to 0/s"
            ),
            (60_000, "eu-west is cut off"),
            (
                80_000,
                "traffic: eu-west 150/s to 75/s, us-east 0/s to 75/s"
            ),
            (90_000, "eu-west is back"),
        ]
    );
    assert!(report.events[1].settled_ms.is_some_and(|ms| ms < 10_000));
    assert_eq!(report.events[2].window_ms, None);
}

#[test]
fn the_picture_is_well_formed_and_holds_every_region_and_fault() {
    let scenario = example();
    let svg = plot::svg(&scenario, &quiet(&scenario, 1, 1)).expect("it is drawn");
    for words in [
        "admitted in eu-west",
        "a perfect limiter",
        "eu-west is cut off",
        "share in force",
    ] {
        assert!(svg.contains(words), "{words}");
    }
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("each tag ends");
        let name = tag
            .trim_matches('/')
            .split_whitespace()
            .next()
            .expect("each has a name");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
}
