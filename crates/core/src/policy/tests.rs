//! What is asked of a policy, and digests. What a file may say is in `parse/tests.rs`.

use super::*;

pub(super) const GOOD: &str = r#"
revision = 3
regions = ["us-east", "eu-west", "ap-south"]

[[policy]]
name = "api"
version = 2
match = { route = "/v1/*" }
key = ["tenant"]
algorithm = "token-bucket"
limit = 1_000
per = "1m"
burst = 200
mode = "shares"
tolerance = "never-over"
weights = { us-east = 2, eu-west = 1, ap-south = 1 }
on_store_failure = "closed"
usage = "1h"
shadow = true

[[policy]]
name = "exports"
key = []
algorithm = "fixed-window"
limit = 100
per = "24h"
"#;

fn parse(text: &str) -> PolicySet {
    PolicySet::parse(text, "policies.toml").unwrap()
}

fn region(name: &str) -> Region {
    Region::new(name)
}

// === what is asked of a policy ===

fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[test]
fn a_policy_matches_what_has_its_match_and_its_key() {
    let api = &parse(GOOD).policies[0];
    for (request, matches) in [
        (&[("tenant", "acme"), ("route", "/v1/search")][..], true),
        (&[("tenant", ""), ("route", "/v1/"), ("user", "kim")], true),
        (&[("tenant", "acme"), ("route", "/v2/search")], false),
        (&[("tenant", "acme")], false),
        (&[("route", "/v1/search")], false),
        (&[], false),
    ] {
        assert_eq!(api.matches(&attributes(request)), matches, "{request:?}");
    }
    assert!(parse(GOOD).policies[1].matches(&attributes(&[])));
}

#[test]
fn base_shares_follow_the_weights_and_sum_to_the_budget() {
    let text = GOOD.replace("limit = 100\n", "limit = 101\n");
    let equal = &parse(&text).policies[1];
    let weighted = &parse(GOOD).policies[0];
    for (name, units, ppb) in [
        ("ap-south", 34, 333_333_334),
        ("eu-west", 34, 333_333_333),
        ("us-east", 33, 333_333_333),
        ("mars", 0, 0),
    ] {
        assert_eq!(equal.base_units(&region(name)), units, "{name}");
        assert_eq!(equal.base_ppb(&region(name)), ppb, "{name}");
    }
    assert_eq!(weighted.base_ppb(&region("us-east")), PPB / 2);
    assert_eq!(weighted.base_units(&region("ap-south")), 250);
}

// === digests ===

#[test]
fn a_digest_is_the_same_in_every_build_and_in_every_order_of_the_file() {
    let set = parse(GOOD);
    // Nodes of two releases compare these while one is rolled out.
    assert_eq!(set.policies[0].digest(), 0x8431_dbe3_0140_20f5);
    assert_eq!(set.digest(), 0x5fac_08e0_86b6_e1bd);

    let (head, policies) = GOOD.split_once("[[policy]]").unwrap();
    let (api, exports) = policies.split_once("[[policy]]").unwrap();
    let upside_down: String = api.lines().rev().flat_map(|line| [line, "\n"]).collect();
    let text = format!(
        "{}\n[[policy]]{exports}# a comment\n[[policy]]\n{upside_down}",
        head.replace("\"us-east\", \"eu-west\"", "\"eu-west\", \"us-east\"")
            .replace('3', "4")
    );
    assert_eq!(parse(&text).digest(), set.digest());
}

#[test]
fn a_digest_changes_with_everything_that_affects_a_decision() {
    let digest = |text: &str| parse(text).digest();
    let mut digests = std::collections::BTreeSet::from([digest(GOOD)]);
    let changes = [
        ("\"ap-south\"]", "\"ap-north\"]"),
        ("\"api\"", "\"apis\""),
        ("version = 2", "version = 1"),
        ("{ route", "{ path"),
        ("/v1/*", "/v2/*"),
        ("[\"tenant\"]", "[\"user\"]"),
        ("[\"tenant\"]", "[\"user\", \"tenant\"]"),
        ("limit = 1_000", "limit = 1_001"),
        ("per = \"1m\"", "per = \"2m\""),
        ("burst = 200", "burst = 201"),
        ("us-east = 2", "us-east = 1"),
        ("usage = \"1h\"", "usage = \"2h\""),
        ("usage = \"1h\"", ""),
        ("shadow = true", "shadow = false"),
        ("per = \"24h\"", "per = \"23h\""),
        ("limit = 100\n", "limit = 101\n"),
        ("key = []", "key = [\"tenant\"]"),
        (
            "algorithm = \"fixed-window\"",
            "algorithm = \"token-bucket\"",
        ),
    ];
    for (from, to) in changes {
        let mut text = GOOD.replace(from, to);
        if from.starts_with("\"ap-south") {
            text = text.replace("ap-south", "ap-north");
        }
        assert_ne!(text, GOOD);
        assert!(digests.insert(digest(&text)), "{from} to {to}");
    }
}
