//! What the store promises on a real Redis and its own clock, beyond what the differential tests compare.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod batches;
mod forgotten;
mod keys;
mod memory;
mod outcomes;
mod refusals;
mod requests;
mod speed;

use apportion_core::fence::{Fence, Span};
use apportion_core::meter::{Member, Terms};
use apportion_core::schedule::{PPB, Shares};
use apportion_core::usage::{Counts, Slot};
use apportion_core::{Actor, Algorithm, Epoch, Key, Life, Region, StoreMs};
use apportion_store::*;
use common::proxy::Proxy;
use common::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOUR_MS: u64 = 3_600_000;

fn of_three() -> Charge {
    charge(&key("api@1:acme"), bucket_rule(1, HOUR_MS, 3), 1)
}

/// The name of what is kept for a key, whose kind is nothing for a meter.
fn named(fence: &apportion_core::fence::Fence, key: &Key, kind: &str) -> String {
    let life = fence.record.life;
    format!(
        "ap{{{:02x}}}{life}{kind}{}",
        key.partition().0,
        key.as_str()
    )
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
