//! Configuration into running parts: the node, its gRPC and HTTP faces, metrics.

pub mod config;
pub mod node;
