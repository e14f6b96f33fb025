//! Values that are hashed: which, and how they look in a key.

use super::*;

fn shown(value: &str) -> bool {
    key_of(&[value]).unwrap().subject() == [value]
}

#[test]
fn what_looks_like_a_secret_or_an_address_is_hashed_whatever_the_policy_says() {
    let long = "x".repeat(65);
    for value in [
        "kim@example.org",
        "Kim <kim@mail.example.org>",
        "mailto:kim@example.org?subject=x",
        "kim@bücher.de",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "Bearer abc",
        "bearer abc",
        "Basic dTpw",
        "sk_live_1",
        "sk-proj-1",
        "ghp_1",
        "github_pat_1",
        "xoxb-1",
        "AKIAIOSFODNN7EXAMPLE",
        "a\nb",
        "a\u{7f}",
        "a\u{85}",
        "a\u{202e}b",
        "a\u{200b}",
        "\u{feff}a",
        "\u{e000}",
        "\u{1fffe}",
        &long,
    ] {
        assert!(!shown(value), "{value:?}");
    }
    let most = "x".repeat(64);
    for value in [
        "",
        "acme",
        "@acme",
        "acme@",
        "left-pad@1.3.0",
        "a @ b.de",
        "kim@host",
        "eyJ.a",
        "basic",
        "task_1",
        "Ünïcode 漢字",
        "/v1/search?q=1",
        &most,
    ] {
        assert!(shown(value), "{value:?}");
    }
}

fn sensitive(attributes: &[&str]) -> Policy {
    let mut policy = keyed_by(attributes);
    policy.sensitive = attributes.iter().map(|a| (*a).to_owned()).collect();
    policy
}

#[test]
fn a_sensitive_value_is_hashed_under_the_secret() {
    let policy = sensitive(&["user"]);
    let text = |user: &str, hash: &SubjectHash| {
        let key = Key::of(&policy, &attributes(&[("user", user)]), hash).unwrap();
        assert_eq!(Key::parse(key.as_str()), Some(key.clone()));
        key.as_str().to_owned()
    };
    let [one, two] = [b"one", b"two"].map(|secret| SubjectHash::new(secret));
    let kim = text("kim", &one);
    assert!(kim.starts_with("api@7:%.") && kim.len() == 6 + 24, "{kim}");
    assert_eq!(text("kim", &one), kim);
    assert_ne!(text("kim", &two), kim);
    assert_ne!(text("joe", &one), kim);
    assert_ne!(text("", &one), text("", &two));
    assert_eq!(text("cafe\u{301}", &one), text("caf\u{e9}", &one));
    assert_ne!(one.fingerprint(), two.fingerprint());
    assert_eq!(one.fingerprint(), SubjectHash::new(b"one").fingerprint());
    assert_ne!(SubjectHash::new(b""), SubjectHash::default());
}

#[test]
fn equal_values_of_two_attributes_do_not_show_as_equal_and_those_of_two_policies_share_a_partition()
{
    let mut policy = sensitive(&["from", "to"]);
    let request = attributes(&[("from", "kim"), ("to", "kim")]);
    let of = |policy: &Policy| Key::of(policy, &request, &SubjectHash::default()).unwrap();
    let first = of(&policy).subject();
    assert_ne!(first[0], first[1]);
    policy.version += 1;
    assert_eq!(of(&policy).subject(), first);
    policy.name = "apis".into();
    assert_eq!(of(&policy).subject(), first, "its policies are one call");
    // Lengths stand before the parts: a letter that moves from one to the next makes another hash.
    let hash = SubjectHash::default();
    assert_ne!(hash.digits("a", "bc"), hash.digits("ab", "c"));
}

#[test]
fn hashes_are_the_same_in_every_build() {
    // Stored data is found by these: a change here is a change of the format.
    let key = Key::of(
        &sensitive(&["user"]),
        &attributes(&[("user", "kim")]),
        &SubjectHash::new(b"secret"),
    );
    let key = key.unwrap();
    assert_eq!(key.as_str(), "api@7:%.-gEXj4mAcU3-TVsS8sD5HA");
    assert_eq!(
        key.partition(),
        Partition(xxh3_64(b"%.-gEXj4mAcU3-TVsS8sD5HA") as u8)
    );
    assert_eq!(key.subject(), ["#-gEXj4mAcU3-TVsS8sD5HA"]);
    assert_eq!(
        SubjectHash::new(b"secret").fingerprint(),
        6_141_581_906_929_698_882
    );
}

#[test]
fn a_secret_is_never_printed() {
    let hash = SubjectHash::new(b"secret");
    assert_eq!(format!("{hash:?}"), "SubjectHash { .. }");
}

#[test]
fn what_is_written_in_another_way_than_it_would_be_is_not_read() {
    let digits = "AAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(
        Key::parse(&format!("api@7:%.{digits}")).unwrap().subject(),
        [format!("#{digits}")]
    );
    for text in [
        "api@7:%.",
        "api@7:%.AAAAAAAAAAAAAAAAAAAAA",
        "api@7:%.AAAAAAAAAAAAAAAAAAAAAAA",
        "api@7:%.AAAAAAAAAAAAAAAAAAAAAB",
        "api@7:%.AAAAAAAAAAAAAAAAAAAAA=",
        "api@7:%.AAAAAAAAAAAAAAAAAAAA~A",
        "api@7:x%.AAAAAAAAAAAAAAAAAAAAAA",
        // These would have been hashed.
        "api@7:kim%40example.org",
        "api@7:a%0A",
        "api@7:sk_live_1",
    ] {
        assert_eq!(Key::parse(text), None, "{text:?}");
    }
}

#[test]
fn a_subject_of_hashed_values_is_bounded_as_any_other() {
    let policy = sensitive(&["a", "b", "c", "d", "e"]);
    let long = "x".repeat(256);
    let request = ["a", "b", "c", "d", "e"].map(|name| (name, long.as_str()));
    assert!(Key::of(&policy, &attributes(&request), &SubjectHash::default()).is_err());
}

proptest! {
    #[test]
    fn every_key_with_hashed_values_is_read_back(values in some_values(), secret: Vec<u8>) {
        let names: Vec<_> = (0..values.len()).map(|i| format!("a{i}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut policy = sensitive(&names);
        policy.sensitive.remove("a1");
        let pairs: Vec<_> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
        let key = Key::of(&policy, &attributes(&pairs), &SubjectHash::new(&secret)).unwrap();
        prop_assert_eq!(Key::parse(key.as_str()), Some(key.clone()));
        prop_assert!(key.as_str().len() <= MAX_KEY_BYTES);
        for (i, value) in key.subject().iter().enumerate() {
            prop_assert!(i == 1 || value.starts_with('#'));
        }
    }
}
