use super::*;
use crate::Fault;

const POLICIES: &str = r#"
regions = ["a", "b", "c"]

[[policy]]
name = "api"
match = { route = "/v1/*" }
key = ["tenant", "user"]
sensitive = ["user"]
algorithm = "token-bucket"
limit = 100
per = "1s"
burst = 50
shadow = true

[policy.plans]
by = "plan"
free = { limit = 10, burst = 5 }

[[policy]]
name = "slots"
key = ["tenant"]
algorithm = "concurrency"
limit = 5
mode = "region"
slot_ttl = "1m"
"#;
const GOOD: &str = r#"policies = "policies.toml"
policy = "api"
duration = "1m"
[[traffic]]
region = "a"
rate = 10
"#;

fn parse(text: &str) -> Result<Scenario, Problems> {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("policies.toml"), POLICIES).expect("it is written");
    Scenario::parse(text, "s.toml", directory.path())
}

fn complaints(text: &str) -> Vec<String> {
    let problems = parse(text).expect_err(text);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_left_out_has_its_default_and_the_policy_is_one_subjects() {
    let scenario = parse(GOOD).expect("it is good");
    let setup = scenario.setup();
    let stated = setup.stated.expect("traffic is stated");
    assert_eq!(
        (setup.regions, setup.nodes, setup.delay_ms),
        (3, 2, (75, 75))
    );
    assert_eq!((stated.interval_ms, stated.term_ms), (2_000, 10_000));
    assert_eq!(setup.duration_ms, 60_000 + LEAD_IN_MS);
    let flow = &stated.flows[0];
    assert_eq!(
        (flow.from_ms, flow.until_ms),
        (LEAD_IN_MS, setup.duration_ms)
    );
    let policy = &scenario.policy;
    assert_eq!((policy.limits.limit, policy.limits.burst), (100, 50));
    assert!(policy.plans.is_none() && !policy.shadow && policy.attributes.is_empty());
    assert_eq!(policy.key, ["tenant"]);
}

#[test]
fn every_mistake_is_told_with_its_line_and_what_was_expected() {
    for (added, expected) in [
        (
            "rat = 5",
            "s.toml:7: traffic[0].rat: unknown key, did you mean \"rate\"?; expected one of region, rate, from, until, cost",
        ),
        (
            "cost = 51",
            "s.toml:7: traffic[0].cost: 51 is too large; expected a whole number from 1 to 50",
        ),
        (
            "from = \"1m\"",
            "s.toml:7: traffic[0].from: \"1m\" is too long; expected a duration from 0ms to 59999ms, such as \"0ms\"",
        ),
        (
            "from = 5",
            "s.toml:7: traffic[0].from: 5 has no unit; expected a duration with its unit, in quotes, from 0ms to 59999ms: for 5 seconds, \"5s\"",
        ),
        (
            "from = \"9s\"\nuntil = \"9s\"",
            "s.toml:8: traffic[0].until: traffic until 9s that begins at 9s; expected a beginning before the end",
        ),
        (
            "[[traffic]]\nregion = \"d\"\nrate = 1",
            "s.toml:8: traffic[1].region: \"d\" is no region of the policies file; expected one of a, b, c",
        ),
        (
            "[[traffic]]\nregion = \"b\"\nrate = \"5/d\"",
            "s.toml:9: traffic[1].rate: \"5/d\" is no such rate; expected requests a second, such as 150, or \"150/s\", \"90/m\" or \"20/h\"",
        ),
        (
            "[[traffic]]\nregion = \"b\"\nrate = \"0/s\"",
            "s.toml:9: traffic[1].rate: \"0/s\" is no such rate; expected requests a second, such as 150, or \"150/s\", \"90/m\" or \"20/h\"",
        ),
        (
            "[[traffic]]\nregion = \"b\"\nrate = 99_999",
            "s.toml:4: traffic: some 6000540 requests; expected at most 2000000 requests in one run",
        ),
        (
            "[[fault]]\nat = \"1s\"\nkind = \"cuts\"",
            "s.toml:9: fault[0].kind: \"cuts\" is unknown, did you mean \"cut\"?; expected \"cut\", \"loss\", \"lose-store\", \"roll-back\", \"clock-step\", \"crash\" or \"pause\"",
        ),
        (
            "[[fault]]\nat = \"1s\"\nkind = \"crash\"\nregion = \"a\"",
            "s.toml:7: fault[0].for: missing; expected how long it lasts, such as \"20s\"",
        ),
        (
            "[[fault]]\nat = \"1s\"\nkind = \"lose-store\"\nregion = \"a\"\nfor = \"1s\"",
            "s.toml:11: fault[0].for: unknown key; expected one of at, kind, region",
        ),
        (
            "[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"cut\"",
            "s.toml:7: fault[0]: a cut of nothing; expected either regions, such as [\"eu-west\"], or from and to",
        ),
        (
            "[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"cut\"\nregions = [\"a\", \"b\", \"c\"]",
            "s.toml:11: fault[0].regions: no region on one side of the cut; expected some of the regions, but not all",
        ),
        (
            "[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"cut\"\nfrom = \"a\"\nto = \"a\"",
            "s.toml:12: fault[0].to: the same region as from; expected another region",
        ),
        (
            "[[fault]]\nat = \"1s\"\nfor = \"1s\"\nkind = \"loss\"\npercent = 0",
            "s.toml:11: fault[0].percent: 0 is too small; expected a whole number from 1 to 100",
        ),
        (
            "[[fault]]\nat = \"1s\"\nkind = \"roll-back\"\nregion = \"a\"\nby = \"2s\"",
            "s.toml:11: fault[0].by: \"2s\" is too long; expected a duration from 1ms to 1s, such as \"1s\"",
        ),
        (
            "[[fault]]\nat = \"1s\"\nkind = \"clock-step\"\nregion = \"a\"\nby = \"-2h\"",
            "s.toml:11: fault[0].by: \"-2h\" is no such step; expected how far the clock steps, up to 1h either way, such as \"3s\" or \"-3s\"",
        ),
        (
            "[[fault]]\nat = \"1s\"\nfor = \"9s\"\nkind = \"crash\"\nregion = \"a\"\n[[fault]]\nat = \"5s\"\nfor = \"9s\"\nkind = \"crash\"\nregion = \"a\"",
            "s.toml:12: fault[1]: the fault on line 7 does the same to the same at that time; expected one after the other",
        ),
    ] {
        assert_eq!(
            complaints(&format!("{GOOD}{added}\n")),
            [expected],
            "{added}"
        );
    }
    for (from, to, expected) in [
        (
            "policy = \"api\"",
            "policy = \"apo\"",
            "s.toml:2: policy: no policy is called \"apo\", did you mean \"api\"?; expected the name of one of the policies",
        ),
        (
            "policy = \"api\"",
            "policy = \"slots\"",
            "s.toml:2: policy: \"slots\" is a concurrency policy; expected one whose budget the regions share",
        ),
        (
            "duration = \"1m\"",
            "",
            "s.toml:1: duration: missing; expected how long to simulate, such as \"2m\"",
        ),
        (
            "duration = \"1m\"",
            "duration = \"1m\"\ninterval = \"6s\"",
            "s.toml:4: interval: a loan_term of 10s (left out) is less than two intervals; expected a loan_term of at least 12s",
        ),
        (
            "duration = \"1m\"",
            "duration = \"1m\"\nnodes = 17",
            "s.toml:4: nodes: 17 is too large; expected a whole number from 1 to 16",
        ),
    ] {
        assert_eq!(complaints(&GOOD.replace(from, to)), [expected], "{to}");
    }
}

#[test]
fn what_is_wrong_with_the_policies_file_is_told_with_its_own_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("policies.toml");
    std::fs::write(&file, POLICIES.replace("burst = 50", "brust = 50")).expect("it is written");
    let problems = Scenario::parse(GOOD, "s.toml", directory.path()).expect_err("a slip");
    let text = problems.to_string();
    assert!(
        text.contains(&format!("{}:12: policy \"api\": brust", file.display())),
        "{text}"
    );
}

#[test]
fn regions_that_are_cut_off_together_still_hear_each_other() {
    let cut = "[[fault]]\nat = \"1s\"\nfor = \"9s\"\nkind = \"cut\"\nregions = [\"a\", \"b\"]\n";
    let scenario = parse(&format!("{GOOD}{cut}")).expect("it is good");
    let trouble = &scenario.troubles[0];
    assert_eq!(trouble.begins, "a, b are cut off");
    for (from, to, is_cut) in [(0, 2, true), (2, 0, true), (1, 2, true), (0, 1, false)] {
        assert_eq!(trouble.cuts(from, to, 1_000), is_cut, "{from} to {to}");
        assert!(!trouble.cuts(from, to, 999) && !trouble.cuts(from, to, 10_000));
    }
    assert!(!trouble.faults.contains(&Fault::CutLink(0, 1)));
}
