//! The faces over real TCP, with a fake limiter behind them.

mod grpc;
mod harness;
mod http;
mod reading;
mod shutdown;
