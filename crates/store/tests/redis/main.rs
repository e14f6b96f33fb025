//! What the store promises on a real Redis and its own clock, beyond what the differential tests compare.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod forgotten;
mod keys;
mod outcomes;
mod refusals;

use apportion_core::meter::{Rule, Terms};
use apportion_core::schedule::{PPB, Rate, Schedule};
use apportion_core::usage::{Counts, Slot};
use apportion_core::{Actor, Epoch, Life, Region, StoreMs};
use apportion_store::*;
use common::proxy::Proxy;
use common::*;
use std::time::{Duration, Instant};

const HOUR_MS: u64 = 3_600_000;

fn of_three() -> Charge {
    charge(&key("api@1:acme"), bucket_rule(1, HOUR_MS, 3), 1)
}

fn run(server: &Server, command: &[&str]) {
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(&mut server.connection())
        .unwrap();
}

/// How many of `calls` charges are admitted.
async fn admitted(store: &RedisStore, op: &Op, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(decided(store.one(op.clone()).await).admitted);
    }
    admitted
}
