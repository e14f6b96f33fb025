//! Plans and overrides.

use super::*;

const PLANS: &str = "[policy.plans]\nby = \"plan\"\n";
const VALUE: &str =
    "expected a value for each attribute of the policy's key, such as { tenant = \"acme\" }";

#[test]
fn plans_have_limits_of_their_own_in_composed_form() {
    let policy = read_with(&format!(
        "{PLANS}free = {{ limit = 100, burst = 10 }}\npro = {{ limit = 5000 }}\n\"Cafe\u{301}\" = {{ limit = 7 }}"
    ));
    let plans = policy.plans.unwrap();
    assert_eq!(plans.by, "plan");
    let expected = [
        ("Caf\u{e9}", limits(7, 7)),
        ("free", limits(100, 10)),
        ("pro", limits(5000, 5000)),
    ];
    let expected = expected.map(|(name, limits)| (name.to_owned(), limits));
    assert_eq!(plans.plans, expected.into());
}

#[test]
fn the_attribute_of_the_plan_may_be_one_of_the_key() {
    read_with("plans = { by = \"tenant\", acme = { limit = 5 } }");
}

#[test]
fn the_longest_filling_is_that_of_any_limits() {
    let fill_ms = |added: &str| read_with(added).fill_ms;
    assert_eq!(fill_ms(""), 60_000);
    assert_eq!(fill_ms("burst = 500"), 30_000);
    assert_eq!(
        fill_ms(&format!("{PLANS}free = {{ limit = 10, burst = 30 }}")),
        180_000
    );
    assert_eq!(
        fill_ms("[[policy.override]]\nkey = { tenant = \"a\" }\nlimit = 1\nburst = 9"),
        540_000
    );
}

#[test]
fn plans_that_are_not_understood_are_errors() {
    let many: String = (0..101)
        .map(|i| format!("p{i} = {{ limit = 1 }}\n"))
        .collect();
    for (added, expected) in [
        (
            "[policy.plans]\nfree = { limits = 100 }".to_owned(),
            &[
                "8 plans.by: missing; expected the name of the attribute that holds the plan",
                "9 plans.free.limits: unknown key, did you mean \"limit\"?; expected one of limit, burst",
                "9 plans.free.limit: missing; expected the number of units to admit in each period",
            ][..],
        ),
        (
            "plans = { by = \"a b\", free = { limit = 1 } }".to_owned(),
            &[
                "8 plans.by: \"a b\" is no name for an attribute; expected a name of 1 to 64 printable ASCII characters without spaces or =",
            ],
        ),
        (
            "plans = { by = \"plan\" }".to_owned(),
            &["8 plans: 0 plans; expected 1 to 100 of them"],
        ),
        (
            format!("{PLANS}{many}"),
            &["8 plans: 101 plans; expected 1 to 100 of them"],
        ),
        (
            format!("{PLANS}free = 100"),
            &["10 plans.free: 100 is a number; expected a table such as { limit = 100 }"],
        ),
        (
            format!("{PLANS}free = {{ limit = 0, burst = -1 }}"),
            &[
                "10 plans.free.limit: 0 is too small; expected a whole number from 1 to 9007199254",
                "10 plans.free.burst: -1 is negative; expected a whole number from 1 to 9007199254",
            ],
        ),
        (
            format!("{PLANS}\"caf\u{e9}\" = {{ limit = 1 }}\n\"cafe\u{301}\" = {{ limit = 2 }}"),
            &[
                "10 plans.\"caf\u{e9}\": the same plan in composed form twice; expected plans that differ",
            ],
        ),
        (
            "plans = \"free\"".to_owned(),
            &["8 plans: \"free\" is a string; expected a table: by, and limits for each plan"],
        ),
    ] {
        assert_added_is_refused(&added, expected);
    }
}

#[test]
fn a_burst_of_a_plan_or_an_override_belongs_to_buckets() {
    const SAID: &str =
        "this algorithm has no burst; expected a burst with \"token-bucket\" or \"gcra\" alone";
    let log = |rest: &str| of_kind("sliding-log", &format!("limit = 9\nper = \"1m\"\n{rest}"));
    assert_api_is_refused(
        &log("plans = { by = \"plan\", free = { limit = 1, burst = 1 } }"),
        &[&format!("8 plans.free.burst: {SAID}")],
    );
    assert_api_is_refused(
        &log("override = [{ key = { tenant = \"a\" }, limit = 1, burst = 1 }]"),
        &[&format!("8 override[0].burst: {SAID}")],
    );
}

#[test]
fn an_override_is_of_a_whole_subject_in_the_order_of_the_key() {
    let text = with(
        "[[policy.override]]\nkey = { user = \"kim\", tenant = \"Cafe\u{301}\" }\nlimit = 20\nburst = 3",
    );
    let policy = only(&text.replace("[\"tenant\"]", "[\"tenant\", \"user\"]"));
    let subject = ["Caf\u{e9}".to_owned(), "kim".to_owned()];
    assert_eq!(policy.overrides.get(&subject), Some(limits(20, 3)));
    assert_eq!(policy.overrides.len(), 1);
}

#[test]
fn two_overrides_of_a_subject_are_an_error_that_names_both_lines() {
    assert_added_is_refused(
        "[[policy.override]]\nkey = { tenant = \"caf\u{e9}\" }\nlimit = 1\n\
         [[policy.override]]\nkey = { tenant = \"cafe\u{301}\" }\nlimit = 2",
        &[
            "12 override[1].key: the subject of the override on line 8 as well; expected subjects that differ",
        ],
    );
}

#[test]
fn an_override_without_a_key_to_tell_it_by_is_an_error() {
    let text = with("[[policy.override]]\nkey = {}\nlimit = 1").replace("[\"tenant\"]", "[]");
    assert_api_is_refused(
        &text,
        &[
            "8 override: with key = [] there is one subject alone, whose limit is the policy's own; expected to be left out",
        ],
    );
}

#[test]
fn overrides_that_are_not_understood_are_errors() {
    let long = "x".repeat(257);
    for (added, expected) in [
        (
            "key = { user = \"kim\" }\nlimit = 0",
            &[
                format!("9 override[0].key.user: not an attribute of the policy's key; {VALUE}"),
                format!("9 override[0].key.tenant: missing; {VALUE}"),
                "10 override[0].limit: 0 is too small; expected a whole number from 1 to 9007199254"
                    .to_owned(),
            ][..],
        ),
        (
            "limit = 1",
            &[format!("8 override[0].key: missing; {VALUE}")],
        ),
        (
            "key = { tenant = 7 }\nlimit = 1\npool = 1",
            &[
                format!("9 override[0].key.tenant: 7 is a number; {VALUE}"),
                "11 override[0].pool: unknown key; expected one of key, limit, burst".to_owned(),
            ],
        ),
        (
            &format!("key = {{ tenant = \"{long}\" }}\nlimit = 1"),
            &[format!(
                "9 override[0].key.tenant: \"{}\"... (257 bytes) is too long; expected at most 256 bytes, in composed form",
                &long[..60]
            )],
        ),
    ] {
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        assert_added_is_refused(&format!("[[policy.override]]\n{added}"), &expected);
    }
    let many = "[[policy.override]]\n".repeat(10_001);
    assert_added_is_refused(
        &many,
        &["8 override: 10001 overrides; expected at most 10000 overrides"],
    );
}

#[test]
fn ten_thousand_overrides_are_read() {
    let many: String = (0..10_000)
        .map(|i| format!("[[policy.override]]\nkey = {{ tenant = \"t{i}\" }}\nlimit = 1\n"))
        .collect();
    assert_eq!(read_with(&many).overrides.len(), 10_000);
}
