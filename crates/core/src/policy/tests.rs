//! What is asked of a policy, and digests. What a file may say is in `parse/tests.rs`.

use super::*;
use proptest::prelude::*;

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
sensitive = ["tenant"]
new_subjects_per_second = 500

[policy.plans]
by = "plan"
free = { limit = 100, burst = 10 }
pro = { limit = 5000 }

[[policy.override]]
key = { tenant = "acme" }
limit = 20_000
burst = 500

[[policy.priority]]
class = "health"
exempt = true

[[policy.priority]]
class = "interactive"
refuse_below = "0%"

[[policy.priority]]
class = "batch"
refuse_below = "20.5%"

[policy.pool]
by = "team"
default_weight = 2
weights = { search = 4 }

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
        assert_eq!(equal.base_units(101, &region(name)), units, "{name}");
        assert_eq!(equal.base_ppb(&region(name)), ppb, "{name}");
    }
    assert_eq!(weighted.base_ppb(&region("us-east")), PPB / 2);
    assert_eq!(weighted.base_units(1000, &region("ap-south")), 250);
}

// === digests ===

#[test]
fn a_digest_is_the_same_in_every_build_and_in_every_order_of_the_file() {
    let set = parse(GOOD);
    // Nodes of two releases compare these while one is rolled out.
    assert_eq!(set.policies[0].digest(), 0x8998_ff32_391c_4dad);
    assert_eq!(set.digest(), 0x4665_23bc_caa6_828e);

    let (head, policies) = GOOD.split_once("[[policy]]").unwrap();
    let (api, exports) = policies.split_once("[[policy]]").unwrap();
    let (api, tables) = api.split_once("\n\n").unwrap();
    let upside_down: String = api.lines().rev().flat_map(|line| [line, "\n"]).collect();
    let text = format!(
        "{}\n[[policy]]{exports}# a comment\n[[policy]]\n{upside_down}{tables}",
        head.replace("\"us-east\", \"eu-west\"", "\"eu-west\", \"us-east\"")
            .replace('3', "4")
    );
    assert_eq!(parse(&text).digest(), set.digest());
}

#[test]
fn a_digest_changes_with_everything_that_affects_a_decision() {
    const FIXED: &str = "\"fixed-window\"\nlimit = 100\nper = \"24h\"";
    let digest = |text: &str| parse(text).digest();
    let mut digests = std::collections::BTreeSet::from([digest(GOOD)]);
    let changes = [
        ("\"ap-south\"]", "\"ap-north\"]"),
        ("\"api\"", "\"apis\""),
        ("version = 2", "version = 1"),
        ("{ route", "{ path"),
        ("/v1/*", "/v2/*"),
        ("key = [\"tenant\"]", "key = [\"tenant\", \"user\"]"),
        ("key = [\"tenant\"]", "key = [\"user\", \"tenant\"]"),
        ("limit = 1_000", "limit = 1_001"),
        ("per = \"1m\"", "per = \"2m\""),
        ("burst = 200", "burst = 201"),
        ("us-east = 2", "us-east = 1"),
        ("usage = \"1h\"", "usage = \"2h\""),
        ("usage = \"1h\"", ""),
        ("shadow = true", "shadow = false"),
        ("per = \"24h\"", "per = \"23h\""),
        ("per = \"24h\"", "per = \"week\""),
        ("per = \"24h\"", "per = \"month\""),
        ("per = \"24h\"", "per = \"7d\""),
        ("limit = 100\n", "limit = 101\n"),
        ("key = []", "key = [\"tenant\"]"),
        ("\"fixed-window\"", "\"token-bucket\""),
        ("\"fixed-window\"", "\"gcra\""),
        ("\"fixed-window\"", "\"sliding-log\""),
        ("\"fixed-window\"", "\"sliding-window\""),
        ("\"fixed-window\"", "\"sliding-window\"\nbuckets = 1"),
        (
            FIXED,
            "\"concurrency\"\nlimit = 100\nmode = \"region\"\nslot_ttl = \"1s\"",
        ),
        (
            FIXED,
            "\"concurrency\"\nlimit = 100\nmode = \"region\"\nslot_ttl = \"2s\"",
        ),
        ("sensitive = [\"tenant\"]", ""),
        ("_second = 500", "_second = 501"),
        ("new_subjects_per_second = 500", ""),
        ("by = \"plan\"", "by = \"tier\""),
        ("free =", "none ="),
        ("limit = 100,", "limit = 101,"),
        ("burst = 10 ", "burst = 11 "),
        ("pro = { limit = 5000 }", ""),
        ("\"acme\"", "\"umbrella\""),
        ("20_000", "20_001"),
        ("burst = 500", "burst = 501"),
        ("\"batch\"", "\"reports\""),
        ("20.5%", "20.6%"),
        ("exempt = true", "refuse_below = \"0%\""),
        ("by = \"team\"", "by = \"group\""),
        ("default_weight = 2", ""),
        ("search =", "find ="),
        ("search = 4", "search = 5"),
    ];
    for (from, to) in changes {
        let mut text = GOOD.replace(from, to);
        if from.starts_with("\"ap-south") {
            text = text.replace("ap-south", "ap-north");
        }
        if to.contains("user") {
            text = text.replace("{ tenant = \"acme\"", "{ user = \"\", tenant = \"acme\"");
        }
        assert_ne!(text, GOOD);
        assert!(digests.insert(digest(&text)), "{from} to {to}");
    }
}

#[test]
fn a_day_is_twenty_four_hours_also_in_a_digest() {
    let day = GOOD.replace("per = \"24h\"", "per = \"day\"");
    assert_eq!(parse(&day).digest(), parse(GOOD).digest());
}

#[test]
fn a_digest_changes_with_the_key_of_hashed_subjects() {
    let plain = parse(GOOD);
    let one = parse(GOOD).with_subject_hash(SubjectHash::new(b"one"));
    let two = parse(GOOD).with_subject_hash(SubjectHash::new(b"two"));
    let digests = [&plain, &one, &two].map(PolicySet::digest);
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    let [api, exports] = [0, 1].map(|i| &plain.policies[i]);
    assert_ne!(one.policy_digest(api), two.policy_digest(api));
    assert_eq!(one.policy_digest(exports), exports.digest());
}

#[test]
fn regions_that_hash_apart_have_sets_that_differ_wherever_a_value_may_be_hashed() {
    let digests = |text: &str| {
        [b"one", b"two"].map(|secret| {
            let set = parse(text).with_subject_hash(SubjectHash::new(secret));
            (set.digest(), set.policy_digest(&set.policies[0]))
        })
    };
    let keyed = GOOD.replace("sensitive = [\"tenant\"]", "");
    let [one, two] = digests(&keyed);
    assert_ne!(one.0, two.0);
    assert_eq!(one.1, two.1, "nothing of the policy itself depends on it");
    let (head, policies) = GOOD.split_once("[[policy]]").unwrap();
    let (_, exports) = policies.split_once("[[policy]]").unwrap();
    let [one, two] = digests(&format!("{head}[[policy]]{exports}"));
    assert_eq!(one, two, "there is nothing to hash");
}

// === limits of a request and of a key ===

const TIERED: &str = r#"
regions = ["a"]
[[policy]]
name = "api"
key = ["tenant", "email"]
sensitive = ["email"]
algorithm = "fixed-window"
limit = 10
per = "1m"
[policy.plans]
by = "plan"
pro = { limit = 50 }
[[policy.override]]
key = { tenant = "acme", email = "kim" }
limit = 7
[[policy.override]]
key = { tenant = "kim@example.org", email = "" }
limit = 8
"#;

#[test]
fn a_subjects_own_limits_come_before_its_plans_and_those_before_the_policys() {
    let policy = &parse(TIERED).policies[0];
    let limit = |request: &[(&str, &str)]| policy.limits_of(&attributes(request)).limit;
    let kim = [("tenant", "acme"), ("email", "kim"), ("plan", "pro")];
    assert_eq!(limit(&kim), 7);
    assert_eq!(
        limit(&[("tenant", "acme"), ("email", "joe"), ("plan", "pro")]),
        50
    );
    assert_eq!(
        limit(&[("tenant", "acme"), ("email", "joe"), ("plan", "no")]),
        10
    );
    assert_eq!(limit(&[("tenant", "acme"), ("email", "joe")]), 10);
}

#[test]
fn an_override_is_found_by_a_key_whose_values_are_hashed() {
    let set = parse(TIERED).with_subject_hash(SubjectHash::new(b"secret"));
    let policy = &set.policies[0];
    let others = [SubjectHash::default(), SubjectHash::new(b"other")];
    for hash in [&set.subject_hash, &others[0], &others[1], &set.subject_hash] {
        let limits_of = |tenant, email| {
            let request = attributes(&[("tenant", tenant), ("email", email)]);
            let key = crate::key::Key::of(policy, &request, hash).unwrap();
            policy.limits_of_key(&key, hash)
        };
        assert_eq!(limits_of("acme", "kim"), Some(Limits::of(7)));
        assert_eq!(limits_of("kim@example.org", ""), Some(Limits::of(8)));
        assert_eq!(limits_of("acme", "joe"), None, "it depends on the plan");
    }
}

#[test]
fn the_limits_of_a_key_are_the_policys_where_nothing_else_is_said() {
    let set = parse(GOOD);
    let exports = &set.policies[1];
    let key = crate::key::Key::of(exports, &attributes(&[]), &set.subject_hash).unwrap();
    let limits = exports.limits_of_key(&key, &set.subject_hash);
    assert_eq!(limits, Some(Limits::of(100)));
}

#[test]
fn a_copy_of_overrides_is_equal_and_finds_its_own_keys() {
    let set = parse(TIERED);
    let policy = &set.policies[0];
    let request = attributes(&[("tenant", "acme"), ("email", "kim")]);
    let key = |policy: &Policy| crate::key::Key::of(policy, &request, &set.subject_hash).unwrap();
    assert!(
        policy
            .limits_of_key(&key(policy), &set.subject_hash)
            .is_some()
    );
    let mut copy = Policy::clone(policy);
    assert_eq!(copy, **policy);
    copy.version = 2;
    let limits = copy.limits_of_key(&key(&copy), &set.subject_hash);
    assert_eq!(limits, Some(Limits::of(7)));
}

// === classes and members ===

#[test]
fn a_request_is_of_the_class_it_names_and_of_the_last_if_there_is_no_such() {
    let api = &parse(GOOD).policies[0];
    assert_eq!(api.standing_of(Some("health")), Standing::Exempt);
    assert_eq!(api.standing_of(None), Standing::Leaves { ppm: 0 });
    let batch = Standing::Leaves { ppm: 205_000 };
    assert_eq!(api.standing_of(Some("batch")), batch);
    assert_eq!(api.standing_of(Some("unheard of")), batch);
}

#[test]
fn a_member_is_named_as_it_may_be_shown() {
    let set = parse(GOOD);
    let member = |team: &[(&str, &str)]| {
        let member = set.policies[0].member_of(&attributes(team), &set.subject_hash);
        member.map(|m| (m.name, m.weight)).unwrap()
    };
    assert_eq!(member(&[("team", "search")]), ("search".into(), 4));
    assert_eq!(member(&[]), (String::new(), 2));
    let (name, weight) = member(&[("team", "kim@example.org")]);
    assert!(name.starts_with('#') && name.len() == 23, "{name}");
    assert_eq!(weight, 2);
    let exports = &set.policies[1];
    assert_eq!(exports.member_of(&attributes(&[]), &set.subject_hash), None);
}

// === base shares of several tiers ===

proptest! {
    #[test]
    fn regions_that_see_different_plans_have_no_more_than_the_largest(
        seen in prop::collection::vec((prop_oneof![0..4_u64, 0..=1_000_000_u64], any::<prop::sample::Index>()), 1..9)
            .prop_filter("not all zero", |seen| seen.iter().any(|(weight, _)| *weight > 0)),
        plans in prop::collection::vec(prop_oneof![1..40_u64, 1..=9_007_199_254_u64], 1..6),
    ) {
        let mut policy = Policy::clone(&parse(GOOD).policies[1]);
        policy.limits = Limits::of(plans[0]);
        policy.plans = Some(Plans {
            by: "plan".into(),
            plans: plans.iter().map(|l| (l.to_string(), Limits::of(*l))).collect(),
        });
        let name = |i: usize| region(&format!("r{i}"));
        policy.weights = seen.iter().enumerate().map(|(i, (w, _))| (name(i), *w)).collect();

        let limits: Vec<_> = seen.iter().map(|(_, plan)| *plan.get(&plans)).collect();
        let bases = limits.iter().enumerate().map(|(i, limit)| policy.base_units(*limit, &name(i)));
        prop_assert!(bases.sum::<u64>() <= *limits.iter().max().unwrap());

        let tiers = policy.tiers();
        for i in 0..seen.len() {
            let bases: Vec<_> = tiers.iter().map(|t| policy.base_units(t.limit, &name(i))).collect();
            prop_assert!(bases.is_sorted(), "{bases:?} of {tiers:?}");
        }
        let largest = tiers.last().unwrap().limit;
        let dealt: u64 = (0..seen.len()).map(|i| policy.base_units(largest, &name(i))).sum();
        prop_assert_eq!(dealt, largest);
    }
}
