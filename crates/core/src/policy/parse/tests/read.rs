//! What a policies file says, and what holds where it says nothing.

use super::super::super::tests::GOOD;
use super::*;
use crate::period::Period;
use crate::policy::{Class, Plans, PoolMembers};

#[test]
fn a_policy_is_read_as_it_is_written() {
    let set = parse(GOOD).unwrap();
    assert_eq!(set.revision, 3);
    assert_eq!(set.regions, ["ap-south", "eu-west", "us-east"].map(region));
    assert_eq!(set.warnings, [""; 0]);
    let [api, exports] = &set.policies[..] else {
        panic!("two policies: {:?}", set.policies);
    };
    assert_eq!(
        **api,
        Policy {
            name: "api".into(),
            version: 2,
            attributes: [("route".into(), Pattern::new("/v1/*"))].into(),
            key: vec!["tenant".into()],
            algorithm: Algorithm::TokenBucket { per_ms: 60_000 },
            limits: limits(1000, 200),
            plans: Some(Plans {
                by: "plan".into(),
                plans: [
                    ("free".into(), limits(100, 10)),
                    ("pro".into(), limits(5000, 5000)),
                ]
                .into(),
            }),
            overrides: [(vec!["acme".into()], limits(20_000, 500))]
                .into_iter()
                .collect(),
            // That of the pro plan: 5000 at 5000 a minute.
            fill_ms: 60_000,
            classes: vec![
                Class {
                    name: "health".into(),
                    standing: Standing::Exempt,
                },
                Class {
                    name: "interactive".into(),
                    standing: Standing::Leaves { ppm: 0 },
                },
                Class {
                    name: "batch".into(),
                    standing: Standing::Leaves { ppm: 205_000 },
                },
            ],
            pool: Some(PoolMembers {
                by: "team".into(),
                default_weight: 2,
                weights: [("search".into(), 4)].into(),
            }),
            mode: Mode::Shares,
            tolerance: Tolerance::NeverOver,
            on_store_failure: OnStoreFailure::Closed,
            weights: [("us-east", 2), ("eu-west", 1), ("ap-south", 1)]
                .map(|(name, weight)| (region(name), weight))
                .into(),
            usage_ms: Some(3_600_000),
            sensitive: ["tenant".into()].into(),
            new_subjects_per_s: Some(500),
            shadow: true,
        }
    );
    assert_eq!(
        exports.algorithm,
        Algorithm::FixedWindow {
            period: Period::every(86_400_000)
        }
    );
    assert_eq!(exports.limits, limits(100, 100));
    assert_eq!(set.policy("exports").unwrap().id(), "exports@1");
    assert!(set.policy("imports").is_none());
}

#[test]
fn what_is_left_out_has_its_documented_default() {
    let set = parse(&with("")).unwrap();
    let api = &set.policies[0];
    assert_eq!(set.revision, 1);
    assert_eq!(api.version, 1);
    assert_eq!(api.attributes, BTreeMap::new());
    assert_eq!(api.limits, limits(1000, 1000));
    assert_eq!(api.plans, None);
    assert!(api.overrides.is_empty() && api.classes.is_empty() && api.sensitive.is_empty());
    assert_eq!(api.pool, None);
    assert_eq!(api.new_subjects_per_s, None);
    assert_eq!(set.subject_hash, SubjectHash::default());
    assert_eq!(api.mode, Mode::Shares);
    assert_eq!(api.tolerance, Tolerance::NeverOver);
    assert_eq!(api.on_store_failure, OnStoreFailure::Closed);
    assert_eq!(
        api.weights,
        [(region("us-east"), 1), (region("eu-west"), 1)].into()
    );
    assert_eq!(api.usage_ms, None);
    assert!(!api.shadow);
}

#[test]
fn a_burst_is_its_limit_unless_it_is_said() {
    let capacity = |added| read_with(added).limits.burst;
    assert_eq!(capacity(""), 1000);
    assert_eq!(capacity("burst = 20"), 20);
    assert_eq!(capacity("burst = 2000"), 2000);
}

#[test]
fn a_file_without_policies_limits_nothing_and_says_so() {
    let set = parse("regions = [\"a\"]").unwrap();
    assert_eq!(
        set.warnings,
        ["the file has no [[policy]]: every request is allowed"]
    );
}

#[test]
fn durations_are_read_in_every_usual_form() {
    for (text, ms) in [
        ("100ms", 100),
        ("1s", 1000),
        ("1m 30s", 90_000),
        ("1.5h", 5_400_000),
        ("24h", 86_400_000),
        ("7 days", 604_800_000),
        ("366d", 31_622_400_000),
    ] {
        let period = only(&where_("per", &format!("{text:?}")))
            .algorithm
            .period();
        assert_eq!(period, Some(Period::every(ms)), "{text}");
    }
}

#[test]
fn the_ends_of_every_range_are_in_it() {
    for (field, values) in [
        ("limit", ["1", "9007199254"]),
        ("per", ["\"100ms\"", "\"366d\""]),
        ("key", ["[]", "[\"a\", \"b\"]"]),
    ] {
        for value in values {
            parse(&where_(field, value)).unwrap();
        }
    }
    for added in [
        "version = 4294967295",
        "burst = 9007199254",
        "usage = \"1s\"",
        "usage = \"366d\"",
        "weights = { us-east = 0, eu-west = 1000000 }",
        "new_subjects_per_second = 1",
        "new_subjects_per_second = 1000000",
        "pool = { by = \"team\", default_weight = 1, weights = { a = 1, b = 1000000 } }",
        "pool = { by = \"team\", default_weight = 1000000 }",
        "priority = [{ class = \"a\", refuse_below = \"0%\" }, { class = \"b\", refuse_below = \"99%\" }]",
    ] {
        parse(&with(added)).unwrap();
    }
    parse("revision = 9007199254740991\nregions = [\"a\"]").unwrap();
}

#[test]
fn a_budget_too_small_for_its_regions_is_warned_of() {
    let warnings = |text: &str| parse(text).unwrap().warnings;
    assert_eq!(
        warnings(&where_("limit", "7")),
        [
            "policies.toml:6: policy \"api\": limit: 7 over 2 regions is less than 4 each, so that many requests will \
          have to wait for a loan; consider fewer regions with a weight above 0 (or home mode, once it is supported)"
        ]
    );
    assert_eq!(warnings(&where_("limit", "8")), [""; 0]);
    let burst = warnings(&with("burst = 7"));
    assert!(
        burst[0].starts_with("policies.toml:8: policy \"api\": burst: 7 over"),
        "{burst:?}"
    );
    assert_eq!(
        warnings(&with("burst = 7\nweights = { us-east = 1, eu-west = 0 }")),
        [""; 0]
    );
}
