//! Modes, weights, tolerances and what holds without a store.

use super::*;

#[test]
fn weights_name_every_region_and_no_other() {
    assert_added_is_refused(
        "weights = { us-east = 1 }",
        &[
            "8 weights: no weight for eu-west; expected a weight for every region, 0 for one without a base share",
        ],
    );
    assert_added_is_refused(
        "[policy.weights]\nus-east = 1\neu-west = -1\neu-wset = 1000001",
        &[
            "10 weights.eu-west: -1 is negative; expected a whole number from 0 to 1000000",
            "11 weights.eu-wset: \"eu-wset\" is not one of regions, did you mean \"eu-west\"?; expected \"eu-west\" or \"us-east\"",
            "11 weights.eu-wset: 1000001 is too large; expected a whole number from 0 to 1000000",
        ],
    );
    assert_added_is_refused(
        "weights = { us-east = 0, eu-west = 0 }",
        &["8 weights: all weights are 0; expected a weight above 0 for at least one region"],
    );
}

#[test]
fn never_over_allows_no_failure_mode_but_closed_and_says_why() {
    for mode in ["open", "local"] {
        for tolerance in ["", "tolerance = \"never-over\""] {
            assert_added_is_refused(
                &format!("on_store_failure = \"{mode}\"\n{tolerance}"),
                &[
                    "8 on_store_failure: never-over can't hold while requests are admitted without the store; expected \"closed\"",
                ],
            );
        }
    }
}

#[test]
fn what_is_not_supported_yet_is_refused_and_never_ignored() {
    for (added, expected) in [
        (
            "mode = \"home\"\nhome = \"us-east\"\nstandby = \"eu-west\"",
            &["8 mode: \"home\" is not supported yet; expected \"shares\""][..],
        ),
        (
            "tolerance = \"never-under\"\non_store_failure = \"open\"",
            &["9 on_store_failure: \"open\" is not supported yet; expected \"closed\""],
        ),
        (
            "tolerance = { over = \"0.5%\" }\non_store_failure = \"local\"",
            &["9 on_store_failure: \"local\" is not supported yet; expected \"closed\""],
        ),
    ] {
        assert_added_is_refused(added, expected);
    }
}

#[test]
fn every_tolerance_is_read() {
    for (added, expected) in [
        ("", Tolerance::NeverOver),
        ("tolerance = \"never-over\"", Tolerance::NeverOver),
        ("tolerance = \"never-under\"", Tolerance::NeverUnder),
        (
            "tolerance = { over = \"0.5%\" }",
            Tolerance::Over { ppm: 5_000 },
        ),
        (
            "tolerance = { over = \"100%\" }",
            Tolerance::Over { ppm: 1_000_000 },
        ),
    ] {
        assert_eq!(read_with(added).tolerance, expected);
    }
}

#[test]
fn slots_have_no_tolerance() {
    let text = "regions = [\"us-east\"]\n[[policy]]\nname = \"api\"\nkey = []\nmode = \"region\"\n\
                algorithm = \"concurrency\"\nlimit = 10\nslot_ttl = \"1m\"\ntolerance = \"never-under\"\n";
    let errors = parse(text).unwrap_err().to_string();
    assert!(errors.contains("slots are not shared"), "{errors}");
}

#[test]
fn the_shape_of_what_is_not_supported_yet_is_checked() {
    for (added, expected) in [
        (
            "mode = \"home\"",
            &[
                "2 home: missing; expected the region that decides",
                "8 mode: \"home\" is not supported yet; expected \"shares\"",
            ][..],
        ),
        (
            "mode = \"home\"\nhome = \"mars\"\nstandby = \"mars\"",
            &[
                "8 mode: \"home\" is not supported yet; expected \"shares\"",
                "9 home: \"mars\" is not one of regions; expected \"eu-west\" or \"us-east\"",
                "10 standby: \"mars\" is not one of regions; expected \"eu-west\" or \"us-east\"",
                "10 standby: the same region as home; expected another region",
            ],
        ),
        (
            "home = \"us-east\"",
            &["8 home: without mode = \"home\" this means nothing; expected to be left out"],
        ),
        (
            "mode = \"region\"",
            &["8 mode: \"region\" is for concurrency alone; expected \"shares\""],
        ),
        (
            "mode = \"share\"",
            &["8 mode: \"share\" is unknown, did you mean \"shares\"?; expected \"shares\""],
        ),
        (
            "tolerance = { over = 5 }",
            &[
                "8 tolerance.over: 5 is a number; expected a percentage above 0% and up to 100%, of at most four decimals, such as \"5%\"",
            ],
        ),
        (
            "tolerance = { over = \"101%\" }",
            &[
                "8 tolerance.over: \"101%\" is no such percentage; expected a percentage above 0% and up to 100%, of at most four decimals, such as \"5%\"",
            ],
        ),
    ] {
        assert_added_is_refused(added, expected);
    }
}
