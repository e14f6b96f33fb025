//! Configuration into running parts: the node, its gRPC and HTTP faces, metrics.

pub mod accept;
mod ask;
pub mod config;
pub mod dev;
pub mod errors;
pub mod face;
mod grpc;
pub mod http;
pub mod load;
pub mod metrics;
pub mod node;
pub mod retire;
pub mod serve;
pub mod store;
mod telling;
mod usage_view;

pub use dev::{DevOptions, dev};
pub use node::Node;
pub use serve::run_faces;

use config::RegionConfig;
use node::Parts;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::AnyStore;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often a node asks itself whether it fits its store.
const MISFIT_LOOK: Duration = Duration::from_millis(200);
/// What runs beside the faces has this long to end after them.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Why the process could not run, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The files or flags ask for something that can't be: one problem a line.
    #[error("{0}")]
    Configuration(String),
    /// All was well with what was asked, but it didn't work: a port in use, a file that can't be read.
    #[error("{0}")]
    Failed(String),
}

/// Runs one node of one region, as the file at `config` says, until `shutdown`.
///
/// # Errors
/// Where the files are wrong, or an address can't be listened on.
pub async fn serve(config: &Path, shutdown: CancellationToken) -> Result<(), RunError> {
    let (config, policies) = RegionConfig::load(config)
        .map_err(|problems| RunError::Configuration(problems.to_string()))?;
    for warning in config.warnings.iter().chain(&policies.warnings) {
        warn!("{warning}");
    }
    metrics::install();
    let listen = &config.listen;
    let http = bind("listen.http", listen.http).await?;
    let grpc = bind("listen.grpc", listen.grpc).await?;
    let sync = bind("listen.sync", listen.sync).await?;
    let store = AnyStore::open(&config.store.url, config.store.timeout)
        .map(|store| store.with_replicas(config.store.replicas.clone()))
        .map_err(|error| RunError::Configuration(format!("store.url: {error}")))?;
    info!(
        region = %config.region, http = %listen.http, grpc = %listen.grpc, sync = %listen.sync, store = ?store,
        "serving; ready once the store answers"
    );
    let parts = Parts {
        region: config.region.clone(),
        policies: Arc::new(policies),
        store,
        on_empty: config.store.on_empty,
        peers: config
            .peers
            .into_iter()
            .map(|peer| (peer.region, peer.sync))
            .collect(),
        interval: config.sync.interval,
        loan_term: config.sync.loan_term,
        one_way_delay: Duration::ZERO,
    };
    let stop = shutdown.child_token();
    let (node, tasks) = Node::start(parts, sync, &stop)?;
    let ((), misfit) = tokio::join!(
        run_faces(node.clone(), http, grpc, stop.clone()),
        watch_for_misfit(node, stop.clone())
    );
    end(tasks).await;
    misfit.map_or(Ok(()), |why| Err(RunError::Configuration(why)))
}

/// Ends the node as soon as its store shows that it can't ever serve as it was configured.
async fn watch_for_misfit(node: Node, stop: CancellationToken) -> Option<String> {
    loop {
        stop.run_until_cancelled(tokio::time::sleep(MISFIT_LOOK))
            .await?;
        if let Some(why) = node.misfit() {
            stop.cancel();
            return Some(why);
        }
    }
}

/// Waits a while for what runs beside the faces, then goes without it.
async fn end(tasks: Vec<JoinHandle<()>>) {
    let all = futures_util::future::join_all(tasks);
    let _late = tokio::time::timeout(END_WITHIN, all).await;
}

async fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|error| RunError::Failed(format!("{what}: can't listen on {address}: {error}")))
}

#[cfg(test)]
mod tests;
