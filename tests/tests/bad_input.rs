//! Whatever is wrong with what it is given, the product says so in words, with a number, and lives on.

use apportion_tests::{GENEROUS, daily};
use chaos::api::{Outcome, Reply};
use chaos::cli::{self, Run};
use chaos::cluster::policies_file;
use chaos::node::{Node, NodeSpec};
use chaos::{RedisServer, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const POLICIES: &str = r#"
[[policy]]
name = "daily"
match = { route = "/daily" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
usage = "1h"
"#;

/// How long a bad configuration may take to be refused.
const LIMIT: Duration = Duration::from_secs(30);

/// A region's file and its policies, right as they stand, for a test to spoil.
struct Files {
    dir: TempDir,
    spec: NodeSpec,
    region: String,
    policies: Vec<u8>,
}

// === impl Files ===

impl Files {
    /// us-east with two peers that nobody runs.
    fn three_regions() -> Self {
        let mut spec = NodeSpec::new("us-east", "memory:").expect("free ports");
        for region in ["eu-west", "ap-south"] {
            let url = cli::dead_url().expect("a free port");
            spec.peers.insert(region.into(), url);
        }
        Self::of(spec, &["us-east", "eu-west", "ap-south"])
    }

    fn lone(store_url: &str) -> Self {
        let spec = NodeSpec::new("us-east", store_url).expect("free ports");
        Self::of(spec, &["us-east"])
    }

    fn of(spec: NodeSpec, regions: &[&str]) -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            region: spec.to_toml(),
            policies: policies_file(regions, POLICIES).into_bytes(),
            spec,
        }
    }

    /// In the region's file.
    #[must_use]
    fn region(mut self, from: &str, to: &str) -> Self {
        self.region = replaced(&self.region, from, to);
        self
    }

    /// In the policies file.
    #[must_use]
    fn policies(mut self, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.policies).expect("spoil the bytes last");
        self.policies = replaced(&text, from, to).into_bytes();
        self
    }

    fn policies_path(&self) -> std::path::PathBuf {
        self.dir.path().join("policies.toml")
    }

    fn write(&self) -> std::path::PathBuf {
        fs::write(self.policies_path(), &self.policies).expect("the policies are written");
        let path = self.dir.path().join("us-east.toml");
        fs::write(&path, &self.region).expect("the region's file is written");
        path
    }

    fn serve(&self) -> Run {
        serve(&self.write())
    }

    fn policy_check(&self) -> Run {
        self.write();
        let path = self.policies_path();
        run(&["policy".as_ref(), "check".as_ref(), path.as_os_str()])
    }

    /// The line in the policies file that begins with `text`, as an error names it.
    fn policies_line(&self, text: &str) -> usize {
        let all = String::from_utf8_lossy(&self.policies).into_owned();
        let line = all.lines().position(|line| line.starts_with(text));
        line.expect("the line is there") + 1
    }
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from:?} is not in {text}");
    text.replacen(from, to, 1)
}

fn serve(config: &Path) -> Run {
    run(&["serve".as_ref(), "--config".as_ref(), config.as_os_str()])
}

fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Run {
    let run = cli::run(args, LIMIT).expect("it ends");
    assert!(!run.stderr.contains("panicked at"), "{run:#?}");
    run
}

/// Whether an error points at a line, in whatever form.
fn names_line(text: &str, line: usize) -> bool {
    let line = line.to_string();
    [":", "line "].iter().any(|before| {
        text.match_indices(before).any(|(at, _)| {
            let rest = &text[at + before.len()..];
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits == line
        })
    })
}

// --- the files

#[test]
fn files_that_are_right_are_accepted() {
    Files::three_regions().policy_check().expect(0, &[]);
}

#[test]
fn a_region_file_that_is_wrong_is_refused_by_name() {
    let peer = "[[peers]]\nregion = \"eu-west\"";
    let cases: [(&str, &str, &str, &[&str]); 9] = [
        (
            "an unknown key",
            "[listen]",
            "colour = 1\n[listen]",
            &["colour"],
        ),
        (
            "an unknown key deeper down",
            "timeout =",
            "timeuot =",
            &["timeuot"],
        ),
        (
            "a wrong unit",
            "interval = \"2s\"",
            "interval = \"2 parsecs\"",
            &["interval"],
        ),
        (
            "a wrong type",
            "loan_term = \"10s\"",
            "loan_term = []",
            &["loan_term"],
        ),
        (
            "a number where a string is due",
            "url = \"memory:\"",
            "url = 7",
            &["url"],
        ),
        (
            "a store of an unknown kind",
            "memory:",
            "etcd://127.0.0.1:1",
            &["etcd"],
        ),
        ("broken TOML", "[store]", "[store", &["us-east.toml"]),
        (
            "an address that is none",
            "http = \"127.0.0.1",
            "http = \"nowhere",
            &["http"],
        ),
        (
            "a peer without an address",
            peer,
            "[[peers]]\nregion = \"x\"\n[[peers]]\nregion = \"eu-west\"",
            &["sync"],
        ),
    ];
    for (what, from, to, words) in cases {
        eprintln!("{what}");
        let run = Files::three_regions().region(from, to).serve();
        run.expect(2, words);
        run.expect(2, &["us-east.toml"]);
    }
}

#[test]
fn peers_that_do_not_fit_are_refused_by_name() {
    let regions = r#"["us-east", "eu-west", "ap-south"]"#;
    let twice = "region = \"eu-west\"";
    let cases: [(&str, Files, &str); 4] = [
        (
            "a peer listed twice",
            Files::three_regions().region("region = \"ap-south\"", twice),
            "eu-west",
        ),
        (
            "a peer that is the region itself",
            Files::three_regions().region(twice, "region = \"us-east\""),
            "us-east",
        ),
        (
            "a peer that is not among the regions",
            Files::three_regions().policies(regions, r#"["us-east", "eu-west"]"#),
            "ap-south",
        ),
        (
            "a region without a peer",
            Files::three_regions()
                .policies(regions, r#"["us-east", "eu-west", "ap-south", "sa-east"]"#),
            "sa-east",
        ),
    ];
    for (what, files, word) in cases {
        eprintln!("{what}");
        files.serve().expect(2, &[word]);
    }
    eprintln!("a region that is not among the regions");
    Files::lone("memory:")
        .region("region = \"us-east\"", "region = \"mars\"")
        .serve()
        .expect(2, &["mars"]);
}

#[test]
fn policies_that_are_wrong_are_refused_with_file_line_and_policy() {
    let algorithm = "algorithm = \"fixed-window\"";
    let cases: [(&str, &str, &str, &str); 12] = [
        ("an unknown key", "usage =", "usge =", "usge"),
        ("a negative limit", "limit = 100", "limit = -1", "limit"),
        ("a limit of zero", "limit = 100", "limit = 0", "limit"),
        (
            "a limit that is no whole number",
            "limit = 100",
            "limit = 1.5",
            "limit",
        ),
        (
            "a limit past what can be counted",
            "limit = 100",
            "limit = 9223372036854775807",
            "limit",
        ),
        (
            "a limit in words",
            "limit = 100",
            "limit = \"many\"",
            "limit",
        ),
        (
            "a wrong unit",
            "per = \"24h\"",
            "per = \"24 parsecs\"",
            "per",
        ),
        (
            "an unknown algorithm",
            algorithm,
            "algorithm = \"leaky-cauldron\"",
            "algorithm",
        ),
        (
            "a burst on a window",
            "limit = 100",
            "burst = 5\nlimit = 100",
            "burst",
        ),
        (
            "a weight for an unknown region",
            "limit = 100",
            "weights = { mars = 1 }\nlimit = 100",
            "mars",
        ),
        (
            "a wrong way to fail",
            "limit = 100",
            "on_store_failure = \"open\"\nlimit = 100",
            "on_store_failure",
        ),
        (
            "an unknown tolerance",
            "limit = 100",
            "tolerance = \"sometimes-over\"\nlimit = 100",
            "tolerance",
        ),
    ];
    for (what, from, to, word) in cases {
        eprintln!("{what}");
        let files = Files::three_regions().policies(from, to);
        let start = to.split(" =").next().expect("there is a key");
        let line = files.policies_line(start);
        for run in [files.serve(), files.policy_check()] {
            run.expect(2, &[word, "policies.toml", "daily"]);
            assert!(names_line(&run.stderr, line), "not line {line}: {run:#?}");
        }
    }
}

#[test]
fn a_policy_without_a_name_or_a_limit_is_refused() {
    for (line, word) in [
        ("name = \"daily\"\n", "name"),
        ("limit = 100\n", "limit"),
        ("per = \"24h\"\n", "per"),
        ("algorithm = \"fixed-window\"\n", "algorithm"),
    ] {
        eprintln!("without {word}");
        let files = Files::three_regions().policies(line, "");
        files.policy_check().expect(2, &[word, "policies.toml"]);
    }
}

#[test]
fn two_policies_of_one_name_are_refused() {
    let twice = format!("{POLICIES}{POLICIES}");
    let files = Files::three_regions().policies(POLICIES, &twice);
    files.policy_check().expect(2, &["daily", "policies.toml"]);
}

#[test]
fn what_is_not_supported_yet_is_refused_and_not_ignored() {
    let limit = "limit = 100";
    let home = "mode = \"home\"\nhome = \"us-east\"\nlimit = 100";
    let files = Files::three_regions().policies(limit, home);
    files
        .policy_check()
        .expect(2, &["not supported yet", "daily"]);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let files = Files::three_regions();
    let config = files.write();
    fs::remove_file(files.policies_path()).expect("the file is removed");
    serve(&config).expect(2, &["policies.toml"]);
    let nowhere = files.dir.path().join("nowhere.toml");
    serve(&nowhere).expect(2, &["nowhere.toml"]);
    run(&["policy".as_ref(), "check".as_ref(), nowhere.as_os_str()]).expect(2, &["nowhere.toml"]);
}

#[test]
fn a_file_that_is_not_utf8_is_named() {
    let mut files = Files::three_regions();
    files.policies.extend(b"# caf\xe9\n");
    files.serve().expect(2, &["policies.toml", "utf-8"]);
    files.policy_check().expect(2, &["policies.toml", "utf-8"]);

    let files = Files::three_regions();
    let config = files.write();
    let mut bytes = files.region.into_bytes();
    bytes.extend(b"# caf\xe9\n");
    fs::write(&config, bytes).expect("the file is written");
    serve(&config).expect(2, &["us-east.toml", "utf-8"]);
}

// --- the command line

#[test]
fn a_command_that_makes_no_sense_is_bad_usage() {
    let cases: [&[&str]; 7] = [
        &["conquer"],
        &["serve"],
        &["check"],
        &["check", "tenant"],
        &["check", "tenant=acme", "--cost", "0"],
        &["check", "tenant=acme", "--cost", "-1"],
        &["check", "tenant=acme", "--cost", "1.5"],
    ];
    for args in cases {
        eprintln!("{args:?}");
        let run = run(args);
        run.expect(2, &[]);
        assert!(!run.stderr.is_empty(), "{run:#?}");
        assert!(run.stdout.is_empty(), "{run:#?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_exit_3() {
    let url = cli::dead_url().expect("a free port");
    let cases: [&[&str]; 4] = [
        &["check", "tenant=acme"],
        &["status"],
        &["shares", "daily", "tenant=acme"],
        &["usage", "list"],
    ];
    for args in cases {
        let mut args = args.to_vec();
        args.extend(["--address", &url]);
        eprintln!("{args:?}");
        run(&args).expect(3, &[url.trim_start_matches("http://")]);
    }
}

// --- requests

#[test]
fn a_request_that_is_wrong_is_refused_by_field_and_consumes_nothing() {
    let files = Files::lone("memory:");
    files.write();
    let mut node = Node::new(files.spec.clone(), files.dir.path(), "us-east").expect("a node");
    node.start().expect("the node starts");
    node.wait_ready().expect("the node is ready");
    let api = node.api();
    let url = format!("{}/v1/check", node.spec().http_url());
    let ask = |body: &[u8]| -> Reply {
        api.post(&url, "application/json", body)
            .expect("there is an answer")
    };

    let attributes = r#""attributes":{"route":"/daily","tenant":"bad"}"#;
    let with = |field: &str| format!("{{{attributes},{field}}}").into_bytes();
    let of = |tenant: &str| {
        format!(r#"{{"attributes":{{"route":"/daily","tenant":{tenant}}}}}"#).into_bytes()
    };
    let long = "x".repeat(10 * 1024);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("cost 0", with(r#""cost":0"#), "cost"),
        ("a negative cost", with(r#""cost":-1"#), "cost"),
        ("half a unit", with(r#""cost":1.5"#), "cost"),
        ("2^63", with(r#""cost":9223372036854775808"#), "cost"),
        ("2^64", with(r#""cost":18446744073709551616"#), "cost"),
        ("a cost past a double", with(r#""cost":1e400"#), "body"),
        ("a cost in words", with(r#""cost":"1""#), "cost"),
        ("no cost", with(r#""cost":[]"#), "cost"),
        ("a cost above the capacity", with(r#""cost":101"#), "cost"),
        ("a peek in words", with(r#""peek":"yes""#), "peek"),
        ("no attributes", b"{}".to_vec(), "attributes"),
        (
            "attributes in a list",
            br#"{"attributes":["a"]}"#.to_vec(),
            "attributes",
        ),
        ("an attribute that is a number", of("7"), "attributes"),
        ("an attribute that is nothing", of("null"), "attributes"),
        ("a subject of 10 kB", of(&format!("{long:?}")), "tenant"),
        ("a list", b"[]".to_vec(), ""),
        ("half an object", b"{\"attributes\":{".to_vec(), ""),
        ("nothing", Vec::new(), ""),
        (
            "bytes that are not UTF-8",
            of("\"caf\u{1}\"")
                .iter()
                .map(|b| if *b == 1 { 0xe9 } else { *b })
                .collect(),
            "",
        ),
        ("depth", "[".repeat(20_000).into_bytes(), ""),
    ];
    for (what, body, field) in cases {
        let reply = ask(&body);
        assert_eq!(reply.status, 400, "{what}: {reply:#?}");
        let content_type = reply.headers.get("content-type").expect("a content type");
        assert!(
            content_type.starts_with("application/problem+json"),
            "{what}: {reply:#?}"
        );
        let problem: Value = serde_json::from_str(&reply.body).expect("a problem is JSON");
        assert_eq!(problem["status"], 400, "{what}: {reply:#?}");
        assert!(problem["title"].is_string(), "{what}: {reply:#?}");
        assert!(reply.body.contains(field), "{what}: {reply:#?}");
        node.check_alive().expect(what);
    }

    let huge = of(&format!("{:?}", "x".repeat(65 * 1024)));
    assert_eq!(ask(&huge).status, 413);

    let get = |path: &str| {
        let url = format!("{}{path}", node.spec().http_url());
        api.get(&url).expect("there is an answer")
    };
    for (path, status, word) in [
        ("/v1/usage?policy=nope&key.tenant=a", 404, "nope"),
        ("/v1/usage", 400, "policy"),
        (
            "/v1/usage?policy=daily&key.tenant=a&from=yesterday",
            400,
            "from",
        ),
        ("/v1/shares?policy=nope&key.tenant=a", 404, "nope"),
        ("/v1/nowhere", 404, ""),
    ] {
        let reply = get(path);
        assert_eq!(reply.status, status, "{path}: {reply:#?}");
        assert!(reply.body.contains(word), "{path}: {reply:#?}");
    }
    // A method that isn't served, and a body of another kind: refused in some way.
    assert!((400..500).contains(&get("/v1/check").status));

    let answer = api
        .peek("us-east", &daily("bad"))
        .expect("us-east is there");
    assert_eq!(
        answer.limits.first().map(|limit| limit.remaining),
        Some(100)
    );
    let answer = api
        .check("us-east", &daily("bad"), 100)
        .expect("us-east is there");
    assert_eq!(answer.outcome, Outcome::Allowed, "{}", answer.body);
    assert!(!node.log().contains("panicked at"), "{}", node.log());
}

// --- the surroundings

#[test]
fn a_port_in_use_is_named() {
    let files = Files::lone("memory:");
    for addr in [files.spec.http, files.spec.grpc, files.spec.sync] {
        let taken = TcpListener::bind(addr).expect("the port is free");
        let run = files.serve();
        assert!(!matches!(run.code, Some(0 | 101) | None), "{run:#?}");
        let port = addr.port().to_string();
        assert!(run.stderr.contains(&port), "{port} is not in {run:#?}");
        drop(taken);
    }
}

#[test]
fn a_redis_that_is_not_there_at_the_start_is_waited_for() {
    let mut redis = RedisServer::reserve().expect("a free port");
    let files = Files::lone(&redis.url());
    files.write();
    let mut node = Node::new(files.spec.clone(), files.dir.path(), "us-east").expect("a node");
    node.start().expect("the node starts");
    node.wait_status("/livez", 200).expect("it lives");
    node.wait_status("/readyz", 503).expect("it is not ready");
    let port = redis.addr().port().to_string();
    wait_until(GENEROUS, "the node to say what it misses", || {
        node.log().contains(&port)
    })
    .expect("the log names the store");

    let api = node.api();
    let answer = api
        .check("us-east", &daily("early"), 1)
        .expect("us-east is there");
    assert_eq!(answer.outcome, Outcome::Unavailable, "{}", answer.body);
    let problem: BTreeMap<String, Value> =
        serde_json::from_str(&answer.body).expect("a problem is JSON");
    assert_eq!(problem["code"], "STORE_UNAVAILABLE");
    run(&[
        "check",
        "route=/daily",
        "tenant=early",
        "--address",
        &node.spec().http_url(),
    ])
    .expect(3, &[]);

    redis.restart().expect("Redis comes");
    node.wait_ready().expect("it becomes ready by itself");
    wait_until(GENEROUS, "an admission", || {
        api.check("us-east", &daily("early"), 1)
            .is_ok_and(|answer| answer.allowed())
    })
    .expect("it decides");

    redis.kill();
    wait_until(GENEROUS, "a 503", || {
        let answer = api.check("us-east", &daily("early"), 1);
        answer.is_ok_and(|answer| answer.outcome == Outcome::Unavailable)
    })
    .expect("never-over fails closed");
    node.wait_status("/livez", 200).expect("it lives on");
}
