//! Nodes that are killed lose nothing; a store that is lost is never spent twice.

use apportion_tests::{
    DAILY, DAILY_LIMIT, GENEROUS, PAUSE, daily, daily_cluster, daily_traffic, start_met,
    use_up_as_counted,
};
use chaos::time::keep_clear_of_window_end;
use chaos::traffic::ask_on;
use chaos::{ClusterSpec, History, StoreKind, drive, wait_until};
use std::thread;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
const ROOM: Duration = Duration::from_secs(240);

#[test]
fn a_node_killed_mid_run_and_started_again_loses_nothing() {
    keep_clear_of_window_end(DAY, ROOM);
    let mut cluster = daily_cluster(StoreKind::Redis);
    let (busy, slow) = (History::new(), History::new());
    let api = cluster.api().clone();
    let over = Duration::from_secs(20);
    let to = [("us-east", 300), ("eu-west", 300), ("ap-south", 300)];
    let busy_traffic = daily_traffic("busy", &to, over);
    // Still has something left when the node goes.
    let to = [("us-east", 90), ("eu-west", 20), ("ap-south", 20)];
    let slow_traffic = daily_traffic("slow", &to, over);
    thread::scope(|scope| {
        scope.spawn(|| drive(&api, &busy, &busy_traffic));
        scope.spawn(|| drive(&api, &slow, &slow_traffic));
        for _ in 0..2 {
            thread::sleep(Duration::from_secs(4));
            let node = cluster.node("us-east", 0).expect("there is a node");
            node.kill();
            thread::sleep(Duration::from_secs(1));
            node.start().expect("the node starts again");
        }
    });
    cluster
        .node("us-east", 0)
        .and_then(|node| node.wait_ready())
        .expect("the node is ready again");
    for (history, tenant) in [(&busy, "busy"), (&slow, "slow")] {
        history.check_limit(DAILY_LIMIT).expect("the sum holds");
        use_up_as_counted(&cluster, history, tenant);
        history.check_limit(DAILY_LIMIT).expect("the sum holds");
    }
    cluster.check_healthy().expect("all nodes are well");
}

#[test]
fn a_region_outlives_one_of_its_two_nodes() {
    keep_clear_of_window_end(DAY, ROOM);
    let spec = ClusterSpec::new(StoreKind::Redis, DAILY)
        .nodes_per_region(2)
        .probe(&daily("probe"));
    let mut cluster = start_met(&spec);
    let history = History::new();
    let api = cluster.api().clone();
    let to = [("us-east", 120), ("eu-west", 40)];
    let traffic = daily_traffic("two", &to, Duration::from_secs(15));
    thread::scope(|scope| {
        scope.spawn(|| drive(&api, &history, &traffic));
        thread::sleep(Duration::from_secs(4));
        cluster.node("us-east", 0).expect("there is a node").kill();
    });
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
    // Its peers reach the other node through the same address; usage is read from whichever node lives.
    let living = cluster.node("us-east", 1).expect("there is a node").api();
    let usage = || living.usage("us-east", "daily", &[("tenant", "two")]);
    // What the dead node was asked and didn't answer may have been charged or not: only the count tells.
    let counted = |_: &History| usage().is_ok_and(|usage| usage.admitted() >= DAILY_LIMIT);
    ask_on(&living, &history, &daily("two"), PAUSE, GENEROUS, counted);
    wait_until(GENEROUS, "the living node to know all usage", || {
        usage().is_ok_and(|usage| usage.admitted() == DAILY_LIMIT)
    })
    .expect("nothing was lost with the node");
    history.check_limit(DAILY_LIMIT).expect("the sum holds");
}

#[test]
fn a_redis_killed_and_restarted_empty_never_gives_the_budget_twice() {
    keep_clear_of_window_end(DAY, ROOM);
    let mut cluster = daily_cluster(StoreKind::Redis);
    let (spent, spending) = (History::new(), History::new());
    let api = cluster.api().clone();
    // One budget is gone before the loss, one goes on being spent through it.
    let traffic = daily_traffic("spent", &[("us-east", 150)], Duration::from_secs(10));
    drive(&api, &spent, &traffic);
    assert_eq!(spent.admitted(), DAILY_LIMIT, "{}", spent.tally());

    let to = [("us-east", 150), ("eu-west", 60), ("ap-south", 60)];
    let traffic = daily_traffic("spending", &to, Duration::from_secs(20));
    thread::scope(|scope| {
        scope.spawn(|| drive(&api, &spending, &traffic));
        thread::sleep(Duration::from_secs(3));
        let redis = cluster.redis("us-east").expect("there is a Redis");
        redis.kill();
        thread::sleep(Duration::from_secs(2));
        redis.restart_empty().expect("Redis starts again");
    });
    wait_until(GENEROUS, "us-east to reach its new store", || {
        let status = cluster.status("us-east");
        status.is_ok_and(|status| status.store.ok)
    })
    .expect("the node recovers by itself");

    // With all hearing each other again, and long enough for a loan's term to pass.
    for (history, tenant) in [(&spent, "spent"), (&spending, "spending")] {
        let to = [("us-east", 75), ("eu-west", 75), ("ap-south", 75)];
        let traffic = daily_traffic(tenant, &to, Duration::from_secs(15));
        drive(&api, history, &traffic);
        history.check_limit(DAILY_LIMIT).expect("the sum holds");
    }
    cluster.check_healthy().expect("all nodes are well");
}

/// All of one region's budget is spent, and then its store forgets it while nobody else can be asked.
#[test]
fn a_redis_lost_while_parted_never_gives_the_budget_twice() {
    keep_clear_of_window_end(DAY, ROOM);
    let mut cluster = daily_cluster(StoreKind::Redis);
    let history = History::new();
    let api = cluster.api().clone();
    let traffic = daily_traffic("parted", &[("us-east", 60)], Duration::from_secs(4));
    drive(&api, &history, &traffic);
    cluster.cut_all();
    cluster
        .redis("us-east")
        .and_then(|redis| redis.restart_empty())
        .expect("Redis starts again");
    let to = [("us-east", 100), ("eu-west", 100), ("ap-south", 100)];
    let traffic = daily_traffic("parted", &to, Duration::from_secs(10));
    drive(&api, &history, &traffic);
    history
        .check_limit(DAILY_LIMIT)
        .expect("the sum holds while parted");
    cluster.heal_all();
    drive(&api, &history, &traffic);
    history
        .check_limit(DAILY_LIMIT)
        .expect("the sum holds once healed");
    cluster.check_healthy().expect("all nodes are well");
}
