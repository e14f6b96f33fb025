//! Faults on real processes.
//!
//! Starts real `apportion serve` and `redis-server` processes, puts a fault proxy on every link between regions, drives
//! traffic and keeps every answer, so that the promise about the sum can be checked from outside. It knows the product
//! by its configuration files, its HTTP face and its command line alone, and depends on no other crate of the workspace.

pub mod error;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod time;

pub use error::Error;
pub use proxy::{Direction, Proxy};
pub use redis::RedisServer;
pub use time::{seed, wait_until};
