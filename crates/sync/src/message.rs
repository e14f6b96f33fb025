//! What regions tell each other. Everything is absolute or stamped, so that loss, delay, doubling and reordering are
//! harmless.

use apportion_core::allotment::{LoanGrant, Row, RowSeen, Statement};
use apportion_core::lives::LifeTable;
use apportion_core::tally::Told;
use apportion_core::usage::Counts;
use apportion_core::{Actor, Key, Limits, Region, StoreMs};
use apportion_store::MeterId;

/// One message from one region to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// The sender's lives, and what it knows of others'.
    pub table: LifeTable,
    /// The sender's policies: nothing is traded between two that differ.
    pub policies: u64,
    /// An answer isn't answered.
    pub is_reply: bool,
    pub usage: Vec<UsageEntry>,
    /// What was admitted under policies that go by what peers admit.
    pub counts: Vec<Count>,
    /// With `usage`, all that the sender counted up to this moment of its clock has been sent.
    pub through: Option<StoreMs>,
    /// Feed positions that `usage` and `counts` reach, by partition: to be echoed once it is merged.
    pub feed: Vec<(u8, u64)>,
    /// Under which name the sender keeps those positions.
    pub reader: String,
    /// The echo, under the same name.
    pub acks: Vec<(u8, u64)>,
    pub trade: Trade,
}

/// The part of a message that moves rights.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trade {
    pub asks: Vec<Ask>,
    pub grants: Vec<(Key, LoanGrant)>,
    pub statements: Vec<(Key, Statement)>,
    pub rows: Vec<(MeterId, Row)>,
    pub seen: Vec<(MeterId, RowSeen)>,
    /// What the answerer of an ask for a window has left of it, in units.
    pub left: Vec<(MeterId, u64)>,
    /// How much is asked for of a share in the sender's region, in parts per billion of the budget; more than the whole
    /// where it is in such demand.
    pub demands: Vec<(Key, u64)>,
}

/// A region under pressure asks another for part of its share (parts per billion) or its rights (units).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    pub id: MeterId,
    pub asked_at: StoreMs,
    /// Of this peer, in all.
    pub want: u64,
    /// Of what the asker lent to this peer, the peer is to keep no more than this, since the asker needs it itself.
    pub keep: Option<u64>,
    /// The asker is refusing requests.
    pub refusing: bool,
    /// It has asked everybody, and got nothing.
    pub last_resort: bool,
    /// The limits that the asker goes by, where they depend on the request.
    pub limits: Option<Limits>,
}

/// One actor's usage slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageEntry {
    pub key: Key,
    pub period: StoreMs,
    pub actor: Actor,
    pub counts: Counts,
}

/// What one actor admitted of one meter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Count {
    pub id: MeterId,
    pub actor: Actor,
    pub told: Told,
}

impl Trade {
    pub fn is_empty(&self) -> bool {
        self.asks.is_empty()
            && self.grants.is_empty()
            && self.statements.is_empty()
            && self.rows.is_empty()
            && self.seen.is_empty()
            && self.left.is_empty()
            && self.demands.is_empty()
    }

    /// Every meter that is spoken of.
    pub fn ids(&self) -> Vec<MeterId> {
        let rate = |key: &Key| MeterId {
            key: key.clone(),
            label: None,
        };
        let mut ids: Vec<MeterId> = self.asks.iter().map(|a| a.id.clone()).collect();
        ids.extend(self.grants.iter().map(|(key, _)| rate(key)));
        ids.extend(self.statements.iter().map(|(key, _)| rate(key)));
        ids.extend(self.rows.iter().map(|(id, _)| id.clone()));
        ids.extend(self.seen.iter().map(|(id, _)| id.clone()));
        ids.extend(self.left.iter().map(|(id, _)| id.clone()));
        ids.extend(self.demands.iter().map(|(key, _)| rate(key)));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The limits that are named in an ask for this meter.
    pub(crate) fn limits_of(&self, id: &MeterId) -> Option<Limits> {
        let mut asks = self.asks.iter().filter(|ask| ask.id == *id);
        asks.find_map(|ask| ask.limits)
    }

    pub fn extend(&mut self, more: Self) {
        self.asks.extend(more.asks);
        self.grants.extend(more.grants);
        self.statements.extend(more.statements);
        self.rows.extend(more.rows);
        self.seen.extend(more.seen);
        self.left.extend(more.left);
        self.demands.extend(more.demands);
    }
}

impl Message {
    pub fn from(&self) -> &Region {
        &self.table.sender.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_what_is_left_is_heard_by_itself() {
        let id = MeterId {
            key: Key::parse("p@1:acme").expect("it is a key"),
            label: Some(7),
        };
        let trade = Trade {
            left: vec![(id.clone(), 1)],
            ..Trade::default()
        };
        assert_eq!(trade.ids(), [id]);
    }
}
