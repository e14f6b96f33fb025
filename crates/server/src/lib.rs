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
pub mod serve;

pub use dev::{DevOptions, dev};
pub use node::Node;
pub use serve::run_faces;

use std::path::Path;
use tokio_util::sync::CancellationToken;

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
pub async fn serve(_config: &Path, _shutdown: CancellationToken) -> Result<(), RunError> {
    Err(RunError::Failed("serve is not assembled yet".into()))
}

#[cfg(test)]
mod tests;
