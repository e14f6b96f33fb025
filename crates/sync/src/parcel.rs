//! How messages to one peer are put together and cut up: what has to wait is folded into one, and what is too large to
//! go at once goes in parts. Both only reorder and leave out what is superseded, which the protocol is indifferent to.

#[cfg(test)]
mod tests;

use crate::message::{Count, Message, Trade, UsageEntry};
use crate::wire::{COUNTS_MAX, TRADE_MAX, USAGE_MAX};
use apportion_core::Key;
use apportion_store::MeterId;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// A part has about so many bytes of items at most: half of what a peer takes, so that life tables and the last
/// partition's slots fit besides.
const PART_BYTES: usize = 8 << 20;
/// What an item takes on the wire beside its key, at most.
const ITEM_BYTES: usize = 64;
/// More items than this of one kind don't wait: the older message is dropped, and its content comes again.
const WAITING_MAX: usize = 4 * TRADE_MAX;

// === folding ===

/// One message that says all of `older` that `newer` doesn't supersede.
pub(crate) fn fold(older: Message, newer: Message) -> Message {
    // Stamps and usage belong to the life and epoch that the message names as its sender's.
    let same_sender =
        older.table.sender == newer.table.sender && older.table.epoch == newer.table.epoch;
    if !same_sender || older.policies != newer.policies || older.trade.most() > WAITING_MAX {
        return newer;
    }
    let mut folded = newer;
    // Usage is read from where the peer's acknowledgements end, so a newer reading has all that an older one had, but
    // for what has arrived.
    let is_round = !folded.usage.is_empty() || !folded.feed.is_empty() || folded.through.is_some();
    if !is_round {
        folded.usage = older.usage;
        folded.counts = older.counts;
        folded.feed = older.feed;
        folded.reader = older.reader;
        folded.through = older.through;
    }
    folded.trade = fold_trades(older.trade, folded.trade);
    folded
}

fn fold_trades(older: Trade, newer: Trade) -> Trade {
    Trade {
        asks: latest(older.asks, newer.asks, |ask| ask.id.clone()),
        grants: latest(older.grants, newer.grants, |(key, grant)| {
            (key.clone(), grant.to.clone())
        }),
        statements: latest(older.statements, newer.statements, |(key, statement)| {
            (key.clone(), statement.to.clone())
        }),
        rows: latest(older.rows, newer.rows, |(id, row)| {
            (id.clone(), row.from.clone(), row.to.clone())
        }),
        seen: latest(older.seen, newer.seen, |(id, row)| {
            (id.clone(), row.from.clone(), row.to.clone())
        }),
        left: latest(older.left, newer.left, |(id, _)| id.clone()),
        demands: latest(older.demands, newer.demands, |(key, _)| key.clone()),
    }
}

/// `newer`, after what `older` says of anything else.
fn latest<T, I: Ord>(older: Vec<T>, newer: Vec<T>, identity: impl Fn(&T) -> I) -> Vec<T> {
    if older.is_empty() {
        return newer;
    }
    let said: BTreeSet<I> = newer.iter().map(&identity).collect();
    let still = older
        .into_iter()
        .filter(|item| !said.contains(&identity(item)));
    still.chain(newer).collect()
}

// === cutting ===

/// The message in parts that a peer accepts, to be sent one after the other, each once the one before was answered.
///
/// A partition's usage and counts go with its feed position, and the word that nothing is missing comes last: so neither is
/// ever said of usage that didn't arrive.
pub(crate) fn cut(message: Message) -> Vec<Message> {
    if message.usage.len() <= USAGE_MAX
        && message.counts.len() <= COUNTS_MAX
        && message.trade.most() <= TRADE_MAX
        && message.bytes() <= PART_BYTES
    {
        return vec![message];
    }
    let Message {
        table,
        policies,
        is_reply,
        usage,
        counts,
        through,
        feed,
        reader,
        acks,
        trade,
    } = message;
    let empty = Message {
        table,
        policies,
        is_reply,
        usage: Vec::new(),
        counts: Vec::new(),
        through: None,
        feed: Vec::new(),
        reader,
        acks: Vec::new(),
        trade: Trade::default(),
    };
    let mut cutter = Cutter {
        parts: Vec::new(),
        part: Message {
            acks,
            ..empty.clone()
        },
        bytes: 0,
        empty,
    };
    cutter.trade(trade);
    cutter.usage(usage, counts, &feed);
    cutter.part.through = through;
    cutter.parts.push(cutter.part);
    cutter.parts
}

struct Cutter {
    parts: Vec<Message>,
    part: Message,
    bytes: usize,
    empty: Message,
}

impl Cutter {
    /// Makes sure that an item of `bytes` fits into the part, by beginning another one if it must.
    fn make_room(&mut self, bytes: usize, slots: usize, counts: usize) {
        let full = self.bytes + bytes > PART_BYTES
            || self.part.trade.most() + 1 > TRADE_MAX
            || self.part.usage.len() + slots > USAGE_MAX
            || self.part.counts.len() + counts > COUNTS_MAX;
        if full && self.bytes > 0 {
            self.parts
                .push(mem::replace(&mut self.part, self.empty.clone()));
            self.bytes = 0;
        }
        self.bytes += bytes;
    }

    /// Key by key, so that what is said of one key mostly arrives together.
    fn trade(&mut self, trade: Trade) {
        let mut keys: BTreeMap<MeterId, Trade> = BTreeMap::new();
        let rate = |key: &Key| MeterId {
            key: key.clone(),
            label: None,
        };
        for ask in trade.asks {
            keys.entry(ask.id.clone()).or_default().asks.push(ask);
        }
        for grant in trade.grants {
            keys.entry(rate(&grant.0)).or_default().grants.push(grant);
        }
        for statement in trade.statements {
            let of_key = keys.entry(rate(&statement.0)).or_default();
            of_key.statements.push(statement);
        }
        for row in trade.rows {
            keys.entry(row.0.clone()).or_default().rows.push(row);
        }
        for seen in trade.seen {
            keys.entry(seen.0.clone()).or_default().seen.push(seen);
        }
        for left in trade.left {
            keys.entry(left.0.clone()).or_default().left.push(left);
        }
        for demand in trade.demands {
            let of_key = keys.entry(rate(&demand.0)).or_default();
            of_key.demands.push(demand);
        }
        for (id, trade) in keys {
            for trade in crumble(trade) {
                self.make_room(bytes_of(&id.key), 0, 0);
                self.part.trade.extend(trade);
            }
        }
    }

    fn usage(&mut self, usage: Vec<UsageEntry>, counts: Vec<Count>, feed: &[(u8, u64)]) {
        let mut partitions: BTreeMap<u8, (Vec<UsageEntry>, Vec<Count>)> = BTreeMap::new();
        for entry in usage {
            let partition = entry.key.partition().0;
            partitions.entry(partition).or_default().0.push(entry);
        }
        for count in counts {
            let partition = count.id.key.partition().0;
            partitions.entry(partition).or_default().1.push(count);
        }
        for (partition, seq) in feed {
            let (usage, counts) = partitions.remove(partition).unwrap_or_default();
            let slots = usage.iter().map(|e| bytes_of(&e.key));
            let bytes = slots
                .chain(counts.iter().map(|c| bytes_of(&c.id.key)))
                .sum();
            self.make_room(bytes, usage.len(), counts.len());
            self.part.usage.extend(usage);
            self.part.counts.extend(counts);
            self.part.feed.push((*partition, *seq));
        }
        for (usage, counts) in partitions.into_values() {
            for entry in usage {
                self.make_room(bytes_of(&entry.key), 1, 0);
                self.part.usage.push(entry);
            }
            for count in counts {
                self.make_room(bytes_of(&count.id.key), 0, 1);
                self.part.counts.push(count);
            }
        }
    }
}

/// One item each.
fn crumble(trade: Trade) -> impl Iterator<Item = Trade> {
    fn one<T>(list: Vec<T>, put: impl Fn(&mut Trade, T)) -> Vec<Trade> {
        let wrap = |item| {
            let mut trade = Trade::default();
            put(&mut trade, item);
            trade
        };
        list.into_iter().map(wrap).collect()
    }
    // In the order in which a key's items are taken in.
    one(trade.demands, |t, item| t.demands.push(item))
        .into_iter()
        .chain(one(trade.statements, |t, item| t.statements.push(item)))
        .chain(one(trade.grants, |t, item| t.grants.push(item)))
        .chain(one(trade.seen, |t, item| t.seen.push(item)))
        .chain(one(trade.rows, |t, item| t.rows.push(item)))
        .chain(one(trade.left, |t, item| t.left.push(item)))
        .chain(one(trade.asks, |t, item| t.asks.push(item)))
}

fn bytes_of(key: &Key) -> usize {
    key.as_str().len() + ITEM_BYTES
}

// === impl Trade ===

impl Trade {
    /// The length of the longest list.
    fn most(&self) -> usize {
        [
            self.asks.len(),
            self.grants.len(),
            self.statements.len(),
            self.rows.len(),
            self.seen.len(),
            self.left.len(),
            self.demands.len(),
        ]
        .into_iter()
        .max()
        .unwrap_or(0)
    }
}

// === impl Message ===

impl Message {
    /// About what its items take on the wire, at most.
    fn bytes(&self) -> usize {
        let trade = &self.trade;
        let rates = trade.grants.iter().map(|(key, _)| key);
        let rates = rates.chain(trade.statements.iter().map(|(key, _)| key));
        let rates = rates.chain(trade.demands.iter().map(|(key, _)| key));
        let windows = trade.rows.iter().map(|(id, _)| &id.key);
        let windows = windows.chain(trade.seen.iter().map(|(id, _)| &id.key));
        let windows = windows.chain(trade.left.iter().map(|(id, _)| &id.key));
        let asks = trade.asks.iter().map(|ask| &ask.id.key);
        let usage = self.usage.iter().map(|entry| &entry.key);
        let usage = usage.chain(self.counts.iter().map(|count| &count.id.key));
        rates
            .chain(windows)
            .chain(asks)
            .chain(usage)
            .map(bytes_of)
            .sum()
    }
}
