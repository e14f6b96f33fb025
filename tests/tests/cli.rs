//! The commands of a client, against three regions.

use apportion_tests::{GENEROUS, same_usage, start_met};
use chaos::cli::{self, Run};
use chaos::{Cluster, ClusterSpec, StoreKind, wait_until};
use serde_json::Value;
use std::time::Duration;

const POLICIES: &str = r#"
[[policy]]
name = "daily"
match = { route = "/daily" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
usage = "1h"

[[policy]]
name = "single"
match = { route = "/single" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 1
per = "24h"
"#;

const LIMIT: Duration = Duration::from_secs(30);
const REGIONS: [&str; 3] = ["us-east", "eu-west", "ap-south"];

/// Three regions, and the address of the one that has the single unit of `single`: ties go to the lower name.
fn start() -> (Cluster, String) {
    chaos::time::keep_clear_of_window_end(Duration::from_secs(86_400), Duration::from_secs(120));
    let probe = [("route", "/daily"), ("tenant", "probe")];
    let spec = ClusterSpec::new(StoreKind::Memory, POLICIES).probe(&probe);
    let mut cluster = start_met(&spec);
    let node = cluster.node("ap-south", 0).expect("there is a node");
    let address = node.spec().http_url();
    (cluster, address)
}

fn ask(address: &str, args: &[&str]) -> Run {
    let mut all = args.to_vec();
    all.extend(["-a", address]);
    let run = cli::run(&all, LIMIT).expect("it ends");
    assert!(!run.stderr.contains("panicked at"), "{run:#?}");
    run
}

/// With `-o json`: all of stdout is one JSON value.
fn ask_json(address: &str, args: &[&str], code: i32) -> Value {
    let mut all = args.to_vec();
    all.extend(["-o", "json"]);
    let run = ask(address, &all);
    run.expect(code, &[]);
    serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:#?}"))
}

#[test]
fn check_exits_0_where_allowed_and_1_where_refused() {
    let (_cluster, address) = start();
    let single = ["check", "route=/single", "tenant=a"];
    let peek = [&single[..], &["--peek"]].concat();
    for _ in 0..2 {
        ask(&address, &peek).expect(0, &[]);
    }
    let first = ask(&address, &single);
    first.expect(0, &[]);
    assert!(first.stdout.contains("allowed"), "{first:#?}");
    let second = ask(&address, &single);
    second.expect(1, &[]);
    assert!(second.stdout.contains("refused"), "{second:#?}");
    ask(&address, &peek).expect(1, &[]);
}

#[test]
fn check_in_json_is_the_answer_of_the_api() {
    let (_cluster, address) = start();
    let args = ["check", "route=/daily", "tenant=a", "--cost", "4"];
    let answer = ask_json(&address, &args, 0);
    assert_eq!(answer["allowed"], true, "{answer}");
    assert_eq!(answer["region"], "ap-south", "{answer}");
    assert_eq!(answer["limits"][0]["policy"], "daily", "{answer}");
    assert_eq!(answer["limits"][0]["limit"], 100, "{answer}");
    assert_eq!(answer["limits"][0]["remaining"], 30, "{answer}");

    ask_json(&address, &["check", "route=/single", "tenant=b"], 0);
    let answer = ask_json(&address, &["check", "route=/single", "tenant=b"], 1);
    assert_eq!(answer["limits"][0]["outcome"], "refused", "{answer}");
    assert_eq!(answer["limits"][0]["policy"], "single", "{answer}");

    let answer = ask_json(&address, &["check", "route=/elsewhere", "tenant=a"], 0);
    assert_eq!(answer["limits"], Value::Array(vec![]), "{answer}");
}

#[test]
fn a_cost_above_the_capacity_is_exit_2() {
    let (_cluster, address) = start();
    let args = ["check", "route=/daily", "tenant=a", "--cost", "101"];
    ask(&address, &args).expect(2, &["cost"]);
}

#[test]
fn the_address_may_come_from_the_environment() {
    let (_cluster, address) = start();
    let mut command = cli::command().expect("the binary is there");
    command
        .args(["check", "route=/daily", "tenant=env"])
        .env("APPORTION_ADDRESS", &address);
    let run = cli::run_command(&mut command, LIMIT).expect("it ends");
    run.expect(0, &[]);
}

#[test]
fn status_names_every_region() {
    let (_cluster, address) = start();
    let run = ask(&address, &["status"]);
    run.expect(0, &[]);
    for region in REGIONS {
        assert!(run.stdout.contains(region), "{run:#?}");
    }
    let status = ask_json(&address, &["status"], 0).to_string();
    for region in REGIONS {
        assert!(status.contains(region), "{status}");
    }
}

#[test]
fn shares_and_usage_tell_what_was_spent_where() {
    let (cluster, address) = start();
    let check = ["check", "route=/daily", "tenant=acme", "--cost", "7"];
    ask(&address, &check).expect(0, &[]);
    let key = [("tenant", "acme")];
    same_usage(cluster.api(), "daily", &key, 7);

    let run = ask(&address, &["shares", "daily", "tenant=acme"]);
    run.expect(0, &[]);
    for region in REGIONS {
        assert!(run.stdout.contains(region), "{run:#?}");
    }
    let shares = ask_json(&address, &["shares", "daily", "tenant=acme"], 0);
    let base = |region: &str| shares["regions"][region]["base"].as_f64();
    assert_eq!(
        REGIONS.map(base),
        [Some(33.0), Some(33.0), Some(34.0)],
        "{shares}"
    );
    let used = |region: &str| shares["regions"][region]["used"].as_f64();
    assert_eq!(used("ap-south"), Some(7.0), "{shares}");
    let in_force: f64 = REGIONS
        .iter()
        .filter_map(|region| shares["regions"][*region]["in_force"].as_f64())
        .sum();
    assert!(in_force <= 100.0, "{shares}");

    let run = ask(&address, &["usage", "list"]);
    run.expect(0, &[]);
    for word in ["daily", "acme", "7"] {
        assert!(run.stdout.contains(word), "{run:#?}");
    }
    let listed = ask_json(&address, &["usage", "list"], 0).to_string();
    for word in ["daily", "acme", "ap-south"] {
        assert!(listed.contains(word), "{listed}");
    }

    // Through another region, the same.
    wait_until(GENEROUS, "usage to be listed in us-east", || {
        let status = cluster.api().base("us-east").expect("us-east is there");
        ask(status, &["usage", "list"]).stdout.contains("acme")
    })
    .expect("usage is heard of");
}

#[test]
fn an_unknown_policy_is_said_to_be_unknown() {
    let (_cluster, address) = start();
    let run = ask(&address, &["shares", "nope", "tenant=acme"]);
    assert!(!matches!(run.code, Some(0) | None), "{run:#?}");
    assert!(run.stderr.contains("nope"), "{run:#?}");
}

#[test]
fn a_policy_file_is_checked_without_a_server() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("policies.toml");
    let text = chaos::cluster::policies_file(&REGIONS, POLICIES);
    std::fs::write(&path, &text).expect("the file is written");
    let args = ["policy".as_ref(), "check".as_ref(), path.as_os_str()];
    cli::run(&args, LIMIT).expect("it ends").expect(0, &[]);
    std::fs::write(&path, text.replace("limit = 1\n", "limit = -1\n")).expect("it is written");
    let run = cli::run(&args, LIMIT).expect("it ends");
    run.expect(2, &["single", "limit"]);
}

#[test]
fn help_and_version_are_data() {
    for args in [&["--help"][..], &["--version"], &["check", "--help"]] {
        let run = cli::run(args, LIMIT).expect("it ends");
        run.expect(0, &[]);
        assert!(!run.stdout.is_empty(), "{run:#?}");
        assert!(run.stderr.is_empty(), "{run:#?}");
    }
}
