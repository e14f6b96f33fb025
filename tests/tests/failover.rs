//! A store with replicas: whoever takes over, and whatever it has missed, the sum holds.

use apportion_tests::{DAILY, DAILY_LIMIT, GENEROUS, daily, daily_traffic};
use chaos::api::{Outcome, Status};
use chaos::node::NodeSpec;
use chaos::switch::Switch;
use chaos::time::keep_clear_of_window_end;
use chaos::{
    Cluster, ClusterSpec, Direction, History, Proxy, RedisServer, StoreKind, drive, wait_until,
};
use std::thread;
use std::time::{Duration, Instant};

const DAY: Duration = Duration::from_secs(86_400);
const ROOM: Duration = Duration::from_secs(600);
const REGION: &str = "us-east";
const SHORT: Duration = Duration::from_secs(3);
/// In the region's file, and as Redis has it: a machine that is busy with other tests may be late by a second or two.
const REPLICATED: &str = "replicas = 1\nreplica_max_lag = \"4s\"\n";
const OPTIONS: [&str; 8] = [
    "--min-replicas-to-write",
    "1",
    "--min-replicas-max-lag",
    "4",
    "--repl-backlog-ttl",
    "0",
    "--repl-diskless-sync-delay",
    "0",
];
/// The lag, and three spans: before that a new master decides nothing.
const OVERLAP: Duration = Duration::from_secs(19);

fn words(options: &[&str]) -> Vec<String> {
    options.iter().map(ToString::to_string).collect()
}

fn replica_of(port: u16) -> RedisServer {
    let port = port.to_string();
    let options = [&OPTIONS[..], &["--replicaof", "127.0.0.1", &port]].concat();
    RedisServer::start_with(&options).expect("redis-server starts")
}

fn wait_synced(replica: &RedisServer) {
    wait_until(GENEROUS, "the replica to have all", || {
        let info = replica.command(&["INFO", "replication"]);
        info.is_ok_and(|info| info.contains("master_link_status:up"))
    })
    .expect("it copies");
}

fn status(cluster: &Cluster) -> Status {
    cluster.status(REGION).expect("the node answers")
}

/// Until us-east decides in another life than these.
fn wait_new_life(cluster: &Cluster, before: &[Option<serde_json::Value>]) -> Status {
    wait_until(GENEROUS, "a new life that decides", || {
        let status = cluster.status(REGION);
        let asked = cluster.api().peek(REGION, &daily("peek"));
        status.is_ok_and(|s| s.store.ok && !before.contains(&s.life))
            && asked.is_ok_and(|a| matches!(a.outcome, Outcome::Allowed | Outcome::Refused))
    })
    .expect("it begins");
    status(cluster)
}

#[test]
fn whoever_takes_over_the_sum_holds() {
    keep_clear_of_window_end(DAY, ROOM);
    let spec = ClusterSpec::new(StoreKind::Redis, DAILY).probe(&daily("probe"));
    let mut cluster = Cluster::prepare(&spec).expect("all is in place");
    let first = cluster.redis(REGION).expect("there is a Redis");
    first.set_args(&words(&OPTIONS));
    first.restart().expect("redis-server starts");
    let first_addr = first.addr();
    let link = Proxy::start(first_addr).expect("a link");
    let second = replica_of(link.addr().port());
    let switch = Switch::start(first_addr).expect("a switch");
    cluster
        .node(REGION, 0)
        .and_then(|node| {
            node.reconfigure(|spec| {
                spec.store_url = switch.url();
                spec.store_more = REPLICATED.to_owned();
            })
        })
        .expect("the file is written");
    wait_synced(&second);
    cluster.launch().expect("the cluster starts");
    cluster.wait_met().expect("the regions meet");
    let history = History::new();
    let api = cluster.api().clone();
    drive(
        &api,
        &history,
        &daily_traffic("over", &[(REGION, 10)], SHORT),
    );
    assert_eq!(history.admitted(), 10, "{}", history.tally());
    let life = status(&cluster).life;

    // Cut off from its replica, the master still decides for a moment, and then stops.
    link.cut(Direction::Both);
    drive(
        &api,
        &history,
        &daily_traffic("over", &[(REGION, 10)], SHORT),
    );
    wait_until(GENEROUS, "the master to stop", || {
        let at = Instant::now();
        let answer = cluster.check(REGION, &daily("over"), 1).expect("asked");
        history.note(REGION, 1, at, &answer);
        answer.outcome == Outcome::Unavailable
    })
    .expect("it stops");
    thread::sleep(Duration::from_secs(1));
    let traffic = daily_traffic("over", &[(REGION, 10)], SHORT);
    let admitted = history.admitted();
    drive(&api, &history, &traffic);
    assert_eq!(history.admitted(), admitted, "it goes on without a replica");

    // The replica takes over, without what it has missed; the node's connection stays.
    second
        .command(&["REPLICAOF", "NO", "ONE"])
        .expect("it is promoted");
    let third = replica_of(second.addr().port());
    wait_synced(&third);
    let promoted = Instant::now();
    switch.switch_to(second.addr());
    let after = wait_new_life(&cluster, std::slice::from_ref(&life));
    assert_eq!(after.standing, "later");
    assert!(
        promoted.elapsed() >= OVERLAP,
        "it decides while the old master may"
    );
    let to = [(REGION, 30), ("eu-west", 30), ("ap-south", 30)];
    drive(&api, &history, &daily_traffic("over", &to, SHORT));
    history.check_limit(DAILY_LIMIT).expect("the sum holds");

    // And back: the first one takes the second's data, and then its place.
    drop(third);
    let first = cluster.redis(REGION).expect("there is a Redis");
    let port = second.addr().port().to_string();
    first
        .command(&["REPLICAOF", "127.0.0.1", &port])
        .expect("it follows");
    wait_synced(first);
    first
        .command(&["REPLICAOF", "NO", "ONE"])
        .expect("it is promoted");
    let port = first_addr.port().to_string();
    second
        .command(&["REPLICAOF", "127.0.0.1", &port])
        .expect("it follows");
    wait_synced(&second);
    switch.switch_to(first_addr);
    let back = wait_new_life(&cluster, &[life, after.life]);
    assert_eq!(back.standing, "later");
    let to = [(REGION, 60), ("eu-west", 60), ("ap-south", 60)];
    drive(&api, &history, &daily_traffic("over", &to, SHORT));
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
    cluster.check_healthy().expect("all nodes are well");
}

#[test]
fn a_first_replica_does_not_end_a_life_and_one_that_is_not_expected_is_refused() {
    keep_clear_of_window_end(DAY, ROOM);
    let spec = ClusterSpec::new(StoreKind::Redis, DAILY)
        .regions(&[REGION])
        .redis_args(&["--repl-diskless-sync-delay", "0"]);
    let mut cluster = Cluster::start(&spec).expect("the region starts");
    let history = History::new();
    let api = cluster.api().clone();
    drive(
        &api,
        &history,
        &daily_traffic("kept", &[(REGION, 40)], SHORT),
    );
    assert_eq!(history.admitted(), 40, "{}", history.tally());
    let life = status(&cluster).life;

    let port = cluster
        .redis(REGION)
        .expect("there is a Redis")
        .addr()
        .port();
    let replica = replica_of(port);
    wait_synced(&replica);
    wait_until(GENEROUS, "the replica to be refused", || {
        cluster
            .node(REGION, 0)
            .is_ok_and(|node| node.log().contains("it has 1 replicas"))
    })
    .expect("it is refused");

    let redis = cluster.redis(REGION).expect("there is a Redis");
    for (name, value) in [
        ("min-replicas-to-write", "1"),
        ("min-replicas-max-lag", "4"),
    ] {
        redis
            .command(&["CONFIG", "SET", name, value])
            .expect("it is set");
    }
    let node = cluster.node(REGION, 0).expect("there is a node");
    let replicated = |spec: &mut NodeSpec| spec.store_more = REPLICATED.to_owned();
    node.reconfigure(replicated).expect("the file is written");
    node.start().expect("it starts");
    node.wait_ready().expect("it is ready");
    assert_eq!(status(&cluster).life, life);
    drive(
        &api,
        &history,
        &daily_traffic("kept", &[(REGION, 90)], SHORT),
    );
    assert_eq!(history.admitted(), DAILY_LIMIT, "{}", history.tally());

    // Not the number that it was told to write with.
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis
        .command(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .expect("it is set");
    wait_until(GENEROUS, "the option to be refused", || {
        cluster.node(REGION, 0).is_ok_and(|node| {
            node.log()
                .contains("its min-replicas-to-write is 0; expected 1")
        })
    })
    .expect("it is refused");
}
