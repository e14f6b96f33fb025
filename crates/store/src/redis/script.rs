//! The scripts: Lua sources put together under a clock.

use super::pack;
use crate::{ATTEMPTS_TTL_MS, NEWCOMERS_MS, REQUEST_TTL_MS};
use apportion_core::Life;
use apportion_core::fence::{HOLD_MAX_MS, SPAN_MS};
use apportion_core::meter::{HOLDS_MAX, MEMBER_IDLE_MS, MEMBERS_MAX};
use apportion_core::schedule::{EXACT, MAX_TTL_MS, PPB};
use apportion_core::tally::{CELL_MIN_MS, TALLY_TTL_MS};
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
    Hear,
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
    pub(super) digests: [String; 5],
}

const FENCE: &str = include_str!("fence.lua");
const READING: &str = include_str!("reading.lua");
/// In this order: each uses what stands before it.
const METER: &str = concat!(
    include_str!("meter/shares.lua"),
    include_str!("meter/rules.lua"),
    include_str!("meter/holds.lua"),
    include_str!("meter/bucket.lua"),
    include_str!("meter/window.lua"),
    include_str!("meter/units.lua"),
    include_str!("meter/log.lua"),
    include_str!("meter/counter.lua"),
    include_str!("meter/slots.lua"),
    include_str!("meter/settle.lua"),
    include_str!("meter/slack.lua"),
);
const USAGE: &str = include_str!("usage.lua");
const TALLY: &str = include_str!("tally.lua");

/// What the scripts have in common with `core`, with `pack`, and among themselves. A script is made anew at each of its
/// calls, so they have these as numbers, and not as variables.
const CONSTANTS: [(&str, u64); 49] = [
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
    ("PPB", PPB),
    ("TALLY_CELL_MIN_MS", CELL_MIN_MS),
    ("TALLY_TTL_MS", TALLY_TTL_MS),
    ("DAY_MS", 86_400_000),
    // How many values the fence is.
    ("HEAD", 9),
    // Algorithms, and what is added to them in the first value of a stored meter.
    ("BUCKET", 1),
    ("WINDOW", 2),
    ("LOG", 3),
    ("COUNTER", 4),
    ("SLOTS", 5),
    ("NOTED", 8),
    ("HELD", 16),
    // How a bucket is stored as one number: see `pack`.
    ("PLAIN_EPOCHS", pack::PLAIN_EPOCHS),
    ("PLAIN_DISTANCES", pack::PLAIN_DISTANCES),
    ("PLAIN_TOKENS", pack::PLAIN_TOKENS),
    ("DIGIT_0", b'0' as u64),
    ("DIGIT_9", b'9' as u64),
    // Parts of the budget.
    ("NOTHING", 0),
    ("WHOLE", 1),
    ("BASE", 2),
    ("SHARES", 3),
    // Flags of a rule.
    ("OVER", 2),
    ("KNOWN", 4),
    // Modes, and flags of a charge.
    ("PEEK", 0),
    ("CHARGE", 1),
    ("HOLD", 2),
    ("NOTE", 3),
    ("SHADOW", 1),
    ("NEWCOMERS", 2),
    ("MEMBER", 4),
    // A flag of an answer.
    ("OVERDRAWN", pack::OVERDRAWN),
    // What became of a request.
    ("DECIDED", 0),
    ("REPLAYED", 1),
    ("FENCED", 2),
    ("REUSED", 3),
    ("FAILED", 4),
    ("OUTSIDE", 5),
    // Elements of a list or a sorted set that are looked at together.
    ("PAGE", 64),
];

/// Lua with the constants put in, and without comments and indents.
fn compact(lua: &str) -> String {
    let mut text = String::with_capacity(lua.len());
    for line in lua.lines().map(str::trim) {
        if line.is_empty() || line.starts_with("--") {
            continue;
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = line;
        while !rest.is_empty() {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, others) = rest.split_at(word);
            match CONSTANTS.iter().find(|(name, _)| *name == word) {
                Some((_, n)) => text += &n.to_string(),
                None => text += word,
            }
            let gap = others.find(is_word).unwrap_or(others.len());
            text += &others[..gap];
            rest = &others[gap..];
        }
        text.push('\n');
    }
    text
}

impl Clock {
    /// What is needed always, and the rest.
    fn preludes(self) -> [&'static str; 2] {
        match self {
            Self::Redis => [include_str!("clock.lua"), include_str!("expiry.lua")],
            Self::Fake => [
                include_str!("clock_fake.lua"),
                include_str!("expiry_fake.lua"),
            ],
        }
    }
}

impl Fenced {
    pub(super) const ALL: [Self; 5] = [
        Self::Decide,
        Self::EndHolds,
        Self::Swap,
        Self::Rows,
        Self::Hear,
    ];

    /// Its text, of which no other attachment has the like.
    ///
    /// Most of it stands in one function: whatever a function takes from outside costs, each time that it is made, as
    /// much as there are variables around it.
    pub(super) fn text(self, clock: Clock, life: Life, nonce: u64) -> String {
        let [prelude, expiry] = clock.preludes();
        let main: &[&str] = match self {
            Self::Decide => &[
                expiry,
                READING,
                METER,
                USAGE,
                TALLY,
                include_str!("decide.lua"),
            ],
            Self::EndHolds => &[
                expiry,
                READING,
                METER,
                USAGE,
                TALLY,
                include_str!("end_holds.lua"),
            ],
            Self::Swap => &[expiry, READING, METER, include_str!("swap.lua")],
            Self::Rows => &[expiry, READING, USAGE, include_str!("rows.lua")],
            Self::Hear => &[
                expiry,
                READING,
                METER,
                USAGE,
                TALLY,
                include_str!("hear.lua"),
            ],
        };
        let last = match self {
            Self::Decide => include_str!("fast.lua"),
            Self::EndHolds | Self::Swap | Self::Rows | Self::Hear => "return whole()",
        };
        let lua = format!(
            "{prelude}\n{FENCE}\nlocal out, n = {{now}}, 1\nlocal function whole()\n{}\nend\n{last}",
            main.join("\n")
        );
        format!("-- {life} {nonce:016x}\n{}", compact(&lua))
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
        let [prelude, expiry] = clock.preludes();
        compact(&format!("{prelude}\n{expiry}\n{body}"))
    }
}

impl Attachment {
    pub(super) fn digest(&self, script: Fenced) -> &str {
        let [decide, end_holds, swap, rows, hear] = &self.digests;
        match script {
            Fenced::Decide => decide,
            Fenced::EndHolds => end_holds,
            Fenced::Swap => swap,
            Fenced::Rows => rows,
            Fenced::Hear => hear,
        }
    }
}
