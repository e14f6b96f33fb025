//! A whole multi-region deployment in one process, on loopback.

use crate::RunError;
use apportion_core::Region;
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Ports of the first region; those of the next ones follow.
pub const FIRST_GRPC_PORT: u16 = 7101;
pub const FIRST_HTTP_PORT: u16 = 7201;
pub const FIRST_SYNC_PORT: u16 = 7301;

/// Region i takes the i-th port of each range, so there is room for so many.
pub const MAX_REGIONS: usize = 8;

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

/// Runs a deployment until `shutdown`. Prints to stdout one line for each region once it serves, then `ready`.
pub async fn dev(_options: DevOptions, _shutdown: CancellationToken) -> Result<(), RunError> {
    Err(RunError::Failed("dev is not assembled yet".into()))
}
