mod hashed;

use super::*;
use crate::policy::PolicySet;
use proptest::prelude::*;

/// A policy `api@7` with these key attributes.
fn keyed_by(attributes: &[&str]) -> Policy {
    let text = format!(
        "regions = [\"a\"]\n[[policy]]\nname = \"api\"\nversion = 7\nkey = {attributes:?}\n\
         algorithm = \"fixed-window\"\nlimit = 9\nper = \"1s\"\n"
    );
    let set = PolicySet::parse(&text, "p.toml").unwrap();
    Policy::clone(&set.policies[0])
}

fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn key_of(values: &[&str]) -> Result<Key, KeyError> {
    const NAMES: [&str; 16] = [
        "p", "o", "n", "m", "l", "k", "j", "i", "h", "g", "f", "e", "d", "c", "b", "a",
    ];
    let names = &NAMES[..values.len()];
    let pairs: Vec<_> = names.iter().copied().zip(values.iter().copied()).collect();
    Key::of(
        &keyed_by(names),
        &attributes(&pairs),
        &SubjectHash::default(),
    )
}

fn text_of(values: &[&str]) -> String {
    key_of(values).unwrap().as_str().to_owned()
}

#[test]
fn a_key_is_the_policy_at_its_version_and_the_values_in_the_policys_order() {
    let policy = keyed_by(&["tenant", "route"]);
    let request = attributes(&[("route", "/v1"), ("tenant", "acme"), ("user", "kim")]);
    let key = Key::of(&policy, &request, &SubjectHash::default()).unwrap();
    assert_eq!(key.as_str(), "api@7:acme:%2Fv1");
    assert_eq!(key.policy_id(), "api@7");
    assert_eq!(key.subject(), ["acme", "/v1"]);
    assert_eq!(key.to_string(), key.as_str());
}

#[test]
fn what_could_be_mistaken_for_syntax_is_escaped() {
    assert_eq!(text_of(&["a:b", "100%"]), "api@7:a%3Ab:100%25");
    assert_eq!(text_of(&["{x} y/"]), "api@7:%7Bx%7D%20y%2F");
    assert_eq!(text_of(&["Ü", "A-z_0.9~"]), "api@7:%C3%9C:A-z_0.9~");
}

#[test]
fn no_value_and_an_empty_value_are_two_subjects() {
    assert_eq!(text_of(&[]), "api@7:");
    assert_eq!(text_of(&[""]), "api@7:%");
    assert_eq!(text_of(&["%"]), "api@7:%25");
    assert_eq!(text_of(&["", "a", ""]), "api@7:%:a:%");
    assert_eq!(Key::parse("api@7:").unwrap().subject(), [""; 0]);
    assert_eq!(Key::parse("api@7:%").unwrap().subject(), [""]);
}

#[test]
fn both_ways_of_writing_an_accent_are_one_subject() {
    assert_eq!(key_of(&["caf\u{e9}"]), key_of(&["cafe\u{301}"]));
    assert_eq!(key_of(&["cafe\u{301}"]).unwrap().subject(), ["caf\u{e9}"]);
}

#[test]
fn case_and_spaces_are_the_callers_to_know() {
    assert_ne!(text_of(&["Acme"]), text_of(&["acme"]));
    assert_ne!(text_of(&["acme "]), text_of(&["acme"]));
}

#[test]
fn a_subject_of_10_kb_is_an_error_that_names_the_attribute_and_the_bound() {
    let message = "attribute \"p\": its value has 10240 bytes; expected at most 256";
    let long = "x".repeat(10 << 10);
    assert_eq!(key_of(&[&long]).unwrap_err().to_string(), message);
    assert!(key_of(&[&"x".repeat(256)]).is_ok());
    assert!(key_of(&[&"x".repeat(257)]).is_err());
}

#[test]
fn a_value_that_grows_past_the_bound_when_it_is_composed_is_too_long() {
    // A note that NFC takes apart: four bytes become twelve.
    let value = "\u{1D160}".repeat(64);
    let error = key_of(&[&value]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "attribute \"p\": its value has 768 bytes; expected at most 256"
    );
}

#[test]
fn a_subject_of_many_long_values_is_an_error_that_names_the_policy() {
    let value = "x".repeat(256);
    assert!(key_of(&[value.as_str(); 4]).is_ok());
    assert_eq!(
        key_of(&[value.as_str(); 5]).unwrap_err().to_string(),
        "policy \"api\": the subject has 1280 bytes over all key attributes; expected at most 1024"
    );
}

#[test]
fn a_request_without_a_key_attribute_has_no_key() {
    let error = Key::of(
        &keyed_by(&["tenant"]),
        &attributes(&[("user", "kim")]),
        &SubjectHash::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "attribute \"tenant\" is missing; policy \"api\" has it in its key"
    );
}

#[test]
fn attributes_that_no_policy_looks_at_are_bounded_too() {
    let long = "x".repeat(257);
    let many: Attributes = (0..65).map(|i| (i.to_string(), String::new())).collect();
    for (request, message) in [
        (many, "65 attributes; expected at most 64"),
        (
            attributes(&[("note", &long)]),
            "attribute \"note\": its value has 257 bytes; expected at most 256",
        ),
        (
            attributes(&[("", "x")]),
            "an attribute without a name; expected 1 to 64 bytes",
        ),
        (
            attributes(&[(&long, "x")]),
            "the attribute name that begins with \"xxxxxxxxxxxxxxxx\" has 257 bytes; expected at most 64",
        ),
    ] {
        assert_eq!(check_attributes(&request).unwrap_err().to_string(), message);
    }
    let most: Attributes = (0..64)
        .map(|i| (format!("{i:064}"), "x".repeat(256)))
        .collect();
    assert_eq!(check_attributes(&most), Ok(()));
}

#[test]
fn the_policies_of_one_tenant_share_a_partition() {
    let request = attributes(&[("tenant", "acme"), ("route", "/v1"), ("account", "acme")]);
    let of = |names| {
        Key::of(&keyed_by(names), &request, &SubjectHash::default())
            .unwrap()
            .partition()
    };
    assert_eq!(of(&["tenant"]), of(&["tenant", "route"]));
    assert_eq!(of(&["tenant"]), of(&["account", "route"]));
    assert_ne!(of(&["tenant"]), of(&["route"]));
}

#[test]
fn partitions_are_the_same_in_every_build() {
    // Stored data is found by these: a change here is a change of the format.
    assert_eq!(
        key_of(&["acme"]).unwrap().partition(),
        Partition(xxh3_64(b"acme") as u8)
    );
    assert_eq!(
        key_of(&[]).unwrap().partition(),
        Partition(xxh3_64(b"api") as u8)
    );
    assert_eq!(xxh3_64(b"acme"), 4948779126678378721);
}

#[test]
fn a_text_that_no_key_is_written_as_is_not_read() {
    for text in [
        "",
        "api@7",
        "api:acme",
        "@7:acme",
        "API@7:acme",
        "api@:acme",
        "api@0:acme",
        "api@07:acme",
        "api@+7:acme",
        "api@4294967296:acme",
        "api@7::",
        "api@7:acme:",
        "api@7:a b",
        "api@7:é",
        "api@7:%2f",
        "api@7:%41",
        "api@7:%4",
        "api@7:%C3",
        "api@7:e%CC%81",
    ] {
        assert_eq!(Key::parse(text), None, "{text:?}");
    }
    let most = format!("api@7:{}", vec!["x".repeat(64); 16].join(":"));
    assert!(Key::parse(&most).is_some());
    let long = format!("api@7:{}", "x".repeat(65));
    assert_eq!(Key::parse(&long), None);
    let many = format!("api@7:{}", vec!["x"; 17].join(":"));
    assert_eq!(Key::parse(&many), None);
}

fn some_values() -> impl Strategy<Value = Vec<String>> {
    let value = prop_oneof![
        "[a-b:%{}]{0,3}",
        "\\PC{0,20}",
        any::<String>().prop_map(|s| s.chars().take(20).collect()),
    ];
    prop::collection::vec(value, 0..5)
}

fn key_of_all(values: &[String]) -> Key {
    let values: Vec<_> = values.iter().map(String::as_str).collect();
    key_of(&values).unwrap()
}

fn composed(values: &[String]) -> Vec<String> {
    values.iter().map(|v| normalise(v).into_owned()).collect()
}

proptest! {
    #[test]
    fn a_key_is_read_back_as_it_was_written(values in some_values()) {
        let key = key_of_all(&values);
        prop_assert_eq!(Key::parse(key.as_str()), Some(key.clone()));
        let shown = composed(&values).into_iter().zip(key.subject());
        for (value, shown) in shown {
            if shown::may_be_shown(&value) {
                prop_assert_eq!(shown, value);
            } else {
                prop_assert!(shown.starts_with('#') && shown.len() == 23, "{}", shown);
            }
        }
        prop_assert_eq!(key.policy_id(), "api@7");
    }

    #[test]
    fn two_subjects_never_share_a_key(a in some_values(), b in some_values()) {
        prop_assert_eq!(key_of_all(&a) == key_of_all(&b), composed(&a) == composed(&b));
    }

    #[test]
    fn a_key_is_printable_and_of_bounded_length(values in some_values()) {
        let key = key_of_all(&values);
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"@:%._~-".contains(&b);
        prop_assert!(key.as_str().bytes().all(allowed));
        prop_assert!(key.as_str().len() <= MAX_KEY_BYTES);
    }

    #[test]
    fn whatever_is_read_is_written_the_same(text in "api@[1-9]:[a:%0-9A-F]{0,12}") {
        if let Some(key) = Key::parse(&text) {
            let values: Vec<_> = key.subject();
            let names: Vec<_> = (0..values.len()).map(|i| format!("a{i}")).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let pairs: Vec<_> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
            let mut policy = keyed_by(&names);
            policy.version = text[4..5].parse().unwrap();
            prop_assert_eq!(Key::of(&policy, &attributes(&pairs), &SubjectHash::default()).unwrap(), key);
        }
    }

    #[test]
    fn no_text_is_too_odd_to_be_looked_at(text: String) {
        let _ = Key::parse(&text);
    }
}

#[test]
fn the_longest_key_is_within_the_bound() {
    let long = "é".repeat(32);
    let text = text_of(&[long.as_str(); 16]);
    assert_eq!(
        text.len(),
        MAX_KEY_BYTES - 64 - 10 + "api".len() + "7".len()
    );
    assert!(text_of(&["\n"; 16]).len() <= MAX_KEY_BYTES);
}
