//! The binary, as a script uses it: what it prints where, and what it exits with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const ALLOWED: &str = r#"{"allowed":true,"region":"us-east","decided_at_ms":1764444444444,"limits":[{"policy":"api","outcome":"allowed","limit":1000,"remaining":412,"reset_ms":1200,"retry_after_ms":0,"decided_by":"store"}]}"#;
const REFUSED: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"code":"RATE_LIMITED","violated-policies":["api"],"retry_after_ms":61000,"region":"us-east","decided_at_ms":1764444444444,"limits":[{"policy":"api","outcome":"refused","limit":1000,"remaining":0,"reset_ms":61000,"retry_after_ms":61000,"decided_by":"store"}]}"#;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn apportion(args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_apportion"))
        .args(args)
        .env_remove("APPORTION_ADDRESS")
        .env_remove("APPORTION_LOG")
        .env_remove("http_proxy")
        .env_remove("HTTP_PROXY")
        .env_remove("ALL_PROXY")
        .env_remove("all_proxy")
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    Ran {
        code: output.status.code().expect("it exits by itself"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Gives these answers, one a connection, and tells what it was asked: the first line, then the body.
fn server(answers: Vec<(u16, &'static str)>) -> (String, Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (tell, told) = channel();
    thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                if line.trim().is_empty() {
                    break;
                }
                head.push(line.trim().to_ascii_lowercase());
            }
            let length = head
                .iter()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().expect("a number"));
            let mut asked = vec![0; length];
            reader.read_exact(&mut asked).expect("the body");
            let asked = String::from_utf8(asked).expect("text");
            tell.send((head[0].clone(), asked)).ok();
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .expect("the client reads");
        }
    });
    (address, told)
}

#[test]
fn an_allowed_check_exits_with_0_and_shows_the_limits() {
    let (address, told) = server(vec![(200, ALLOWED)]);
    let ran = apportion(&[
        "check",
        "tenant=acme",
        "route=/a=b",
        "--cost",
        "3",
        "-a",
        &address,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(
        ran.stdout,
        "allowed by us-east\n\
         POLICY  OUTCOME  LIMIT  REMAINING  RESET    RETRY AFTER  DECIDED BY\n\
         api     allowed  1000   412        1s200ms  0s           store\n"
    );
    assert_eq!(ran.stderr, "");
    let (line, body) = told.recv().expect("it was asked");
    assert_eq!(line, "post /v1/check http/1.1");
    assert_eq!(
        body,
        r#"{"attributes":{"route":"/a=b","tenant":"acme"},"cost":3,"peek":false}"#
    );
}

#[test]
fn a_refused_check_exits_with_1() {
    let (address, _) = server(vec![(429, REFUSED), (429, REFUSED)]);
    let ran = apportion(&["check", "tenant=acme", "-a", &address]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stdout
            .starts_with("refused by us-east; retry after 1m1s\n"),
        "{}",
        ran.stdout
    );
    let ran = apportion(&[
        "check",
        "tenant=acme",
        "--peek",
        "-o",
        "json",
        "-a",
        &address,
    ]);
    assert_eq!((ran.code, ran.stdout), (1, format!("{REFUSED}\n")));
}

#[test]
fn a_400_exits_with_2_a_503_and_an_unknown_answer_with_3() {
    for (status, body, code, message) in [
        (
            400,
            r#"{"detail":"cost: expected more"}"#,
            2,
            "apportion: cost: expected more\n",
        ),
        (
            503,
            r#"{"detail":"the store is away"}"#,
            3,
            "apportion: the store is away\n",
        ),
        (413, "", 2, "apportion: the server answered 413\n"),
        (200, "<html>", 3, "but not as Apportion does\n"),
        (500, "{}", 3, "but not as Apportion does\n"),
    ] {
        let (address, _) = server(vec![(status, body)]);
        let ran = apportion(&["check", "tenant=acme", "-a", &address]);
        assert_eq!(ran.code, code, "{status}: {}", ran.stderr);
        assert!(ran.stderr.ends_with(message), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_server_that_is_not_there_exits_with_3() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let ran = apportion(&["status", "-a", &address]);
    assert_eq!(ran.code, 3);
    assert!(
        ran.stderr.contains("could not reach http://127.0.0.1:"),
        "{}",
        ran.stderr
    );
}

#[test]
fn bad_usage_exits_with_2() {
    for args in [
        &["check"][..],
        &["check", "tenant"],
        &["check", "=acme"],
        &["check", "a=1", "a=2"],
        &["check", "a=1", "--cost", "-1"],
        &["check", "a=1", "--cost", "1.5"],
        &["check", "a=1", "-o", "xml"],
        &["check", "a=1", "-a", "https://example.com"],
        &["check", "a=1", "-a", "http://not an address"],
        &["shares"],
        &["shares", "tenant=acme"],
        &["usage", "list", "tenant=acme"],
        &["dev", "--regions", "9"],
        &["dev", "--regions", "a,a"],
        &["dev", "--wan-latency", "80"],
        &["dev", "--redis", "redis://a,redis://b"],
        &["serve"],
        &["explode"],
        &["simulate"],
        &["simulate", "/nothing/here.toml"],
        &["policy", "check", "/nothing/here.toml"],
    ] {
        let ran = apportion(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn status_shows_the_region_that_was_asked_and_its_peers() {
    let status = r#"{"region":"us-east","ready":true,"life":"AAAAAAAB","epoch":0,"standing":"first","store":{"ok":true,"breaker":null},"peers":{"ap-south":{"reachable":false,"lag_ms":null},"eu-west":{"reachable":true,"lag_ms":1250}},"policies":[{"name":"api","version":1,"digest":"0123456789abcdef"}]}"#;
    let (address, _) = server(vec![(200, status)]);
    let ran = apportion(&["status", "-a", &address]);
    assert_eq!(ran.code, 0);
    assert_eq!(
        ran.stdout,
        "REGION    REACHABLE  READY  STORE  SYNC LAG\n\
         us-east   yes        yes    ok     -\n\
         ap-south  no         -      -      never heard\n\
         eu-west   yes        -      -      1s250ms\n\
         \n\
         POLICY  VERSION  DIGEST\n\
         api     1        0123456789abcdef\n"
    );
}

#[test]
fn status_tells_what_a_roll_out_waits_for() {
    let status = r#"{"region":"us-east","ready":true,"store":{"ok":true},"peers":{"ap-south":{"reachable":false,"lag_ms":null,"revision":1,"revision_conflicts":false},"eu-west":{"reachable":true,"lag_ms":1250,"revision":2,"revision_conflicts":true}},"policies":[],"rollout":{"revision":2,"oldest":1,"waits_for":["ap-south","eu-west"],"retired":["mars"]}}"#;
    let (address, _) = server(vec![(200, status)]);
    let ran = apportion(&["status", "-a", &address]);
    assert_eq!(
        ran.stdout,
        "REGION    REACHABLE  READY  STORE  SYNC LAG\n\
         us-east   yes        yes    ok     -\n\
         ap-south  no         -      -      never heard\n\
         eu-west   yes        -      -      1s250ms\n\
         \n\
         ap-south goes by revision 1\n\
         eu-west has other policies under revision 2; nothing is traded with it\n\
         revision 2 waits for ap-south, eu-west\n\
         retired: mars\n\
         \n\
         POLICY  VERSION  DIGEST\n"
    );
}

#[test]
fn a_region_is_retired_by_name_and_not_within_reach_but_by_force() {
    let done = r#"{"region":"mars","retired":true}"#;
    let (address, told) = server(vec![(200, done)]);
    let ran = apportion(&["region", "retire", "mars", "--force", "-a", &address]);
    assert_eq!((ran.code, &*ran.stdout), (0, "mars: retired\n"));
    let (line, body) = told.recv().expect("it was asked");
    assert_eq!(line, "post /v1/regions/retire http/1.1");
    assert_eq!(body, r#"{"force":true,"region":"mars"}"#);
    let reached =
        r#"{"status":409,"code":"REGION_REACHABLE","detail":"region mars is within reach"}"#;
    let (address, _) = server(vec![(409, reached)]);
    let ran = apportion(&["region", "retire", "mars", "-a", &address]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("within reach"), "{}", ran.stderr);
}

#[test]
fn shares_are_shown_by_region_and_the_query_is_escaped() {
    let shares = r#"{"policy":"api","key":{"tenant":"a&b +c"},"limit":1000,"regions":{"eu-west":{"base":500,"lent":null,"borrowed":null,"given":null,"received":null,"in_force":null,"used":null,"as_of_ms":null},"us-east":{"base":500,"lent":0,"borrowed":33.25,"given":0,"received":7,"in_force":533.25,"used":412,"as_of_ms":1764444444444}}}"#;
    let (address, told) = server(vec![(200, shares)]);
    let ran = apportion(&["shares", "api", "tenant=a&b +c", "-a", &address]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(
        ran.stdout,
        "api tenant=a&b +c  limit 1000\n\
         REGION   BASE  LENT  BORROWED  GIVEN  RECEIVED  IN FORCE  USED\n\
         eu-west  500   -     -         -      -         -         -\n\
         us-east  500   0     33.25     0      7         533.25    412\n"
    );
    let (line, _) = told.recv().expect("it was asked");
    assert_eq!(
        line,
        "get /v1/shares?policy=api&key.tenant=a%26b%20%2bc http/1.1"
    );
}

#[test]
fn a_region_is_closed_and_opened_and_told_why_not() {
    let closed = r#"{"region":"us-east","closed":true}"#;
    let open = r#"{"region":"us-east","closed":false,"life":"OZJgomiB","lost":false}"#;
    let lost = r#"{"region":"us-east","closed":false,"life":"AAAAAAAB","lost":true}"#;
    let not_closed = r#"{"type":"about:blank","title":"The region is not closed","status":409,"code":"NOT_CLOSED","detail":"region us-east isn't closed: not confirmed by ap-south","region":"us-east"}"#;
    let (address, told) = server(vec![
        (200, closed),
        (200, open),
        (200, lost),
        (200, closed),
        (409, not_closed),
    ]);
    let say = |args: &[&str]| {
        let ran = apportion(&[&["region"], args, &["-a", &address]].concat());
        (ran.code, ran.stdout, ran.stderr)
    };
    let ok = |text: &str| (0, format!("{text}\n"), String::new());
    assert_eq!(
        say(&["close"]),
        ok("us-east is closed: its store can be restarted now")
    );
    assert_eq!(say(&["open"]), ok("us-east is open, in life OZJgomiB"));
    assert_eq!(
        say(&["open", "--as-lost"]),
        ok("us-east is open, in a new life AAAAAAAB: the one that was closed is over")
    );
    assert_eq!(say(&["close", "-o", "json"]), ok(closed));
    let (code, stdout, stderr) = say(&["close"]);
    assert_eq!((code, stdout.as_str()), (3, ""));
    assert_eq!(
        stderr,
        "apportion: region us-east isn't closed: not confirmed by ap-south\n"
    );
    let asked: Vec<(String, String)> = told.iter().take(3).collect();
    let expected = [
        ("post /v1/region/close http/1.1", "{}"),
        ("post /v1/region/open http/1.1", r#"{"as_lost":false}"#),
        ("post /v1/region/open http/1.1", r#"{"as_lost":true}"#),
    ];
    assert_eq!(asked, expected.map(|(l, b)| (l.to_owned(), b.to_owned())));
}

#[test]
fn usage_list_asks_every_policy_that_counts_unless_told_which() {
    let policies =
        r#"{"policies":[{"name":"api","usage_ms":3600000},{"name":"search","usage_ms":null}]}"#;
    let all = r#"{"policy":"api","keys":[{"key":{"tenant":"acme"},"periods":[{"start":"2026-01-01T00:00:00Z","end":"2026-01-01T01:00:00Z","admitted":100,"refunded":0,"refused":800,"by_region":{"eu-west":{"admitted":66},"us-east":{"admitted":34}},"complete":false,"low":100,"high":100}]}],"truncated":false}"#;
    let (address, told) = server(vec![
        (200, policies),
        (200, all),
        (200, policies),
        (200, all),
    ]);
    let ran = apportion(&[
        "usage",
        "list",
        "--from",
        "2026-01-01T00:00:00+02:00",
        "-a",
        &address,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(
        ran.stdout,
        "POLICY  KEY          START                 END                   ADMITTED  REFUNDED  REFUSED  COMPLETE  ADMITTED BY REGION\n\
         api     tenant=acme  2026-01-01T00:00:00Z  2026-01-01T01:00:00Z  100       0         800      no        eu-west=66 us-east=34\n"
    );
    let asked: Vec<String> = told.iter().take(2).map(|(line, _)| line).collect();
    assert_eq!(
        asked,
        [
            "get /v1/policies http/1.1",
            "get /v1/usage?policy=api&from=2026-01-01t00%3a00%3a00%2b02%3a00 http/1.1",
        ]
    );
    let ran = apportion(&["usage", "list", "-o", "json", "-a", &address]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{all}\n")));
}

#[test]
fn policy_check_says_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |text: &[u8]| {
        let file = folder.path().join("policies.toml");
        std::fs::write(&file, text).expect("written");
        let ran = apportion(&["policy", "check", &path(&file)]);
        (ran.code, ran.stdout, ran.stderr, path(&file))
    };
    let good = "regions = [\"us-east\"]\n[[policy]]\nname = \"api\"\nkey = [\"tenant\"]\n\
                algorithm = \"fixed-window\"\nlimit = 1000\nper = \"1m\"\n";
    let (code, stdout, stderr, file) = check(good.as_bytes());
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(
        stdout,
        format!("{file}: ok, 1 policy for 1 region, revision 1\n")
    );

    let bad = good.replace("1000", "-5").replace("per =", "par =");
    let (code, stdout, stderr, file) = check(bad.as_bytes());
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains(&format!("{file}:6: ")), "{stderr}");
    assert!(stderr.contains(&format!("{file}:7: ")), "{stderr}");

    let (code, _, stderr, file) = check(b"regions = [\"\xff\"]");
    assert_eq!(code, 2);
    assert_eq!(
        stderr,
        format!("{file}:1: not UTF-8; expected text in UTF-8\n")
    );
}

#[test]
fn simulate_prints_figures_draws_a_picture_and_tells_mistakes_by_their_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).expect("it is written");
        path(&file)
    };
    write(
        "policies.toml",
        "regions = [\"a\", \"b\"]\n[[policy]]\nname = \"day\"\nkey = []\nalgorithm = \"fixed-window\"\nlimit = 100\nper = \"day\"\n",
    );
    let good = "policies = \"policies.toml\"\npolicy = \"day\"\nduration = \"20s\"\n[[traffic]]\nregion = \"b\"\nrate = 10\n";
    let file = write("good.toml", good);
    let plot = path(&directory.path().join("out.svg"));

    let ran = apportion(&["simulate", &file, "--seeds", "2", "--plot", &plot]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.ends_with("2 of 2 runs\n"), "{}", ran.stderr);
    assert!(
        ran.stdout
            .starts_with("day  fixed-window, limit 100 per 1day  20s, sums of 2 runs\n"),
        "{}",
        ran.stdout
    );
    for line in [
        "a perfect limiter  200       100.0%",
        "static shares      100       50.0%",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
    let svg = std::fs::read_to_string(&plot).expect("it is drawn");
    assert!(svg.starts_with("<svg") && svg.contains("used of the window"));

    let json = |seed: &str| apportion(&["simulate", &file, "-o", "json", "--seed", seed]);
    let (ran, again) = (json("7"), json("7"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, again.stdout);
    assert_ne!(ran.stdout, json("8").stdout);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["perfect"]["admitted"], 100);
    assert_eq!(report["apportion"]["beyond_limit"], 0);
    assert_eq!(report["regions"][0]["asked"], 0);

    let bad = write(
        "bad.toml",
        &good.replace("region = \"b\"", "region = \"c\""),
    );
    let ran = apportion(&["simulate", &bad]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert_eq!(
        ran.stderr,
        format!(
            "{bad}:5: traffic[0].region: \"c\" is no region of the policies file; expected one of a, b\n"
        )
    );
}

#[test]
fn help_goes_to_stdout_and_names_every_command_that_works() {
    let ran = apportion(&["--help"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let commands: Vec<&str> = ran
        .stdout
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        commands,
        [
            "dev", "serve", "check", "status", "shares", "usage", "region", "policy", "simulate",
            "help"
        ]
    );
}

fn path(path: &Path) -> String {
    path.to_str().expect("the path is text").to_owned()
}
