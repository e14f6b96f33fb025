//! What the end-to-end stories in `tests/` share. They know the product by its faces alone: files, command line, HTTP
//! and gRPC of real processes.

use chaos::api::{Api, Attributes};
use chaos::cluster::{REGIONS, policies_file};
use chaos::dev::Dev;
use chaos::history::History;
use chaos::time::keep_clear_of_window_end;
use chaos::traffic::{Traffic, ask_on};
use chaos::{Cluster, ClusterSpec, RedisServer, StoreKind, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

/// For what takes a round or two, on a machine that may be busy with other tests.
pub const GENEROUS: Duration = Duration::from_secs(60);

/// 100 a day, in equal shares: 34 for ap-south, which wins the tie, 33 for the others.
pub const DAILY: &str = r#"
[[policy]]
name = "daily"
match = { route = "/daily" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
tolerance = "never-over"
usage = "1h"
"#;

pub const DAILY_LIMIT: u64 = 100;

pub const DAILY_BASE: [(&str, u64); 3] = [("us-east", 33), ("eu-west", 33), ("ap-south", 34)];

/// A request that `daily` counts.
pub fn daily(tenant: &str) -> [(&str, &str); 2] {
    [("route", "/daily"), ("tenant", tenant)]
}

/// The ways to run three regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `serve` processes, each with a store of its own.
    Memory,
    /// `serve` processes, each with a real Redis.
    Redis,
    /// One `dev` process.
    Dev,
    /// One `dev` process on three real Redis.
    DevOnRedis,
}

/// Three regions that run, by whatever means.
#[derive(Debug)]
pub enum Deployment {
    Serve(Cluster),
    /// In the order in which they are to end.
    Dev(Dev, Vec<RedisServer>, TempDir),
}

// === impl Deployment ===

impl Deployment {
    /// Three regions under `daily` that have met, with two minutes left in the day.
    ///
    /// # Panics
    /// Where they don't start.
    pub fn daily(kind: Kind) -> Self {
        keep_clear_of_window_end(Duration::from_secs(86_400), Duration::from_secs(180));
        match kind {
            Kind::Memory => Self::Serve(daily_cluster(StoreKind::Memory)),
            Kind::Redis => Self::Serve(daily_cluster(StoreKind::Redis)),
            Kind::Dev => daily_dev(Vec::new()),
            Kind::DevOnRedis => daily_dev(
                REGIONS
                    .map(|_| RedisServer::start().expect("redis-server starts"))
                    .into(),
            ),
        }
    }

    pub fn api(&self) -> &Api {
        match self {
            Self::Serve(cluster) => cluster.api(),
            Self::Dev(dev, ..) => dev.api(),
        }
    }
}

/// Three regions under `daily` that have met.
///
/// # Panics
/// Where they don't start.
pub fn daily_cluster(store: StoreKind) -> Cluster {
    start_met(&ClusterSpec::new(store, DAILY).probe(&daily("probe")))
}

/// # Panics
/// Where the regions don't start, or don't meet.
pub fn start_met(spec: &ClusterSpec) -> Cluster {
    let mut cluster = Cluster::start(spec).expect("the cluster starts");
    cluster.wait_met().expect("the regions meet");
    cluster
}

fn daily_dev(stores: Vec<RedisServer>) -> Deployment {
    let dir = tempfile::tempdir().expect("a folder");
    let policies = dir.path().join("policies.toml");
    let text = policies_file(&REGIONS, DAILY);
    fs::write(&policies, text).expect("the policies are written");
    let urls: Vec<String> = stores.iter().map(RedisServer::url).collect();
    let urls = urls.join(",");
    let redis = ["--redis", &urls];
    let extra = if stores.is_empty() { &[] } else { &redis[..] };
    let mut dev = Dev::start(dir.path(), &policies, extra).expect("dev starts");
    let met = wait_until(GENEROUS, "the regions of dev to meet", || {
        dev.api().regions().iter().all(|region| {
            let status = dev.api().status(region);
            let probe = dev.api().peek(region, &daily("probe"));
            status.is_ok_and(|status| status.peers.values().all(|peer| peer.reachable))
                && probe.is_ok_and(|answer| answer.allowed())
        })
    });
    if let Err(error) = met {
        panic!("{error}\n{}", dev.process().log_tail());
    }
    Deployment::Dev(dev, stores, dir)
}

/// As many requests to each region, all under `daily` for one tenant.
pub fn daily_traffic(tenant: &str, to: &[(&str, usize)], over: Duration) -> Vec<Traffic> {
    to.iter()
        .map(|(region, requests)| Traffic::new(region, &daily(tenant), *requests, over))
        .collect()
}

/// Goes on asking until callers have been told that they may have the whole daily budget; where some had no answer, until
/// the product's own count says that it is used: they may have been charged unheard.
///
/// # Panics
/// Where that doesn't come about, or more is admitted.
pub fn use_up(api: &Api, history: &History, tenant: &str) {
    let counted = || {
        let usage = api.usage(&api.regions()[0], "daily", &[("tenant", tenant)]);
        usage.is_ok_and(|usage| usage.admitted() >= DAILY_LIMIT)
    };
    let all = |history: &History| {
        history.admitted() >= DAILY_LIMIT || (history.in_doubt() > 0 && counted())
    };
    ask_on(api, history, &daily(tenant), PAUSE, GENEROUS, all);
    // A little more, to see it refused.
    let after = history.records().len() + 30;
    let asked = |history: &History| history.records().len() >= after;
    ask_on(api, history, &daily(tenant), PAUSE, GENEROUS, asked);
    let (low, high) = (history.admitted(), history.admitted() + history.in_doubt());
    assert!(
        (low..=high).contains(&DAILY_LIMIT),
        "of {DAILY_LIMIT}, {low} to {high} were admitted: {}",
        history.tally()
    );
}

/// The same, and every region says so.
///
/// # Panics
/// Where that doesn't come about, or the count can't be right.
pub fn use_up_as_counted(cluster: &Cluster, history: &History, tenant: &str) {
    use_up(cluster.api(), history, tenant);
    same_usage(cluster.api(), "daily", &[("tenant", tenant)], DAILY_LIMIT);
}

/// Between two rounds of requests that are only to use up a budget.
pub const PAUSE: Duration = Duration::from_millis(100);

/// Waits until every region tells the same usage, `total` in all, and hands back its split.
///
/// # Panics
/// Where that doesn't come about.
pub fn same_usage(
    api: &Api,
    policy: &str,
    key: Attributes<'_>,
    total: u64,
) -> BTreeMap<String, u64> {
    let mut told = Vec::new();
    let agreed = wait_until(GENEROUS, "the same usage in every region", || {
        told = api
            .regions()
            .iter()
            .map(|region| {
                let usage = api.usage(region, policy, key).map_err(|e| e.to_string())?;
                Ok::<_, String>((usage.admitted(), usage.admitted_by_region()))
            })
            .collect();
        told.iter()
            .all(|usage| matches!(usage, Ok((sum, _)) if *sum == total) && *usage == told[0])
    });
    if let Err(error) = agreed {
        panic!("{error} ({total} in all); told: {told:#?}");
    }
    match told.swap_remove(0) {
        Ok((_, split)) => split,
        Err(error) => panic!("{error}"),
    }
}
