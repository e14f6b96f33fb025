//! Faults on real processes.
//!
//! Starts real `apportion serve` and `redis-server` processes, puts a fault proxy on every link between regions, drives
//! traffic and keeps every answer, so that the promise about the sum can be checked from outside. It knows the product
//! by its configuration files, its HTTP face and its command line alone, and depends on no other crate of the workspace.

pub mod api;
pub mod cli;
pub mod cluster;
pub mod dev;
pub mod error;
pub mod history;
pub mod node;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod scenario;
pub mod switch;
pub mod time;
pub mod traffic;

pub use api::{Answer, Api, Outcome};
pub use cluster::{Cluster, ClusterSpec, StoreKind};
pub use error::Error;
pub use history::{History, Violation};
pub use proxy::{Direction, Proxy};
pub use redis::RedisServer;
pub use time::{seed, wait_until};
pub use traffic::{Traffic, drive};
