//! The scripts: Lua sources put together under a clock.

use apportion_core::Life;

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
            "-- {life} {nonce:016x}\n{}\n{FENCE}\n{}",
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
        format!("{}\n{body}", clock.prelude())
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
