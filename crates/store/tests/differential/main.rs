//! The embedded store and Redis do the same: random histories, every reply compared.
//!
//! `APPORTION_SEED` repeats a run, `APPORTION_HISTORIES` sets how many histories it has.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod world;

use apportion_core::StoreMs;
use apportion_core::meter::State;
use apportion_store::{Op, RedisStore, Reply, Snapshot, Store, StoreError};
use common::{Server, TIMEOUT, look};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use world::{Event, World};

const HISTORIES: u64 = 500;
const OPS: usize = 150;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A Redis whose clock the test sets.
struct Twin {
    store: RedisStore,
    connection: redis::Connection,
}

impl Twin {
    fn new(server: &Server) -> Self {
        Self {
            store: RedisStore::with_fake_clock(&server.url(), TIMEOUT, "ap").unwrap(),
            connection: server.connection(),
        }
    }

    fn forget_everything(&mut self) {
        redis::pipe()
            .cmd("FLUSHALL")
            .arg("SYNC")
            .cmd("SCRIPT")
            .arg("FLUSH")
            .exec(&mut self.connection)
            .unwrap();
        self.set_clock(StoreMs(0));
    }

    /// Until when a key is kept that hasn't been purged yet.
    fn deadline(&mut self, tag: &str, name: &str) -> Option<u64> {
        let (exists, at): (bool, Option<u64>) = redis::pipe()
            .cmd("EXISTS")
            .arg(name)
            .cmd("ZSCORE")
            .arg(format!("{tag}!deadlines"))
            .arg(name)
            .query(&mut self.connection)
            .unwrap();
        at.filter(|_| exists)
    }

    fn set_clock(&mut self, now: StoreMs) {
        redis::cmd("SET")
            .arg("ap{s}!clock")
            .arg(now.0)
            .exec(&mut self.connection)
            .unwrap();
    }

    /// Runs the events; says which one is answered differently, and how.
    async fn differs(&mut self, events: &[Event]) -> Option<(usize, String)> {
        let mut at = 0;
        for batch in events.chunk_by(|a, b| a.now == b.now) {
            self.set_clock(batch[0].now);
            let ops: Vec<Op> = batch.iter().map(|event| event.op.clone()).collect();
            let replies = self.store.call(ops).await;
            assert_eq!(replies.len(), batch.len());
            for (event, reply) in batch.iter().zip(replies) {
                let (expected, got) = (ordered(event.reply.clone()), ordered(reply));
                if expected != got {
                    return Some((at, difference(&expected, &got)));
                }
                at += 1;
            }
        }
        None
    }
}

/// What is worth having met: a comparison that never gets there proves nothing.
fn outcome(event: &Event) -> &'static str {
    match &event.reply {
        Ok(Reply::Decided(decided)) if decided.replayed.is_some() => "replayed",
        Ok(Reply::Decided(decided)) if decided.answers.iter().any(|a| a.crowded) => "crowded",
        Ok(Reply::Decided(decided)) if decided.admitted => "admitted",
        Ok(Reply::Decided(_)) => "refused",
        Ok(Reply::Ended(ended)) if ended.contains(&true) => "a hold ended",
        Ok(Reply::Ended(_)) => "no hold to end",
        Ok(Reply::Swapped(1)) => "a first swap",
        Ok(Reply::Swapped(_)) => "a later swap",
        Ok(Reply::Feed(page)) if page.more => "a page of the feed",
        Ok(Reply::Swept(swept)) if swept.pages.iter().any(|pages| !pages.is_empty()) => "a sweep",
        Ok(Reply::Held(true)) => "the lease",
        Ok(Reply::Held(false)) => "no lease",
        Ok(Reply::Snapshots { snapshots, .. }) if snapshots.iter().any(has_a_long_log) => {
            "a long log"
        }
        Ok(_) => "anything else",
        Err(StoreError::RequestIdReused) => "a request id reused",
        Err(StoreError::Fenced(_)) => "fenced",
        Err(StoreError::LookAgain) => "look again",
        Err(StoreError::Conflict) => "conflict",
        Err(StoreError::Guard) => "guard",
        Err(StoreError::OutOfSpan) => "outside the span",
        Err(_) => "rejected",
    }
}

fn has_a_long_log(snapshot: &Snapshot) -> bool {
    let state = snapshot.meter.as_ref().map(|m| &m.state);
    matches!(state, Some(State::Log { entries }) if entries.len() > 50)
}

const OUTCOMES: usize = 21;

type Replied = Result<Reply, StoreError>;

/// Slots have no order: Redis keeps them by their ends.
fn ordered(mut reply: Replied) -> Replied {
    if let Ok(Reply::Snapshots { snapshots, .. }) = &mut reply {
        let meters = snapshots.iter_mut().filter_map(|s| s.meter.as_mut());
        for meter in meters.filter(|m| m.state == State::Slots) {
            meter.holds.sort_by_key(|h| (h.until, h.id));
        }
    }
    reply
}

fn difference(expected: &Replied, got: &Replied) -> String {
    let (expected, got) = (format!("{expected:#?}"), format!("{got:#?}"));
    let mut lines = expected.lines().zip(got.lines());
    let same = lines.by_ref().take_while(|(a, b)| a == b).count();
    let part = |text: &str| {
        let lines = text.lines().skip(same.saturating_sub(4)).take(16);
        lines.collect::<Vec<_>>().join("\n")
    };
    format!("expected\n{}\ngot\n{}", part(&expected), part(&got))
}

#[tokio::test]
async fn redis_answers_as_the_embedded_store_does() {
    let server = Server::start();
    let mut twin = Twin::new(&server);
    let first = env("APPORTION_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let histories = env("APPORTION_HISTORIES").unwrap_or(HISTORIES);
    println!("first seed {first}, {histories} histories");
    let mut ops = 0;
    let mut outcomes = BTreeMap::<&str, u64>::new();
    for seed in first..first + histories {
        twin.forget_everything();
        let fingerprint = look(&twin.store).await.fingerprint;
        let mut world = World::new(SmallRng::seed_from_u64(seed), &fingerprint);
        world.run(OPS);
        ops += world.events.len();
        for event in &world.events {
            *outcomes.entry(outcome(event)).or_default() += 1;
        }
        if let Some((at, got)) = twin.differs(&world.events).await {
            for (i, event) in world.events[..=at]
                .iter()
                .enumerate()
                .skip(at.saturating_sub(12))
            {
                println!("{i}: {event:?}");
            }
            panic!(
                "APPORTION_SEED={seed} APPORTION_HISTORIES=1: operation {at} is answered differently\n{got}"
            );
        }
        for (tag, name, expected) in world.deadlines() {
            let got = twin.deadline(&tag, &name);
            assert_eq!(
                expected.map(|at| at.0.min(9_000_000_000_000_000)),
                got,
                "APPORTION_SEED={seed} APPORTION_HISTORIES=1: {name} is kept differently"
            );
        }
    }
    println!("{ops} operations answered alike: {outcomes:?}");
    assert!(
        histories < HISTORIES || outcomes.len() == OUTCOMES,
        "the histories don't go everywhere"
    );
}
