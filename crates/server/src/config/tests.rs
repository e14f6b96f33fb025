use super::*;
use apportion_core::Algorithm;
use std::fs;
use tempfile::TempDir;

const POLICIES: &str = r#"
regions = ["us-east", "eu-west", "ap-south"]

[[policy]]
name = "api"
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "1m"
"#;

const REGION: &str = r#"region = "us-east"
policies = "policies.toml"

[listen]
grpc = "127.0.0.1:7101"
http = "127.0.0.1:7201"
sync = "127.0.0.1:7301"

[store]
url = "redis://127.0.0.1:6379"

[[peers]]
region = "eu-west"
sync = "http://127.0.0.1:7302"

[[peers]]
region = "ap-south"
sync = "http://127.0.0.1:7303"
"#;

/// Loads `region` from a directory that has `policies` beside it. Errors come without the directory's name.
fn load_both(
    region: impl AsRef<[u8]>,
    policies: impl AsRef<[u8]>,
) -> Result<(RegionConfig, PolicySet), String> {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("us-east.toml"), region).unwrap();
    fs::write(directory.path().join("policies.toml"), policies).unwrap();
    RegionConfig::load(&directory.path().join("us-east.toml")).map_err(|errors| {
        let directory = format!("{}/", directory.path().display());
        errors.to_string().replace(&directory, "")
    })
}

fn load(region: &str) -> Result<RegionConfig, String> {
    load_both(region, POLICIES).map(|(config, _)| config)
}

/// `REGION` with one piece of its text changed.
fn changed(from: &str, to: &str) -> String {
    assert!(REGION.contains(from), "{from}");
    REGION.replace(from, to)
}

#[track_caller]
fn assert_refused(region: &str, expected: &[&str]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|e| format!("us-east.toml:{e}"))
        .collect();
    assert_eq!(
        load(region).expect_err(region),
        expected.join("\n"),
        "{region}"
    );
}

// === what is read ===

#[test]
fn sensitive_attributes_need_a_secret_which_no_message_shows() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("us-east.toml");
    let sensitive = POLICIES.replace(
        "key = [\"tenant\"]",
        "key = [\"tenant\"]\nsensitive = [\"tenant\"]",
    );
    fs::write(directory.path().join("policies.toml"), &sensitive).unwrap();
    fs::write(&path, REGION).unwrap();
    let error = RegionConfig::load(&path).unwrap_err().to_string();
    assert!(
        error.contains("sensitive attributes, and there is no secret"),
        "{error}"
    );

    let with_keys = format!("{REGION}\n[keys]\nsecret_file = \"secret\"\n");
    fs::write(&path, with_keys).unwrap();
    let secret = directory.path().join("secret");
    for (content, wrong) in [(None, "can't be read"), (Some("too short"), "has 9 bytes")] {
        if let Some(content) = content {
            fs::write(&secret, content).unwrap();
        }
        let error = RegionConfig::load(&path).unwrap_err().to_string();
        assert!(
            error.contains("keys.secret_file") && error.contains(wrong),
            "{error}"
        );
        assert!(!error.contains("too short"));
    }
    fs::write(&secret, "sixteen bytes and more\n").unwrap();
    let (config, set) = RegionConfig::load(&path).unwrap();
    assert_eq!(
        set.subject_hash,
        SubjectHash::new(b"sixteen bytes and more")
    );
    assert!(!format!("{config:?}").contains("sixteen"));
}

#[test]
fn a_regions_file_is_read_with_the_policies_beside_it() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("us-east.toml");
    fs::write(&path, REGION).unwrap();
    fs::write(directory.path().join("policies.toml"), POLICIES).unwrap();
    let (config, set) = RegionConfig::load(&path).unwrap();
    let peer = |region, sync: &str| Peer {
        region: Region::new(region),
        sync: sync.into(),
    };
    let address = |text: &str| text.parse().unwrap();
    assert_eq!(
        config,
        RegionConfig {
            region: Region::new("us-east"),
            policies: directory.path().join("policies.toml"),
            listen: Listen {
                grpc: address("127.0.0.1:7101"),
                http: address("127.0.0.1:7201"),
                sync: address("127.0.0.1:7301"),
            },
            store: StoreConfig {
                url: StoreUrl::Redis("redis://127.0.0.1:6379".into()),
                timeout: Duration::from_millis(5),
                on_empty: OnEmpty::Ask,
                replicas: Replicas {
                    max_lag: Duration::from_secs(10),
                    ..Replicas::default()
                },
            },
            sync: SyncConfig {
                interval: Duration::from_secs(2),
                loan_term: Duration::from_secs(10),
            },
            secret: None,
            peers: vec![
                peer("eu-west", "http://127.0.0.1:7302"),
                peer("ap-south", "http://127.0.0.1:7303"),
            ],
            warnings: vec![],
        }
    );
    assert_eq!(set.policies[0].name, "api");
    assert_eq!(
        load_policies(&config.policies).unwrap().digest(),
        set.digest()
    );
}

#[test]
fn every_field_can_be_said() {
    let text = changed(
        "url = \"redis://127.0.0.1:6379\"",
        "url = \"redis://kim:secret@redis.internal:6380/2\"\ntimeout = \"1ms\"\non_empty = \"lost\"\n\
         [sync]\ninterval = \"100ms\"\nloan_term = \"200ms\"",
    );
    let config = load(&text).unwrap();
    assert_eq!(config.store.timeout, Duration::from_millis(1));
    assert_eq!(config.store.on_empty, OnEmpty::Lost);
    assert_eq!(config.sync.interval, Duration::from_millis(100));
    assert_eq!(config.sync.loan_term, Duration::from_millis(200));
}

#[test]
fn replicas_are_counted_and_what_a_redis_does_not_say_is_stated() {
    let said = |more: &str| {
        let url = "url = \"redis://127.0.0.1:6379\"";
        load(&changed(url, &format!("{url}\n{more}")))
    };
    let config = said(
        "replicas = 2\nreplica_max_lag = \"4s\"\nstated = { maxmemory_policy = \"noeviction\", \
         min_replicas_to_write = 2, min_replicas_max_lag = \"3s\" }",
    );
    assert_eq!(
        config.unwrap().store.replicas,
        Replicas {
            count: 2,
            max_lag: Duration::from_secs(4),
            stated: Stated {
                maxmemory_policy: Some("noeviction".into()),
                min_replicas_to_write: Some(2),
                min_replicas_max_lag: Some(Duration::from_secs(3)),
            },
        }
    );
    for (more, expected) in [
        ("replicas = 9", "store.replicas: 9 is too large"),
        ("replica_max_lag = \"1500ms\"", "whole seconds"),
        ("replica_max_lag = \"2m\"", "store.replica_max_lag"),
        (
            "stated = { maxmemory_policy = \"allkeys-lru\" }",
            "expected \"noeviction\"",
        ),
        ("stated = { min_replicas = 1 }", "unknown key"),
    ] {
        let errors = said(more).unwrap_err();
        assert!(errors.contains(expected), "{more}: {errors}");
    }
    let memory = changed("redis://127.0.0.1:6379\"", "memory:\"\nreplicas = 1");
    assert!(load(&memory).unwrap_err().contains("no Redis"));
}

#[test]
fn a_password_is_neither_shown_nor_logged() {
    for url in ["redis://kim:secret@h:6380/2", "redis://:secret@h:6380/2"] {
        let config = load(&changed("redis://127.0.0.1:6379", url)).unwrap();
        assert_eq!(config.store.url, StoreUrl::Redis(url.into()));
        assert_eq!(config.store.url.to_string(), "redis://***@h:6380/2");
        assert!(!format!("{:?}", config.store).contains("secret"));
    }
    for url in [
        "rediss://:secret@h",
        "redis://:secret@h:x",
        "reddis://:secret@h",
        "redis://:secret@h\\",
        "redis://:secret@h\" x \"",
        "secret",
    ] {
        let errors = load(&changed("redis://127.0.0.1:6379", url)).unwrap_err();
        assert!(!errors.contains("secret"), "{errors}");
    }
}

#[test]
fn an_empty_store_is_new_where_nobody_can_say_otherwise_and_that_is_warned_of() {
    let memory = load(&changed("redis://127.0.0.1:6379", "memory:")).unwrap();
    assert_eq!(memory.store.url, StoreUrl::Memory);
    assert_eq!(memory.store.on_empty, OnEmpty::New);
    assert_eq!(memory.warnings.len(), 1);

    let alone = REGION.split("[[peers]]").next().unwrap();
    let policies = POLICIES.replace(", \"eu-west\", \"ap-south\"", "");
    let (alone, _) = load_both(alone, policies).unwrap();
    assert_eq!(alone.store.on_empty, OnEmpty::New);
    assert_eq!(alone.warnings.len(), 1);

    let said = changed("redis://127.0.0.1:6379\"", "memory:\"\non_empty = \"ask\"");
    let said = load(&said).unwrap();
    assert_eq!(said.store.on_empty, OnEmpty::Ask);
    assert_eq!(said.warnings, [""; 0]);
}

#[test]
fn a_store_can_be_new_until_a_time() {
    let on_empty = |value: &str| {
        let url = "redis://127.0.0.1:6379\"";
        load(&changed(url, &format!("{url}\non_empty = {value}"))).map(|c| c.store.on_empty)
    };
    let until = Ok(OnEmpty::NewUntil(StoreMs(1_798_675_200_000)));
    assert_eq!(on_empty("{ new_until = \"2026-12-31T00:00:00Z\" }"), until);
    assert_eq!(on_empty("{ new_until = 2026-12-31T01:00:00+01:00 }"), until);
    const TIME: &str = "expected a time with its offset, such as \"2026-12-31T00:00:00Z\"";
    for value in [
        "2026-12-31",
        "\"tomorrow\"",
        "\"2026-12-31T00:00:00\"",
        "1969-12-31T00:00:00Z",
    ] {
        let shown = format!("\"{}\"", value.trim_matches('"'));
        assert_eq!(
            on_empty(&format!("{{ new_until = {value} }}")).unwrap_err(),
            format!("us-east.toml:11: store.on_empty.new_until: {shown} is no such time; {TIME}")
        );
    }
    assert_eq!(
        on_empty("\"new\"").unwrap_err(),
        "us-east.toml:11: store.on_empty: \"new\" is unknown; expected \"ask\", \"lost\" or \
         { new_until = \"2026-12-31T00:00:00Z\" }"
    );
}

// === what is refused ===

#[test]
fn an_unknown_key_is_an_error_that_names_its_line() {
    let text = changed("[store]", "[store]\ntimeuot = \"5ms\"")
        .replace("[listen]", "[sink]\n[listen]\nhttps = \"\"")
        .replace(
            "sync = \"http://127.0.0.1:7303\"",
            "sync = \"http://127.0.0.1:7303\"\nweight = 1",
        );
    assert_refused(
        &text,
        &[
            "4: sink: unknown key, did you mean \"sync\"?; expected one of region, policies, listen, store, sync, keys, peers",
            "6: listen.https: unknown key, did you mean \"http\"?; expected one of grpc, http, sync",
            "12: store.timeuot: unknown key, did you mean \"timeout\"?; expected one of url, timeout, on_empty, replicas, replica_max_lag, stated",
            "22: peers[1].weight: unknown key; expected one of region, sync",
        ],
    );
}

#[test]
fn what_must_be_there_is_an_error_when_it_is_missing() {
    assert_refused(
        "",
        &[
            "1: region: missing; expected the name of this region",
            "1: policies: missing; expected the path of the policies file, relative to this file",
            "1: listen: missing; expected a [listen] table with grpc, http and sync",
            "1: store: missing; expected a [store] table with url",
        ],
    );
    assert_refused(
        "region = \"us-east\"\npolicies = \"policies.toml\"\n[listen]\n[store]\n[[peers]]\n",
        &[
            "3: listen.grpc: missing; expected an IP address and a port, such as \"127.0.0.1:7101\"",
            "3: listen.http: missing; expected an IP address and a port, such as \"127.0.0.1:7101\"",
            "3: listen.sync: missing; expected an IP address and a port, such as \"127.0.0.1:7101\"",
            "4: store.url: missing; expected \"memory:\" or \"redis://host:port\"",
            "5: peers[0].sync: missing; expected the peer's sync address, such as \"http://127.0.0.1:7302\"",
            "5: peers[0].region: missing; expected the name of the peer's region",
        ],
    );
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("us-east.toml");
    let errors = || {
        let errors = RegionConfig::load(&path).unwrap_err().to_string();
        errors.replace(&format!("{}/", directory.path().display()), "")
    };
    const GONE: &str = "No such file or directory (os error 2)";
    assert_eq!(
        errors(),
        format!("us-east.toml: can't be read: {GONE}; expected a region's file")
    );
    fs::write(&path, REGION).unwrap();
    assert_eq!(
        errors(),
        format!(
            "us-east.toml:2: policies: policies.toml can't be read: {GONE}; expected the path of the policies file, \
             relative to this file"
        )
    );
    fs::create_dir(directory.path().join("policies.toml")).unwrap();
    assert!(errors().starts_with("us-east.toml:2: policies: policies.toml can't be read: "));
    let errors = load_policies(&directory.path().join("none.toml"))
        .unwrap_err()
        .to_string();
    assert!(errors.ends_with(&format!(
        "none.toml: can't be read: {GONE}; expected a policies file"
    )));
}

#[test]
fn a_file_without_end_is_not_read_to_its_end() {
    let errors = load_policies(Path::new("/dev/zero"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        errors,
        "/dev/zero: can't be read: it has more than 4194304 bytes; expected a policies file"
    );
}

#[test]
fn invalid_utf8_in_either_file_is_an_error() {
    let bad = b"# \n# \xff\n".as_slice();
    let region = load_both(bad, POLICIES).unwrap_err();
    assert_eq!(region, "us-east.toml:2: not UTF-8; expected text in UTF-8");
    let policies = load_both(REGION, bad).unwrap_err();
    assert_eq!(
        policies,
        "policies.toml:2: not UTF-8; expected text in UTF-8"
    );
}

#[test]
fn the_mistakes_of_both_files_are_told_at_once() {
    let region = changed("[store]", "[store]\ntimeout = 5");
    let policies = POLICIES.replace("limit = 100", "limit = -100");
    assert_eq!(
        load_both(region, policies).unwrap_err(),
        "us-east.toml:10: store.timeout: 5 has no unit; expected a duration with its unit, in quotes, from 1ms to 10s: for 5 seconds, \"5s\"\n\
         policies.toml:8: policy \"api\": limit: -100 is negative; expected a whole number from 1 to 9007199254"
    );
    let policies = POLICIES.replace("limit = 100", "limit = -100");
    assert_eq!(
        load_both(REGION, policies).unwrap_err(),
        "policies.toml:8: policy \"api\": limit: -100 is negative; expected a whole number from 1 to 9007199254"
    );
}

#[test]
fn a_listen_address_is_an_ip_address_and_a_port() {
    const EXPECTED: &str = "expected an IP address and a port, such as \"127.0.0.1:7101\"";
    for (value, shown) in [
        (
            "\"localhost:7101\"",
            "\"localhost:7101\" is no such address",
        ),
        ("\"127.0.0.1\"", "\"127.0.0.1\" is no such address"),
        (
            "\"127.0.0.1:99999\"",
            "\"127.0.0.1:99999\" is no such address",
        ),
        ("7101", "7101 is a number"),
    ] {
        assert_refused(
            &changed("\"127.0.0.1:7101\"", value),
            &[&format!("5: listen.grpc: {shown}; {EXPECTED}")],
        );
    }
}

#[test]
fn listen_addresses_that_collide_are_an_error() {
    assert_refused(
        &changed("127.0.0.1:7201", "127.0.0.1:7101"),
        &[
            "6: listen.http: 127.0.0.1:7101 collides with grpc, 127.0.0.1:7101; expected a port of its own",
        ],
    );
    assert_refused(
        &changed("127.0.0.1:7301", "0.0.0.0:7101").replace("127.0.0.1:7201", "[::]:7101"),
        &[
            "6: listen.http: [::]:7101 collides with grpc, 127.0.0.1:7101; expected a port of its own",
            "7: listen.sync: 0.0.0.0:7101 collides with grpc, 127.0.0.1:7101; expected a port of its own",
            "7: listen.sync: 0.0.0.0:7101 collides with http, [::]:7101; expected a port of its own",
        ],
    );
    let any_port =
        changed("127.0.0.1:7101", "127.0.0.1:0").replace("127.0.0.1:7201", "127.0.0.1:0");
    load(&any_port).unwrap();
    load(&changed("127.0.0.1:7201", "127.0.0.2:7101")).unwrap();
}

#[test]
fn a_store_of_another_kind_is_refused() {
    const EXPECTED: &str = "expected \"memory:\" or \"redis://host:port\"";
    const FORM: &str = "expected redis://[user:password@]host[:port][/database]";
    for (url, message) in [
        (
            "rediss://h:1",
            format!("rediss:// is not supported yet; {EXPECTED}"),
        ),
        (
            "redis+cluster://a,b,c",
            format!("redis+cluster:// is not supported yet; {EXPECTED}"),
        ),
        (
            "redis+sentinel://a,b,c/name",
            format!("redis+sentinel:// is not supported yet; {EXPECTED}"),
        ),
        (
            "reddis://h",
            format!("\"reddis\" is no kind of store, did you mean \"redis\"?; {EXPECTED}"),
        ),
        (
            "postgres://h",
            format!("\"postgres\" is no kind of store; {EXPECTED}"),
        ),
        ("memory", format!("no such kind of store; {EXPECTED}")),
        ("", format!("no such kind of store; {EXPECTED}")),
        (
            "redis://",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://:6379",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://h:",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://h:99999",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://h/x",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://a,b",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
        (
            "redis://h h",
            format!("not a URL of the form that is understood; {FORM}"),
        ),
    ] {
        assert_refused(
            &changed("redis://127.0.0.1:6379", url),
            &[&format!("10: store.url: {message}")],
        );
    }
    for url in [
        "redis://h",
        "redis://[::1]:6379/0",
        "redis://h:6379/",
        "redis://a:b%40c@h:1/15",
    ] {
        load(&changed("redis://127.0.0.1:6379", url)).unwrap();
    }
}

#[test]
fn durations_have_ranges() {
    let with = |table: &str| changed("[store]", &format!("[sync]\n{table}\n[store]"));
    assert_refused(
        &with("interval = \"50ms\"\nloan_term = \"2d\""),
        &[
            "10: sync.interval: \"50ms\" is too short; expected a duration from 100ms to 1h, such as \"2s\"",
            "11: sync.loan_term: \"2d\" is too long; expected a duration from 200ms to 1d, such as \"10s\"",
        ],
    );
    assert_refused(
        &with("interval = \"2s\"\nloan_term = \"3s\""),
        &[
            "11: sync.loan_term: a loan_term of 3s is less than two intervals; expected a loan_term of at least 4s",
        ],
    );
    assert_refused(
        &with("interval = \"6s\""),
        &[
            "10: sync.interval: a loan_term of 10s (left out) is less than two intervals; expected a loan_term of at least 12s",
        ],
    );
    assert_refused(
        &changed("[store]", "[store]\ntimeout = \"11s\""),
        &[
            "10: store.timeout: \"11s\" is too long; expected a duration from 1ms to 10s, such as \"5ms\"",
        ],
    );
}

#[test]
fn a_peer_listed_twice_is_an_error_that_names_both_lines() {
    assert_refused(
        &changed("\"ap-south\"", "\"eu-west\""),
        &[
            "12: peers: no peer for ap-south; expected a [[peers]] table for every other one of the policies' regions",
            "17: peers[1].region: \"eu-west\" is listed on line 13 as well; expected each peer once",
        ],
    );
    assert_refused(
        &changed("http://127.0.0.1:7303", "http://127.0.0.1:7302/"),
        &[
            "18: peers[1].sync: http://127.0.0.1:7302 is listed on line 14 as well; expected each peer's own address",
        ],
    );
}

#[test]
fn a_peer_equal_to_the_region_itself_is_an_error() {
    assert_refused(
        &changed("\"ap-south\"", "\"us-east\""),
        &[
            "12: peers: no peer for ap-south; expected a [[peers]] table for every other one of the policies' regions",
            "17: peers[1].region: \"us-east\" is this region itself; expected a peer in another region",
        ],
    );
    assert_refused(
        &changed("http://127.0.0.1:7303", "http://127.0.0.1:7301"),
        &[
            "18: peers[1].sync: \"http://127.0.0.1:7301\" is where this region itself listens; expected the peer's sync address, such as \"http://127.0.0.1:7302\"",
        ],
    );
}

#[test]
fn peers_that_dont_fit_the_policies_regions_are_an_error() {
    const LISTED: &str = "expected \"ap-south\", \"eu-west\" or \"us-east\"";
    assert_refused(
        &changed("\"ap-south\"", "\"ap-suoth\""),
        &[
            "12: peers: no peer for ap-south; expected a [[peers]] table for every other one of the policies' regions",
            &format!(
                "17: peers[1].region: \"ap-suoth\" is not one of the policies' regions, did you mean \"ap-south\"?; {LISTED}"
            ),
        ],
    );
    assert_refused(
        &changed("region = \"us-east\"", "region = \"mars\""),
        &[
            &format!("1: region: \"mars\" is not one of the policies' regions; {LISTED}"),
            "12: peers: no peer for us-east; expected a [[peers]] table for every other one of the policies' regions",
        ],
    );
    assert_refused(
        REGION.split("[[peers]]").next().unwrap(),
        &[
            "1: peers: no peer for ap-south, eu-west; expected a [[peers]] table for every other one of the policies' regions",
        ],
    );
    let fewer = load_both(REGION, POLICIES.replace(", \"ap-south\"", "")).unwrap_err();
    assert_eq!(
        fewer,
        "us-east.toml:17: peers[1].region: \"ap-south\" is not one of the policies' regions; expected \"eu-west\" or \"us-east\""
    );
}

#[test]
fn more_peers_than_regions_can_be_are_an_error() {
    let many = "[[peers]]\n".repeat(64);
    assert_refused(
        &format!("{}{many}", REGION.split("[[peers]]").next().unwrap()),
        &["12: peers: 64 peers; expected at most 63"],
    );
}

#[test]
fn a_peers_address_is_http_a_host_and_a_port() {
    const EXPECTED: &str = "expected the peer's sync address, such as \"http://127.0.0.1:7302\"";
    for url in [
        "127.0.0.1:7303",
        "http://127.0.0.1",
        "http://127.0.0.1:7303/sync",
        "http://127.0.0.1:7303?x",
        "http://h:",
        "http://h:0",
        "http://h:70000",
        "http://u@h:1",
        "redis://h:1",
        "",
    ] {
        assert_refused(
            &changed("http://127.0.0.1:7303", url),
            &[&format!(
                "18: peers[1].sync: {url:?} is not of the form http://host:port; {EXPECTED}"
            )],
        );
    }
    assert_refused(
        &changed("http://127.0.0.1:7303", "https://h:7303"),
        &[&format!(
            "18: peers[1].sync: https:// is not supported yet; {EXPECTED}"
        )],
    );
    for url in ["http://ap-south.internal:7303", "http://[::1]:7303"] {
        load(&changed("http://127.0.0.1:7303", url)).unwrap();
    }
}

// === the files that come with the project ===

#[test]
fn the_files_of_the_example_regions_load_as_they_stand() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../regions");
    let mut ports = std::collections::BTreeSet::new();
    for (i, name) in ["us-east", "eu-west", "ap-south"].into_iter().enumerate() {
        let (config, set) = RegionConfig::load(&directory.join(format!("{name}.toml")))
            .unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(config.region.as_str(), name);
        assert_eq!(config.warnings, [""; 0]);
        assert_eq!(set.warnings, [""; 0]);
        let i = u16::try_from(i).unwrap();
        assert_eq!(config.listen.grpc.port(), 7101 + i);
        assert_eq!(config.listen.http.port(), 7201 + i);
        assert_eq!(config.listen.sync.port(), 7301 + i);
        assert_eq!(
            config.store.url,
            StoreUrl::Redis(format!("redis://127.0.0.1:{}", 6379 + i))
        );
        for peer in &config.peers {
            let (other, _) =
                RegionConfig::load(&directory.join(format!("{}.toml", peer.region))).unwrap();
            assert_eq!(peer.sync, format!("http://{}", other.listen.sync));
        }
        ports.insert(set.digest());
    }
    assert_eq!(ports.len(), 1, "one policies file for all");
}

#[test]
fn the_example_policies_show_every_supported_mode() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../regions");
    let set = load_policies(&directory.join("policies.toml")).unwrap_or_else(|e| panic!("{e}"));
    let any = |test: fn(&apportion_core::Policy) -> bool| set.policies.iter().any(|p| test(p));
    assert!(any(|p| matches!(
        p.algorithm,
        Algorithm::TokenBucket { .. }
    )));
    assert!(any(|p| matches!(
        p.algorithm,
        Algorithm::FixedWindow { .. }
    )));
    assert!(any(|p| p.usage_ms.is_some()));
    assert!(any(|p| p.shadow));
    assert!(any(|p| p.weights.values().max() > p.weights.values().min()));
    assert!(any(|p| !p.attributes.is_empty()));
}
