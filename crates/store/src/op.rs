//! The operations of a store and their replies.

use apportion_core::fence::Fence;
use apportion_core::meter::{Member, Meter, Reading, Rule, Terms};
use apportion_core::tally::{Tally, Told};
use apportion_core::usage::{Counts, Slot};
use apportion_core::{Actor, Key, Life, Partition, Record, StoreMs};
use std::sync::Arc;

/// A meter's place: the key, and for windows the label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MeterId {
    pub key: Key,
    pub label: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Reads the store's clock, what it says of itself, and the region's state. Needs nothing, changes nothing.
    Look,
    /// Replaces the region's state if it is still at version `expect` (0: there is none).
    PutState {
        expect: u64,
        value: Vec<u8>,
    },
    /// Binds this connection to `life`, on the store that says `fingerprint` of itself. Fenced operations need it.
    Attach {
        life: Life,
        fingerprint: String,
    },
    /// Writes `record` to every partition, if the region's state is still at `state_version`.
    Adopt {
        state_version: u64,
        record: Record,
    },
    /// Takes or keeps the lease that saves nodes from doing the same work. `true` where `holder` has it now.
    Lease {
        holder: u64,
        ttl_ms: u64,
    },
    /// Notes that all of an actor's usage up to a moment of its own clock is merged here.
    Mark {
        life: Life,
        actor: Actor,
        through: StoreMs,
    },
    /// Every mark.
    Marks {
        life: Life,
    },
    Decide(Decide),
    EndHolds(EndHolds),
    Read {
        fence: Fence,
        partition: Partition,
        ids: Vec<MeterId>,
    },
    Swap(Swap),
    /// The traded meters of a partition.
    Traded {
        fence: Fence,
        partition: Partition,
        limit: usize,
    },
    /// What a round begins with: the traded meters of every partition, and for each of `readers` what it hasn't
    /// acknowledged, as by [`Op::Traded`] and [`Op::Feed`]. Each partition is atomic in itself.
    Sweep {
        fence: Fence,
        readers: Vec<String>,
        /// Of one partition.
        traded_max: usize,
        /// Slots of one partition for one reader.
        feed_max: usize,
    },
    /// Changed usage slots after what `reader` has acknowledged, oldest change first.
    Feed {
        fence: Fence,
        partition: Partition,
        reader: String,
        limit: usize,
    },
    /// `reader` has all changes up to `seq`.
    Ack {
        fence: Fence,
        partition: Partition,
        reader: String,
        seq: u64,
    },
    /// Merges other actors' slots by maximum.
    Merge {
        fence: Fence,
        partition: Partition,
        slots: Vec<UsageSlot>,
    },
    /// Takes in what other actors say that they admitted.
    Hear {
        fence: Fence,
        partition: Partition,
        heard: Vec<Heard>,
    },
    /// The slots of a key's periods.
    Usage {
        fence: Fence,
        partition: Partition,
        key: Key,
        starts: Vec<StoreMs>,
    },
}

/// All charges of one request that share a partition, decided as one: all or nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Decide {
    pub fence: Fence,
    pub partition: Partition,
    /// Names the holds and slots of this request. Below 2^53, drawn at random.
    pub id: u64,
    pub mode: Mode,
    /// No key twice.
    pub charges: Vec<Charge>,
    /// With [`Mode::Charge`]: a request that was admitted under this name is answered as it was then.
    pub remember: Option<Remember>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Consume nothing, count nothing.
    Peek,
    Charge,
    /// Charge, with the right to put it back within `ttl_ms`.
    Hold {
        ttl_ms: u64,
    },
    /// Count what was refused before, and nothing else.
    Note,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Charge {
    pub key: Key,
    pub rule: Arc<Rule>,
    /// In the rule's units: micro-units for a bucket, units for all else. 0 fits always, and leaves no trace.
    pub cost: u64,
    /// In whole units, as usage counts them.
    pub units: u64,
    /// What has to be left of what is in force, in millionths.
    pub reserve_ppm: u32,
    /// Units that a node refused of this key since the last call, without a call.
    pub denied: u64,
    /// The length of usage periods. `None`: not counted.
    pub usage_ms: Option<u64>,
    /// Never refuses.
    pub shadow: bool,
    /// A key that has no meter is refused where so many of its policy had none in this second.
    pub newcomers_max: Option<u32>,
    /// Whose part of a pool it is. Only with a bucket.
    pub member: Option<Member>,
}

/// How a request is known again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remember {
    /// The caller's name for the request; one region has each name once. At most 256 bytes.
    pub id: String,
    /// A digest of all that was asked.
    pub content: u128,
    /// Kept with the answer and given back with it: what other partitions said.
    pub others: Vec<u8>,
}

/// Ends holds of one request in one partition. What is no longer there is left alone. For slots: releases them, or takes
/// them for their whole time.
#[derive(Clone, PartialEq, Debug)]
pub struct EndHolds {
    pub fence: Fence,
    pub partition: Partition,
    pub id: u64,
    /// When the hold was laid: it names the window and the usage period.
    pub laid_at: StoreMs,
    /// Put the units back; otherwise they are spent.
    pub release: bool,
    /// Key, rule, units and usage period matter.
    pub charges: Vec<Charge>,
}

/// Compare-and-set of an allotment.
///
/// Settles the meter under the old terms to now; if the new terms leave less than what is used or held, or the
/// allotment isn't at `expect` any more, nothing changes.
#[derive(Clone, PartialEq, Debug)]
pub struct Swap {
    pub fence: Fence,
    pub id: MeterId,
    /// Where limits depend on the plan: under those that the meter noted, or there is a conflict.
    pub rule: Arc<Rule>,
    /// The version that was read; 0: none.
    pub expect: u64,
    pub terms: Terms,
    pub allotment: Vec<u8>,
    /// Until when it has to be remembered.
    pub keep_until: StoreMs,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageSlot {
    pub key: Key,
    pub period: StoreMs,
    /// When the period and its retention are over, on this store's clock.
    pub keep_until: StoreMs,
    pub slot: Slot,
}

/// What an actor said that it admitted of a meter. What is newer than it said last is taken out of what is known.
#[derive(Clone, PartialEq, Debug)]
pub struct Heard {
    pub id: MeterId,
    /// The key's. Where limits depend on the plan: the meter's own go before.
    pub rule: Arc<Rule>,
    pub actor: Actor,
    pub told: Told,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Looked(Looked),
    /// The state's new version.
    Put(u64),
    Done,
    Held(bool),
    Marks(Vec<(Actor, StoreMs)>),
    Decided(Decided),
    /// For each charge: whether its hold was still there.
    Ended(Vec<bool>),
    Snapshots {
        now: StoreMs,
        snapshots: Vec<Snapshot>,
    },
    /// The allotment's new version.
    Swapped(u64),
    Traded(Vec<MeterId>),
    Feed(FeedPage),
    /// For each that was heard: units that were beyond the limit, by what is known here.
    Heard(Vec<u64>),
    Swept(Swept),
    /// For each period: `None` stands for this store's own actor.
    Usage {
        now: StoreMs,
        periods: Vec<Vec<(Option<Actor>, Counts)>>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Looked {
    pub now: StoreMs,
    pub fingerprint: String,
    pub replication: Replication,
    /// For how long another process may still take itself for this store after a fail-over; 0: it has no replicas.
    pub overlap_ms: u64,
    /// Version and bytes of the region's state.
    pub state: Option<(u64, Vec<u8>)>,
}

/// The processes that a store shares its data with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replication {
    /// It takes no data from another one.
    pub is_master: bool,
    /// It took data from another one before, as far as it remembers.
    pub was_promoted: bool,
    /// Connected, in whatever state.
    pub replicas: u32,
    /// For each replica that is up to date, when it last said so.
    pub lags_ms: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    pub now: StoreMs,
    pub admitted: bool,
    pub answers: Vec<Answer>,
    /// This is the answer of an earlier call, with what was kept beside it; nothing was charged now.
    pub replayed: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// This charge on its own would have been admitted.
    pub fits: bool,
    /// It was refused because too many keys of its policy were new in this second.
    pub crowded: bool,
    /// The meter after the decision; for a member of a pool what it can have.
    pub reading: Reading,
    /// What of the charge was drawn on the overdraft, in the rule's units.
    pub overdrawn: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    pub meter: Option<Meter>,
    pub traded: Option<Traded>,
}

/// What is kept of a key beside its meter once it was traded, or was refused.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Traded {
    /// 0 where only attempts are counted.
    pub version: u64,
    pub terms: Option<Terms>,
    pub allotment: Vec<u8>,
    /// Units asked for, admitted or not, since this began to be kept.
    pub attempts: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedPage {
    pub now: StoreMs,
    pub entries: Vec<FeedEntry>,
    pub tallies: Vec<TallyEntry>,
    /// To be acknowledged once the reader has the entries.
    pub seq: u64,
    /// There is more than `limit`.
    pub more: bool,
}

/// All partitions at a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swept {
    /// The earliest moment at which one of them was read.
    pub now: StoreMs,
    pub traded: Vec<MeterId>,
    /// For each reader, partition by partition, the pages that have entries or hold some back.
    pub pages: Vec<Vec<(Partition, FeedPage)>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedEntry {
    pub key: Key,
    pub period: StoreMs,
    /// `None`: this store's own actor.
    pub actor: Option<Actor>,
    pub counts: Counts,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TallyEntry {
    pub id: MeterId,
    /// `None`: this store's own actor.
    pub actor: Option<Actor>,
    pub tally: Tally,
}

// === impl Replication ===

impl Replication {
    /// Of a store that nothing is copied from.
    pub const fn none() -> Self {
        Self {
            is_master: true,
            was_promoted: false,
            replicas: 0,
            lags_ms: Vec::new(),
        }
    }
}

/// Why an operation has no reply. Says whether it may have been executed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It never left this node.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The store answered that it would not.
    #[error("rejected by the store: {0}")]
    Rejected(String),
    /// It was sent, and no answer came.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The partition's record isn't the one that the caller believes.
    #[error("fenced: the partition's record is {0:?}")]
    Fenced(Option<Record>),
    /// The store may be another one: look at its fingerprint before anything else.
    #[error("the store has to be looked at again")]
    LookAgain,
    /// The value changed since it was read.
    #[error("changed since it was read")]
    Conflict,
    /// The new terms would leave less than what is used or held.
    #[error("used or held beyond the new terms")]
    Guard,
    /// The request's name was used for another request.
    #[error("the request id was used for another request")]
    RequestIdReused,
    /// The clock can't be trusted now.
    #[error("outside the span")]
    OutOfSpan,
}

impl FeedPage {
    /// There is nothing new for the reader.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.tallies.is_empty() && !self.more
    }
}

impl StoreError {
    /// Whether the operation may have been executed.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// How long a key that was refused, but never traded, is kept count of.
pub const ATTEMPTS_TTL_MS: u64 = 60_000;
/// How long an admitted request is known by its name.
pub const REQUEST_TTL_MS: u64 = 600_000;
/// For how long new keys are counted together.
pub const NEWCOMERS_MS: u64 = 1_000;
