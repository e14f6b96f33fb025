//! Which requests, and which subject.

use super::*;

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
fn sensitive_attributes_are_of_the_key() {
    const EXPECTED: &str = "expected attributes of the policy's key, such as [\"email\"]";
    let policy = read_with("sensitive = [\"tenant\"]");
    assert_eq!(policy.sensitive, ["tenant".to_owned()].into());
    assert_added_is_refused(
        "sensitive = [\n\"email\",\n\"tenant\",\n\"tenant\",\n7]",
        &[
            &format!(
                "9 sensitive[0]: \"email\" is not an attribute of the policy's key; {EXPECTED}"
            ),
            "11 sensitive[2]: \"tenant\" is listed twice; expected each attribute once",
            &format!("12 sensitive[3]: 7 is a number; {EXPECTED}"),
        ],
    );
    assert_added_is_refused(
        "sensitive = true",
        &[&format!("8 sensitive: true is a boolean; {EXPECTED}")],
    );
}

#[test]
fn new_subjects_are_counted_where_there_are_subjects() {
    const RANGE: &str = "expected a whole number from 1 to 1000000";
    let policy = read_with("new_subjects_per_second = 500");
    assert_eq!(policy.new_subjects_per_s, Some(500));
    for (value, what) in [("0", "0 is too small"), ("1000001", "1000001 is too large")] {
        assert_added_is_refused(
            &format!("new_subjects_per_second = {value}"),
            &[&format!("8 new_subjects_per_second: {what}; {RANGE}")],
        );
    }
    assert_api_is_refused(
        &with("new_subjects_per_second = 5").replace("[\"tenant\"]", "[]"),
        &[
            "8 new_subjects_per_second: with key = [] there is one subject alone; expected to be left out",
        ],
    );
}
