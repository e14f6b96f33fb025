//! What a policies file may say, what is said of one that says something else, and that every message has its line.

use super::super::tests::GOOD;
use super::*;
use crate::policy::source::{nearest, show_ms, utf8};
use crate::policy::{Algorithm, Mode, OnStoreFailure, Tolerance};
use proptest::prelude::*;

fn parse(text: &str) -> Result<PolicySet, PolicyErrors> {
    PolicySet::parse(text, "policies.toml")
}

fn region(name: &str) -> Region {
    Region::new(name)
}

/// A policy that is fine but for the lines `added`, which begin at line 8.
fn with(added: &str) -> String {
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\nname = \"api\"\nkey = [\"tenant\"]\n\
         algorithm = \"token-bucket\"\nlimit = 1000\nper = \"1m\"\n{added}\n"
    )
}

/// As `with`, but for one field in another form.
fn where_(field: &str, value: &str) -> String {
    let fields = [
        ("name", "\"api\""),
        ("key", "[\"tenant\"]"),
        ("algorithm", "\"fixed-window\""),
        ("limit", "100"),
        ("per", "\"1m\""),
    ];
    let lines = fields
        .map(|(name, usual)| format!("{name} = {}\n", if name == field { value } else { usual }));
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\n{}",
        lines.concat()
    )
}

#[track_caller]
fn assert_refused(text: &str, expected: &[&str]) {
    let errors = parse(text).expect_err(text);
    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(lines, expected, "{text}");
    assert_eq!(errors.to_string(), expected.join("\n"));
}

#[track_caller]
fn assert_added_is_refused(added: &str, expected: &[&str]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|e| match e.split_once(' ') {
            Some((line, message)) => format!("policies.toml:{line}: policy \"api\": {message}"),
            None => (*e).to_owned(),
        })
        .collect();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_refused(&with(added), &expected);
}

// === what is read ===

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
            algorithm: Algorithm::TokenBucket {
                limit: 1000,
                per_ms: 60_000,
                burst: 200
            },
            mode: Mode::Shares,
            tolerance: Tolerance::NeverOver,
            on_store_failure: OnStoreFailure::Closed,
            weights: [("us-east", 2), ("eu-west", 1), ("ap-south", 1)]
                .map(|(name, weight)| (region(name), weight))
                .into(),
            usage_ms: Some(3_600_000),
            shadow: true,
        }
    );
    assert_eq!(
        exports.algorithm,
        Algorithm::FixedWindow {
            limit: 100,
            per_ms: 86_400_000
        }
    );
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
    assert_eq!(api.capacity(), 1000);
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
    let capacity = |added| parse(&with(added)).unwrap().policies[0].capacity();
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
        let set = parse(&where_("per", &format!("{text:?}"))).unwrap();
        let Algorithm::FixedWindow { per_ms, .. } = set.policies[0].algorithm else {
            panic!("a fixed window");
        };
        assert_eq!(per_ms, ms, "{text}");
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
    ] {
        parse(&with(added)).unwrap();
    }
    parse("revision = 9007199254740991\nregions = [\"a\"]").unwrap();
}

// === what is refused ===

#[test]
fn an_unknown_key_is_an_error_that_names_its_line() {
    const KEYS: &str = "expected one of name, version, match, key, algorithm, limit, per, burst, mode, tolerance, \
                        weights, on_store_failure, usage, shadow";
    assert_added_is_refused(
        "shadow = false\nbrust = 10\ncolour = \"red\"",
        &[
            &format!("9 brust: unknown key, did you mean \"burst\"?; {KEYS}"),
            &format!("10 colour: unknown key; {KEYS}"),
        ],
    );
    assert_refused(
        "regions = [\"a\"]\n[[policies]]\nname = \"api\"",
        &["policies.toml:2: policies: unknown key; expected one of revision, regions, policy"],
    );
}

#[test]
fn a_number_out_of_range_is_an_error_that_gives_the_range() {
    const UNITS: &str = "expected a whole number from 1 to 9007199254";
    for (value, what) in [
        ("-5", "-5 is negative"),
        ("0", "0 is too small"),
        ("9007199255", "9007199255 is too large"),
        ("0x100000000000000000000000000000000", "far too large"),
        ("1e3", "1e3 is not a whole number"),
        ("\"10\"", "\"10\" is a string"),
        ("true", "true is a boolean"),
        ("[1]", "this is an array"),
    ] {
        assert_refused(
            &where_("limit", value),
            &[&format!(
                "policies.toml:6: policy \"api\": limit: {what}; {UNITS}"
            )],
        );
        assert_added_is_refused(
            &format!("burst = {value}"),
            &[&format!("8 burst: {what}; {UNITS}")],
        );
    }
    assert_added_is_refused(
        "version = 0",
        &["8 version: 0 is too small; expected a whole number from 1 to 4294967295"],
    );
    assert_refused(
        "revision = 0\nregions = [\"a\"]",
        &[
            "policies.toml:1: revision: 0 is too small; expected a whole number from 1 to 9007199254740991",
        ],
    );
}

#[test]
fn a_wrong_unit_is_an_error_that_says_what_to_write() {
    const RANGE: &str = "expected a duration from 1s to 366d, such as \"1h\"";
    const BARE: &str =
        "expected a duration with its unit, in quotes, from 1s to 366d: for 60 seconds, \"60s\"";
    for (value, message) in [
        ("60", format!("60 has no unit; {BARE}")),
        ("\"60\"", format!("60 has no unit; {BARE}")),
        (
            "\"60 apples\"",
            format!("\"60 apples\" is not a duration; {RANGE}"),
        ),
        ("\"-5s\"", format!("\"-5s\" is not a duration; {RANGE}")),
        ("\"\"", format!("\"\" is not a duration; {RANGE}")),
        ("\"999ms\"", format!("\"999ms\" is too short; {RANGE}")),
        ("\"367d\"", format!("\"367d\" is too long; {RANGE}")),
        (
            "\"1month\"",
            format!("\"1month\" has a unit of no fixed length: write days; {RANGE}"),
        ),
        (
            "\"1.0005s\"",
            format!("\"1.0005s\" is not a whole number of milliseconds; {RANGE}"),
        ),
        ("true", format!("true is a boolean; {RANGE}")),
    ] {
        assert_added_is_refused(
            &format!("usage = {value}"),
            &[&format!("8 usage: {message}")],
        );
    }
}

#[test]
fn a_name_of_the_wrong_form_is_an_error() {
    const EXPECTED: &str = "expected 1 to 64 of a-z, 0-9, _ and -";
    let long = "x".repeat(65);
    for (value, called, shown) in [
        ("", "\"\"", "\"\""),
        ("Api", "\"Api\"", "\"Api\""),
        ("a b", "\"a b\"", "\"a b\""),
        ("a@1", "\"a@1\"", "\"a@1\""),
        (
            &long,
            &format!("\"{}\"... (65 bytes)", "x".repeat(60)),
            &format!("\"{}\"... (65 bytes)", "x".repeat(60)),
        ),
    ] {
        assert_refused(
            &where_("name", &format!("{value:?}")),
            &[&format!(
                "policies.toml:3: policy {called}: name: {shown} is no name for a policy; {EXPECTED}"
            )],
        );
    }
    parse(&where_("name", &format!("{:?}", "x".repeat(64)))).unwrap();
}

#[test]
fn two_policies_of_one_name_are_an_error_that_names_both_lines() {
    let text = format!(
        "{}{}",
        with(""),
        "[[policy]]\nname = \"api\"\nkey = []\nalgorithm = \"fixed-window\"\nlimit = 50\nper = \"1s\"\n"
    );
    assert_refused(
        &text,
        &[
            "policies.toml:10: policy \"api\": name: \"api\" is the name of the policy on line 3 as well; expected names that differ",
        ],
    );
}

#[test]
fn what_must_be_there_is_an_error_when_it_is_missing() {
    assert_refused(
        "regions = [\"a\"]\n\n[[policy]]\nshadow = true\n",
        &[
            "policies.toml:3: policy #1: name: missing; expected 1 to 64 of a-z, 0-9, _ and -",
            "policies.toml:3: policy #1: key: missing; expected the attributes that make the subject, such as [\"tenant\"]; [] is one budget for all",
            "policies.toml:3: policy #1: algorithm: missing; expected \"fixed-window\" or \"token-bucket\"",
            "policies.toml:3: policy #1: limit: missing; expected the number of units to admit in each period",
            "policies.toml:3: policy #1: per: missing; expected a duration, such as \"1m\"",
        ],
    );
    assert_refused(
        "",
        &[
            "policies.toml:1: regions: missing; expected every region that shares the budgets, such as [\"us-east\", \"eu-west\"]",
        ],
    );
}

#[test]
fn regions_are_1_to_64_names_that_differ() {
    let many: Vec<_> = (0..65).map(|i| format!("r{i}")).collect();
    assert_refused(
        &format!("regions = {many:?}"),
        &["policies.toml:1: regions: 65 regions; expected 1 to 64 of them"],
    );
    parse(&format!("regions = {:?}", &many[1..])).unwrap();
    assert_refused(
        "regions = []",
        &["policies.toml:1: regions: 0 regions; expected 1 to 64 of them"],
    );
    assert_refused(
        "regions = [\n  \"a\",\n  \"B\",\n  \"a\",\n]",
        &[
            "policies.toml:3: regions[1]: \"B\" is no name for a region; expected a region's name: 1 to 32 of a-z, 0-9 and -",
            "policies.toml:4: regions[2]: \"a\" is listed twice; expected each region once",
        ],
    );
}

#[test]
fn a_key_lists_attributes_once_each() {
    const ATTRIBUTE: &str =
        "expected a name of 1 to 64 printable ASCII characters without spaces or =";
    assert_refused(
        &where_("key", "[\"a\", \"b=c\", \"a\", 7]"),
        &[
            &format!(
                "policies.toml:4: policy \"api\": key[1]: \"b=c\" is no name for an attribute; {ATTRIBUTE}"
            ),
            "policies.toml:4: policy \"api\": key[2]: \"a\" is listed twice; expected each attribute once",
            &format!("policies.toml:4: policy \"api\": key[3]: 7 is a number; {ATTRIBUTE}"),
        ],
    );
    let many: Vec<_> = (0..17).map(|i| format!("a{i}")).collect();
    assert_refused(
        &where_("key", &format!("{many:?}")),
        &["policies.toml:4: policy \"api\": key: 17 attributes; expected at most 16"],
    );
    parse(&where_("key", &format!("{:?}", &many[1..]))).unwrap();
}

#[test]
fn a_match_is_a_table_of_patterns() {
    assert_added_is_refused(
        "match = { route = 1, \"a b\" = \"x\" }",
        &[
            "8 match.\"a b\": no name for an attribute; expected a name of 1 to 64 printable ASCII characters without spaces or =",
            "8 match.route: 1 is a number; expected a pattern, in which * matches any run of characters",
        ],
    );
    assert_added_is_refused(
        "match = \"/v1/*\"",
        &[
            "8 match: \"/v1/*\" is a string; expected a table of attributes and patterns, such as { route = \"/v1/*\" }",
        ],
    );
    assert_added_is_refused(
        &format!("match = {{ route = {:?} }}", "x".repeat(257)),
        &["8 match.route: the pattern has 257 bytes; expected at most 256"],
    );
    let many: Vec<_> = (0..17).map(|i| format!("a{i} = \"\"")).collect();
    assert_added_is_refused(
        &format!("match = {{ {} }}", many.join(", ")),
        &["8 match: 17 attributes; expected at most 16"],
    );
}

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
fn a_burst_belongs_to_buckets() {
    assert_refused(
        &(where_("", "") + "burst = 5\n"),
        &[
            "policies.toml:8: policy \"api\": burst: this algorithm has no burst; expected a burst with \"token-bucket\" or \"gcra\" alone",
        ],
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
            "tolerance = \"never-under\"",
            &["8 tolerance: \"never-under\" is not supported yet; expected \"never-over\""],
        ),
        (
            "tolerance = { over = \"5%\" }",
            &["8 tolerance: { over = ... } is not supported yet; expected \"never-over\""],
        ),
        (
            "tolerance = \"never-under\"\non_store_failure = \"open\"",
            &[
                "8 tolerance: \"never-under\" is not supported yet; expected \"never-over\"",
                "9 on_store_failure: \"open\" is not supported yet; expected \"closed\"",
            ],
        ),
        (
            "tolerance = { over = \"0.5%\" }\non_store_failure = \"local\"",
            &[
                "8 tolerance: { over = ... } is not supported yet; expected \"never-over\"",
                "9 on_store_failure: \"local\" is not supported yet; expected \"closed\"",
            ],
        ),
        (
            "slot_ttl = \"30s\"",
            &[
                "8 slot_ttl: not supported yet; expected no slot_ttl, until concurrency policies are",
            ],
        ),
        (
            "[policy.plans]\nby = \"plan\"\nfree = { limit = 100, burst = 10 }",
            &[
                "8 plans: not supported yet; expected one limit for all requests, or a policy for each plan",
            ],
        ),
        (
            "[[policy.override]]\nkey = { tenant = \"acme\" }\nlimit = 20000",
            &["8 override: not supported yet; expected one limit for all subjects"],
        ),
    ] {
        assert_added_is_refused(added, expected);
    }
    for kind in ["sliding-window", "sliding-log", "gcra"] {
        assert_refused(
            &where_("algorithm", &format!("{kind:?}")),
            &[&format!(
                "policies.toml:5: policy \"api\": algorithm: \"{kind}\" is not supported yet; expected \"fixed-window\" or \"token-bucket\""
            )],
        );
    }
    for per in ["day", "week", "month"] {
        assert_refused(
            &where_("per", &format!("{per:?}")),
            &[&format!(
                "policies.toml:7: policy \"api\": per: \"{per}\", a calendar period, is not supported yet; expected a duration, such as \"24h\""
            )],
        );
    }
}

#[test]
fn concurrency_is_refused_and_its_shape_is_checked() {
    let concurrency = |rest: &str| {
        format!(
            "regions = [\"a\"]\n[[policy]]\nname = \"api\"\nkey = []\nalgorithm = \"concurrency\"\nlimit = 9\n{rest}"
        )
    };
    const NOT_YET: &str = "policies.toml:5: policy \"api\": algorithm: \"concurrency\" is not supported yet; expected \"fixed-window\" or \"token-bucket\"";
    assert_refused(
        &concurrency("mode = \"region\"\nslot_ttl = \"30s\""),
        &[
            NOT_YET,
            "policies.toml:7: policy \"api\": mode: \"region\" is not supported yet; expected \"shares\"",
            "policies.toml:8: policy \"api\": slot_ttl: not supported yet; expected no slot_ttl, until concurrency policies are",
        ],
    );
    assert_refused(
        &concurrency("mode = \"shares\"\nper = \"1s\""),
        &[
            NOT_YET,
            "policies.toml:7: policy \"api\": mode: slots are not dealt in shares; expected \"region\" or \"home\"",
            "policies.toml:8: policy \"api\": per: concurrency has no period; expected no per",
        ],
    );
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
        (
            "slot_ttl = 30",
            &[
                "8 slot_ttl: 30 has no unit; expected a duration with its unit, in quotes, from 100ms to 1d: for 30 seconds, \"30s\"",
                "8 slot_ttl: not supported yet; expected no slot_ttl, until concurrency policies are",
            ],
        ),
        (
            "[policy.plans]\nfree = { limits = 100 }",
            &[
                "8 plans.by: missing; expected the name of the attribute that holds the plan",
                "8 plans: not supported yet; expected one limit for all requests, or a policy for each plan",
                "9 plans.free.limits: unknown key, did you mean \"limit\"?; expected one of limit, burst",
                "9 plans.free.limit: missing; expected a number of units",
            ],
        ),
        (
            "[[policy.override]]\nkey = { user = \"kim\" }\nlimit = 0",
            &[
                "8 override: not supported yet; expected one limit for all subjects",
                "9 override[0].key.user: not an attribute of the policy's key; expected a value for each attribute of the policy's key, such as { tenant = \"acme\" }",
                "9 override[0].key.tenant: missing; expected a value for each attribute of the policy's key, such as { tenant = \"acme\" }",
                "10 override[0].limit: 0 is too small; expected a whole number from 1 to 9007199254",
            ],
        ),
    ] {
        assert_added_is_refused(added, expected);
    }
}

#[test]
fn what_is_not_toml_is_an_error_that_names_its_line() {
    assert_refused(
        &with("limit = 5"),
        &["policies.toml:8: not TOML: duplicate key \"limit\""],
    );
    for text in [
        with("burst ="),
        with("burst = \"5"),
        with("[policy"),
        with("burst = 5 6"),
    ] {
        let errors = parse(&text).unwrap_err().to_string();
        assert!(errors.starts_with("policies.toml:8: not TOML"), "{errors}");
    }
}

#[test]
fn what_is_not_utf8_is_an_error_that_names_its_line() {
    let error = utf8(b"regions = []\n\n# \xff\n", "policies.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "policies.toml:3: not UTF-8; expected text in UTF-8"
    );
    assert_eq!(utf8("# é".as_bytes(), "policies.toml"), Ok("# é"));
}

#[test]
fn lines_are_counted_whatever_ends_them() {
    let text = with("brust = 1").replace('\n', "\r\n");
    assert!(
        parse(&text)
            .unwrap_err()
            .to_string()
            .starts_with("policies.toml:8: ")
    );
    let text = format!("\u{feff}# é ü 漢\n{}", with("brust = 1"));
    assert!(
        parse(&text)
            .unwrap_err()
            .to_string()
            .starts_with("policies.toml:9: ")
    );
}

#[test]
fn too_much_of_anything_is_an_error() {
    let many = "[[policy]]\n".repeat(1001);
    assert_refused(
        &format!("regions = [\"a\"]\n{many}"),
        &["policies.toml:2: policy: 1001 policies; expected at most 1000"],
    );
    assert_refused(
        &"#".repeat((4 << 20) + 1),
        &["policies.toml: the file has 4194305 bytes; expected at most 4194304"],
    );
    // Errors are many, and are told up to a hundred.
    let errors = parse(&format!(
        "regions = [\"a\"]\n{}",
        "[[policy]]\n".repeat(1000)
    ))
    .unwrap_err();
    let text = errors.to_string();
    assert_eq!(text.lines().count(), 101);
    assert!(text.ends_with("\nand 4900 more"), "{text}");
    let unknown: String = (0..20_000).map(|i| format!("a{i} = 1\n")).collect();
    assert_eq!(parse(&unknown).unwrap_err().iter().count(), 10_000);
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

/// The policy that `docs/POLICIES.md` speaks of, with the lines that a row of its table changes or adds.
fn as_in_the_docs(lines: &[&str]) -> String {
    let name = |line: &str| line.split(" = ").next().unwrap_or_default().to_owned();
    let usual = [
        "name = \"api\"",
        "match = { route = \"/v1/*\" }",
        "key = [\"tenant\"]",
        "algorithm = \"token-bucket\"",
        "limit = 1000",
        "per = \"1m\"",
        "burst = 200",
    ];
    let kept = usual
        .iter()
        .filter(|line| !lines.iter().any(|l| name(l) == name(line)));
    let all: Vec<_> = kept.chain(lines).copied().collect();
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\n{}\n",
        all.join("\n")
    )
}

#[test]
fn the_docs_say_of_each_mistake_what_is_told_of_it() {
    let docs = include_str!("../../../../../docs/POLICIES.md");
    let table = docs
        .split("| you write | you are told |\n|---|---|\n")
        .nth(1)
        .unwrap();
    let mut rows = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [written, told] = cells[..] else {
            panic!("two cells: {row}");
        };
        let lines: Vec<_> = written
            .split("<br>")
            .map(|line| line.trim_matches('`'))
            .collect();
        let text = as_in_the_docs(&lines);
        let errors = parse(&text).expect_err(row);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        // Without file, line and policy.
        let said: Vec<_> = errors
            .iter()
            .filter_map(|e| e.splitn(3, ": ").nth(2))
            .collect();
        assert_eq!(said, [told.trim_matches('`')], "{text}");
        rows += 1;
    }
    assert!(rows > 30, "{rows}");
}

// === words in messages ===

#[test]
fn a_duration_is_shown_in_its_largest_whole_unit() {
    for (ms, shown) in [
        (0, "0ms"),
        (100, "100ms"),
        (1000, "1s"),
        (90_000, "90s"),
        (5_400_000, "90m"),
        (86_400_000, "1d"),
    ] {
        assert_eq!(show_ms(ms), shown);
    }
}

#[test]
fn a_suggestion_is_near() {
    assert_eq!(nearest("brust", ["burst", "per"]), Some("burst"));
    assert_eq!(nearest("x", ["by", "per"]), None);
    assert_eq!(nearest(&"x".repeat(1000), ["by"]), None);
    assert_eq!(any_of(["a", "b", "c"]), "\"a\", \"b\" or \"c\"");
}

proptest! {
    #[test]
    fn no_text_is_too_odd_to_be_refused_in_words(text: String, cut in 0..GOOD.len(), insert in "[\\[\\]{}=\",.#a-z0-9\n-]{0,6}") {
        let errors = |text: &str| parse(text).map_or_else(|e| e.iter().count(), |_| 1);
        prop_assert!(errors(&text) > 0);
        let inserted = [&GOOD[..cut], &insert, &GOOD[cut..]].concat();
        prop_assert!(errors(&inserted) > 0);
        prop_assert!(errors(&GOOD[..cut]) > 0);
    }
}
