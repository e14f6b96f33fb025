//! The scripts: Lua sources put together under a clock.

use crate::{ATTEMPTS_TTL_MS, NEWCOMERS_MS, REQUEST_TTL_MS};
use apportion_core::Life;
use apportion_core::fence::{HOLD_MAX_MS, SPAN_MS};
use apportion_core::meter::{HOLDS_MAX, MEMBER_IDLE_MS, MEMBERS_MAX};
use apportion_core::schedule::{EXACT, MAX_TTL_MS};
use apportion_core::usage::RETENTION_MS;

/// Which clock the scripts go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clock {
    /// Redis TIME, and its expiry.
    Redis,
    /// A key that a test sets; see `clock_fake.lua`.
    Fake,
}

/// The scripts that the fence guards. They run only where they were loaded under a checked fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fenced {
    Decide,
    EndHolds,
    Swap,
    Rows,
}

/// The scripts on a region's own state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plain {
    PutState,
    Adopt,
    Lease,
    Mark,
}

/// What binds a node to one process of Redis and one life in it: scripts that nobody else could have loaded.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) life: Life,
    pub(super) nonce: u64,
    /// In the order of [`Fenced::ALL`].
    pub(super) digests: [String; 4],
}

const FENCE: &str = include_str!("fence.lua");
const METER: &str = include_str!("meter.lua");
const USAGE: &str = include_str!("usage.lua");

/// What the scripts have in common with `core`, said once.
fn constants() -> String {
    let constants = [
        ("SPAN_MS", SPAN_MS),
        ("HOLD_MAX_MS", HOLD_MAX_MS),
        ("HOLDS_MAX", HOLDS_MAX as u64),
        ("MEMBERS_MAX", MEMBERS_MAX as u64),
        ("MEMBER_IDLE_MS", MEMBER_IDLE_MS),
        ("ATTEMPTS_TTL_MS", ATTEMPTS_TTL_MS),
        ("REQUEST_TTL_MS", REQUEST_TTL_MS),
        ("NEWCOMERS_MS", NEWCOMERS_MS),
        ("RETENTION_MS", RETENTION_MS),
        ("MAX_TTL_MS", MAX_TTL_MS),
        ("EXACT", EXACT),
    ];
    constants
        .map(|(name, n)| format!("local {name} = {n}"))
        .join("\n")
}

impl Clock {
    fn prelude(self) -> &'static str {
        match self {
            Self::Redis => include_str!("clock.lua"),
            Self::Fake => include_str!("clock_fake.lua"),
        }
    }
}

impl Fenced {
    pub(super) const ALL: [Self; 4] = [Self::Decide, Self::EndHolds, Self::Swap, Self::Rows];

    /// Its text, of which no other attachment has the like.
    pub(super) fn text(self, clock: Clock, life: Life, nonce: u64) -> String {
        let parts: &[&str] = match self {
            Self::Decide => &[METER, USAGE, include_str!("decide.lua")],
            Self::EndHolds => &[METER, USAGE, include_str!("end_holds.lua")],
            Self::Swap => &[METER, include_str!("swap.lua")],
            Self::Rows => &[USAGE, include_str!("rows.lua")],
        };
        format!(
            "-- {life} {nonce:016x}\n{}\n{}\n{FENCE}\n{}",
            constants(),
            clock.prelude(),
            parts.join("\n")
        )
    }
}

impl Plain {
    pub(super) fn text(self, clock: Clock) -> String {
        let body = match self {
            Self::PutState => include_str!("put_state.lua"),
            Self::Adopt => include_str!("adopt.lua"),
            Self::Lease => include_str!("lease.lua"),
            Self::Mark => include_str!("mark.lua"),
        };
        format!("{}\n{}\n{body}", constants(), clock.prelude())
    }
}

impl Attachment {
    pub(super) fn digest(&self, script: Fenced) -> &str {
        let [decide, end_holds, swap, rows] = &self.digests;
        match script {
            Fenced::Decide => decide,
            Fenced::EndHolds => end_holds,
            Fenced::Swap => swap,
            Fenced::Rows => rows,
        }
    }
}
