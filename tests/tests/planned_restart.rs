//! A region that was closed for a restart of its store loses nothing, and nothing but its last copy goes on.

use apportion_tests::{
    DAILY, DAILY_LIMIT, GENEROUS, daily, daily_traffic, start_met, use_up_as_counted,
};
use chaos::api::{Outcome, Status};
use chaos::cli::run;
use chaos::time::keep_clear_of_window_end;
use chaos::{Cluster, ClusterSpec, History, StoreKind, drive, wait_until};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
const ROOM: Duration = Duration::from_secs(240);
const REGION: &str = "us-east";

/// What is left of a day's budget once `tenant` has used more than us-east has by itself.
fn spent_a_part(nodes: usize, redis_args: &[&str], tenant: &str) -> (Cluster, History) {
    keep_clear_of_window_end(DAY, ROOM);
    let spec = ClusterSpec::new(StoreKind::Redis, DAILY)
        .probe(&daily("probe"))
        .nodes_per_region(nodes)
        .redis_args(redis_args);
    let cluster = start_met(&spec);
    let history = History::new();
    let traffic = daily_traffic(tenant, &[(REGION, 45), ("eu-west", 5)], SHORT);
    drive(cluster.api(), &history, &traffic);
    assert!(history.admitted() > 20, "{}", history.tally());
    (cluster, history)
}

const SHORT: Duration = Duration::from_secs(3);

fn region(cluster: &Cluster, command: &[&str]) -> chaos::cli::Run {
    let address = cluster.api().base(REGION).expect("there is a node");
    let args = [&["region"], command, &["-a", address]].concat();
    run(&args, GENEROUS).expect("the command ends")
}

/// A command that succeeds, and what it says. On a machine that is busy with other tests a store or a peer may not answer
/// in time, and each command can be given again.
fn done(cluster: &Cluster, command: &[&str], says: &str) {
    let mut last = None;
    let succeeded = wait_until(GENEROUS, "the command to succeed", || {
        let ran = region(cluster, command);
        let is_done = ran.code == Some(0) && ran.stdout.contains(says);
        last = Some(ran);
        is_done
    });
    succeeded.unwrap_or_else(|error| panic!("{command:?}: {error}: {last:#?}"));
}

fn close(cluster: &Cluster) {
    done(cluster, &["close"], "us-east is closed");
}

fn status(cluster: &Cluster) -> Status {
    cluster.status(REGION).expect("the node answers")
}

/// Once the store was started again: until the region decides.
fn wait_open(cluster: &Cluster) -> Status {
    wait_until(GENEROUS, "the region to open", || {
        let status = cluster.status(REGION);
        let asked = cluster.api().peek(REGION, &daily("peek"));
        status.is_ok_and(|s| s.store.ok && !s.closed)
            && asked.is_ok_and(|a| matches!(a.outcome, Outcome::Allowed | Outcome::Refused))
    })
    .expect("it opens by itself");
    status(cluster)
}

fn a_planned_restart_loses_nothing(redis_args: &[&str]) {
    let (mut cluster, history) = spent_a_part(2, redis_args, "kept");
    let before = status(&cluster);
    close(&cluster);
    // Whichever node is asked.
    for _ in 0..4 {
        let answer = cluster
            .check(REGION, &daily("kept"), 1)
            .expect("it answers");
        assert_eq!(answer.outcome, Outcome::Unavailable, "{}", answer.body);
    }
    wait_until(GENEROUS, "both nodes to say why", || {
        (0..2).all(|_| {
            let answer = cluster.check(REGION, &daily("kept"), 1);
            let ready = cluster.api().get_status(REGION, "/readyz");
            answer.is_ok_and(|a| a.body.contains("closed for a restart of its store"))
                && ready.is_ok_and(|status| status == Some(503))
        })
    })
    .expect("they say it");
    done(&cluster, &["close"], "us-east is closed");
    // The others go on meanwhile.
    let traffic = daily_traffic("kept", &[("eu-west", 3)], Duration::from_secs(1));
    drive(cluster.api(), &history, &traffic);

    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.shut_down().expect("Redis ends");
    redis.restart().expect("Redis starts again");
    done(&cluster, &["open"], "us-east is open");
    let after = wait_open(&cluster);
    assert_eq!(after.life, before.life);
    assert_eq!(after.standing, before.standing);
    assert!(after.epoch > before.epoch, "nobody saw the clock meanwhile");
    use_up_as_counted(&cluster, &history, "kept");
    cluster.check_healthy().expect("all nodes are well");
}

#[test]
fn a_planned_restart_from_a_snapshot_loses_nothing() {
    a_planned_restart_loses_nothing(&[]);
}

#[test]
fn a_planned_restart_from_a_log_loses_nothing() {
    a_planned_restart_loses_nothing(&["--appendonly", "yes"]);
}

#[test]
fn a_copy_goes_on_once_and_an_older_one_never() {
    let (mut cluster, history) = spent_a_part(1, &[], "twice");
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.command(&["SAVE"]).expect("it saves");
    let older = redis.copy_data().expect("it is copied");
    let life = status(&cluster).life;
    close(&cluster);
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.shut_down().expect("Redis ends");
    let last = redis.copy_data().expect("it is copied");
    redis.restart_with(&last).expect("Redis starts again");
    assert_eq!(wait_open(&cluster).life, life);
    let traffic = daily_traffic("twice", &[(REGION, 10)], SHORT);
    drive(cluster.api(), &history, &traffic);

    let mut lives = vec![life];
    for (copy, what) in [(&last, "once more"), (&older, "an older one")] {
        let redis = cluster.redis(REGION).expect("there is a Redis");
        redis.restart_with(copy).expect("Redis starts again");
        let told = wait_until(GENEROUS, "a new life", || {
            let status = cluster.status(REGION);
            status.is_ok_and(|s| s.store.ok && !s.closed && !lives.contains(&s.life))
        });
        told.unwrap_or_else(|error| panic!("{what}: {error}"));
        lives.push(status(&cluster).life);
        assert_eq!(status(&cluster).standing, "later", "{what}");
        let to = [(REGION, 50), ("eu-west", 50), ("ap-south", 50)];
        let traffic = daily_traffic("twice", &to, SHORT);
        drive(cluster.api(), &history, &traffic);
        history.check_limit(DAILY_LIMIT).expect("the sum holds");
    }
    cluster.check_healthy().expect("all nodes are well");
}

#[test]
fn a_region_is_not_closed_while_a_peer_can_not_be_told() {
    let (cluster, history) = spent_a_part(1, &[], "told");
    let life = status(&cluster).life;
    cluster.cut(REGION, "ap-south");
    let refused = region(&cluster, &["close"]);
    refused.expect(3, &["us-east isn't closed", "ap-south"]);
    assert!(!refused.stderr.contains("eu-west"), "{}", refused.stderr);
    wait_until(GENEROUS, "the region to decide", || {
        let answer = cluster.check(REGION, &daily("other"), 1);
        answer.is_ok_and(|answer| answer.allowed())
    })
    .expect("nothing was closed");

    cluster.heal_all();
    wait_until(GENEROUS, "the peer to be told", || {
        region(&cluster, &["close"]).code == Some(0)
    })
    .expect("it is closed");
    // One at a time: each needs the other.
    let address = cluster.api().base("eu-west").expect("there is a node");
    run(&["region", "close", "-a", address], GENEROUS)
        .expect("the command ends")
        .expect(3, &["eu-west isn't closed", "us-east"]);
    done(&cluster, &["open"], "us-east is open");
    assert_eq!(wait_open(&cluster).life, life, "it was never stopped");
    use_up_as_counted(&cluster, &history, "told");
}

#[test]
fn a_closed_region_waits_for_a_peer_that_is_away_or_is_given_up() {
    let (mut cluster, history) = spent_a_part(1, &[], "away");
    let life = status(&cluster).life;
    close(&cluster);
    cluster.cut(REGION, "ap-south");
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.shut_down().expect("Redis ends");
    redis.restart().expect("Redis starts again");
    region(&cluster, &["open"]).expect(3, &["still closed", "ap-south"]);
    let answer = cluster
        .check(REGION, &daily("away"), 1)
        .expect("it answers");
    assert!(
        answer.body.contains("waits for ap-south"),
        "{}",
        answer.body
    );
    done(&cluster, &["open", "--as-lost"], "in a new life");
    let after = wait_open(&cluster);
    assert_ne!(after.life, life);
    cluster.heal_all();
    let to = [(REGION, 50), ("eu-west", 50), ("ap-south", 50)];
    let traffic = daily_traffic("away", &to, SHORT);
    drive(cluster.api(), &history, &traffic);
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
}

#[test]
fn a_store_that_forgot_its_last_word_is_lost() {
    let (mut cluster, history) = spent_a_part(1, &[], "flushed");
    let life = status(&cluster).life;
    close(&cluster);
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.command(&["FLUSHALL"]).expect("it forgets");
    wait_until(GENEROUS, "a new life", || {
        let status = cluster.status(REGION);
        status.is_ok_and(|s| s.store.ok && !s.closed && s.life != life && s.standing == "later")
    })
    .expect("it is noticed");
    // Scripts that are gone don't end a life.
    let life = status(&cluster).life;
    let redis = cluster.redis(REGION).expect("there is a Redis");
    redis.command(&["SCRIPT", "FLUSH"]).expect("it forgets");
    assert_eq!(wait_open(&cluster).life, life);
    let to = [(REGION, 50), ("eu-west", 50), ("ap-south", 50)];
    let traffic = daily_traffic("flushed", &to, SHORT);
    drive(cluster.api(), &history, &traffic);
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
}
