//! The file as a whole: its form, its lines, names, and the words of messages.

use super::super::super::tests::GOOD;
use super::*;
use crate::policy::source::{nearest, show_ms, utf8};
use proptest::prelude::*;

#[test]
fn an_unknown_key_is_an_error_that_names_its_line() {
    const KEYS: &str = "expected one of name, version, match, key, sensitive, new_subjects_per_second, \
                        algorithm, limit, per, burst, buckets, slot_ttl, plans, override, priority, pool, mode, \
                        tolerance, weights, on_store_failure, usage, shadow";
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
fn what_must_be_there_is_an_error_when_it_is_missing() {
    assert_refused(
        "regions = [\"a\"]\n\n[[policy]]\nshadow = true\n",
        &[
            "policies.toml:3: policy #1: name: missing; expected 1 to 64 of a-z, 0-9, _ and -",
            "policies.toml:3: policy #1: key: missing; expected the attributes that make the subject, such as [\"tenant\"]; [] is one budget for all",
            "policies.toml:3: policy #1: algorithm: missing; expected \"fixed-window\", \"sliding-window\", \"sliding-log\", \"token-bucket\", \"gcra\" or \"concurrency\"",
            "policies.toml:3: policy #1: per: missing; expected a duration, such as \"1m\"",
            "policies.toml:3: policy #1: limit: missing; expected the number of units to admit in each period",
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
