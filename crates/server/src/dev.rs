//! A whole multi-region deployment in one process, on loopback.

use crate::config::{ConfigErrors, OnEmpty, StoreUrl, SyncConfig, load_policies};
use crate::load::{self, LoadOptions};
use crate::node::Parts;
use crate::store::AnyStore;
use crate::{Node, RunError, bind, end, metrics, run_faces, watch_for_misfit};
use apportion_core::key::SubjectHash;
use apportion_core::{PolicySet, Region};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Ports of the first region; those of the next ones follow.
pub const FIRST_GRPC_PORT: u16 = 7101;
pub const FIRST_HTTP_PORT: u16 = 7201;
pub const FIRST_SYNC_PORT: u16 = 7301;

/// Region i takes the i-th port of each range, so there is room for so many.
pub const MAX_REGIONS: usize = 8;

const BUILT_IN_REGIONS: [&str; 3] = ["us-east", "eu-west", "ap-south"];
/// A machine that is also somebody's desktop: generous towards the store.
const DEV_TIMEOUT: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What `apportion dev` was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevOptions {
    /// 1 to [`MAX_REGIONS`], all different.
    pub regions: Vec<Region>,
    /// Left out: the built-in set, which shows every mode.
    pub policies: Option<PathBuf>,
    /// A Redis URL for each region, in the order of `regions`; empty: the embedded store.
    pub redis: Vec<String>,
    /// One way, between any two regions.
    pub wan_latency: Duration,
    /// Drive sample traffic.
    pub load: bool,
}

/// Shows every mode; made for [`BUILT_IN_REGIONS`].
const BUILT_IN: &str = include_str!("../../../regions/policies.toml");

/// Runs a deployment until `shutdown`. Prints to stdout one line for each region once it serves, then `ready`.
///
/// # Errors
/// Where the policies aren't for these regions, or a port is in use.
pub async fn dev(options: DevOptions, shutdown: CancellationToken) -> Result<(), RunError> {
    // No secret, and the same in every run: with a Redis that stays, keys are to be found again.
    let policies = policies(&options)?.with_subject_hash(SubjectHash::new(b"apportion dev"));
    let policies = Arc::new(policies);
    for warning in &policies.warnings {
        warn!("{warning}");
    }
    metrics::install();
    let mut nodes = Vec::new();
    let mut tasks = Vec::new();
    let mut faces = Vec::new();
    for (i, region) in options.regions.iter().enumerate() {
        let http = bind("HTTP port", port(FIRST_HTTP_PORT, i)).await?;
        let grpc = bind("gRPC port", port(FIRST_GRPC_PORT, i)).await?;
        let sync = bind("sync port", port(FIRST_SYNC_PORT, i)).await?;
        let url = match options.redis.get(i) {
            Some(url) => StoreUrl::Redis(url.clone()),
            None => StoreUrl::Memory,
        };
        let store = AnyStore::open(&url, DEV_TIMEOUT)
            .map_err(|error| RunError::Configuration(format!("--redis: {error}")))?;
        let alone = options.regions.len() == 1;
        let peers = options.regions.iter().enumerate().filter(|(j, _)| *j != i);
        let parts = Parts {
            region: region.clone(),
            policies: Arc::clone(&policies),
            on_empty: if url == StoreUrl::Memory || alone {
                OnEmpty::New
            } else {
                OnEmpty::Ask
            },
            store,
            peers: peers
                .map(|(j, peer)| (peer.clone(), format!("http://{}", port(FIRST_SYNC_PORT, j))))
                .collect(),
            interval: SyncConfig::DEFAULT_INTERVAL,
            loan_term: SyncConfig::DEFAULT_LOAN_TERM,
            one_way_delay: options.wan_latency,
        };
        let (node, running) = Node::start(parts, sync, &shutdown)?;
        tasks.extend(running);
        faces.push(tokio::spawn(run_faces(
            node.clone(),
            http,
            grpc,
            shutdown.clone(),
        )));
        nodes.push(node);
    }
    tokio::select! {
        () = announce(&options, &nodes) => {}
        () = shutdown.cancelled() => {}
    }
    let misfits: Vec<_> = nodes
        .iter()
        .map(|node| watch_for_misfit(node.clone(), shutdown.clone()))
        .collect();
    let misfits = tokio::spawn(futures_util::future::join_all(misfits));
    if options.load {
        tasks.push(tokio::spawn(load::drive(
            nodes,
            LoadOptions::default(),
            shutdown.clone(),
        )));
    }
    for face in faces {
        face.await
            .map_err(|error| RunError::Failed(format!("a region's service ended: {error}")))?;
    }
    end(tasks).await;
    let found = misfits.await.unwrap_or_default();
    found
        .into_iter()
        .flatten()
        .next()
        .map_or(Ok(()), |why| Err(RunError::Configuration(why)))
}

/// Says of each region when it can admit, and then that all can.
async fn announce(options: &DevOptions, nodes: &[Node]) {
    for (i, node) in nodes.iter().enumerate() {
        while !node.ready() || node.status().standing == "asking" {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let store = options.redis.get(i).map_or("memory:", |_| "Redis");
        // Whoever started this may have stopped reading.
        let _unread = writeln!(
            io::stdout(),
            "{} serves: http {}  grpc {}  sync {}  store {store}",
            node.region(),
            port(FIRST_HTTP_PORT, i),
            port(FIRST_GRPC_PORT, i),
            port(FIRST_SYNC_PORT, i),
        );
    }
    let _unread = writeln!(io::stdout(), "ready");
}

fn port(first: u16, region: usize) -> SocketAddr {
    let offset = u16::try_from(region).expect("at most eight regions");
    SocketAddr::from(([127, 0, 0, 1], first + offset))
}

fn policies(options: &DevOptions) -> Result<PolicySet, RunError> {
    let wrong = |problems: ConfigErrors| RunError::Configuration(problems.to_string());
    let set = match &options.policies {
        Some(path) => load_policies(path).map_err(wrong)?,
        None => {
            PolicySet::parse(&built_in(&options.regions), "the built-in policies").map_err(wrong)?
        }
    };
    let ours: BTreeSet<&Region> = options.regions.iter().collect();
    let theirs: BTreeSet<&Region> = set.regions.iter().collect();
    if ours != theirs {
        let names =
            |set: &BTreeSet<&Region>| set.iter().map(|r| r.as_str()).collect::<Vec<_>>().join(",");
        return Err(RunError::Configuration(format!(
            "the policies are for the regions {}, and the deployment has {}; expected the same: --regions {}",
            names(&theirs),
            names(&ours),
            names(&theirs),
        )));
    }
    Ok(set)
}

/// The built-in policies for other regions than they were made for: the same, with equal weights.
fn built_in(regions: &[Region]) -> String {
    let names: Vec<&str> = regions.iter().map(Region::as_str).collect();
    if names == BUILT_IN_REGIONS {
        return BUILT_IN.to_owned();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let lines = BUILT_IN.lines().filter(|line| !line.starts_with("weights"));
    let line = |line: &str| match line.starts_with("regions = ") {
        true => format!("regions = [{}]", quoted.join(", ")),
        false => line.to_owned(),
    };
    lines.map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_policies_are_valid_for_any_regions() {
        for count in 1..=MAX_REGIONS {
            let regions: Vec<Region> = (0..count)
                .map(|i| Region::new(&format!("region-{i}")))
                .collect();
            let set = PolicySet::parse(&built_in(&regions), "built-in").expect("it is valid");
            assert_eq!(set.regions.len(), count);
        }
    }
}
