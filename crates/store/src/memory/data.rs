//! One partition's data, and what expires of it.

use crate::op::*;
use apportion_core::meter::{Meter, Terms};
use apportion_core::usage::Counts;
use apportion_core::{Actor, Key, StoreMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    meters: HashMap<MeterId, (Meter, StoreMs)>,
    traded: HashMap<MeterId, (Traded, StoreMs)>,
    usage: HashMap<(Key, StoreMs), (Slots, StoreMs)>,
    /// Changed slots by the number of the change.
    feed: BTreeMap<u64, FeedKey>,
    positions: HashMap<FeedKey, u64>,
    seq: u64,
    acks: HashMap<String, u64>,
    deadlines: BinaryHeap<Reverse<(StoreMs, Place)>>,
}

type Slots = BTreeMap<Option<Actor>, Counts>;
type FeedKey = (Key, StoreMs, Option<Actor>);

/// What a deadline is for. It may have been moved since: then the entry itself knows better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Meter(MeterId),
    Traded(MeterId),
    Usage(Key, StoreMs),
}

impl Data {
    pub(super) fn expire(&mut self, now: StoreMs) {
        while self
            .deadlines
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            let Some(Reverse((_, place))) = self.deadlines.pop() else {
                return;
            };
            match &place {
                Place::Meter(id) => {
                    if let Some(later) = expire_entry(&mut self.meters, id, now) {
                        self.deadlines.push(Reverse((later, place)));
                    }
                }
                Place::Traded(id) => {
                    if let Some(later) = expire_entry(&mut self.traded, id, now) {
                        self.deadlines.push(Reverse((later, place)));
                    }
                }
                Place::Usage(key, start) => {
                    let at = (key.clone(), *start);
                    let slots = self
                        .usage
                        .get(&at)
                        .map(|(slots, _)| slots.clone())
                        .unwrap_or_default();
                    match expire_entry(&mut self.usage, &at, now) {
                        Some(later) => self.deadlines.push(Reverse((later, place))),
                        None => {
                            for actor in slots.into_keys() {
                                self.forget_change(&(at.0.clone(), at.1, actor));
                            }
                        }
                    }
                }
            }
        }
    }

    fn forget_change(&mut self, key: &FeedKey) {
        if let Some(seq) = self.positions.remove(key) {
            self.feed.remove(&seq);
        }
    }

    pub(super) fn meter(&self, id: &MeterId) -> Option<&Meter> {
        self.meters.get(id).map(|(meter, _)| meter)
    }

    /// Stores a meter for `ttl_ms`; `None` keeps the deadline that it had.
    pub(super) fn put_meter(
        &mut self,
        id: MeterId,
        meter: Meter,
        now: StoreMs,
        ttl_ms: Option<u64>,
    ) {
        let had = self.meters.get(&id).map(|(_, at)| *at);
        let deadline = match (ttl_ms, had) {
            (None, Some(at)) => at,
            (ttl_ms, _) => now.plus(ttl_ms.unwrap_or(0).max(1)),
        };
        if had.is_none_or(|at| deadline < at) {
            self.deadlines
                .push(Reverse((deadline, Place::Meter(id.clone()))));
        }
        self.meters.insert(id, (meter, deadline));
    }

    pub(super) fn snapshot(&self, id: &MeterId) -> Snapshot {
        Snapshot {
            meter: self.meter(id).cloned(),
            traded: self.traded.get(id).map(|(t, _)| t.clone()),
        }
    }

    pub(super) fn terms(&self, id: &MeterId) -> Option<Terms> {
        self.traded.get(id).and_then(|(t, _)| t.terms.clone())
    }

    pub(super) fn version(&self, id: &MeterId) -> u64 {
        self.traded.get(id).map_or(0, |(t, _)| t.version)
    }

    pub(super) fn put_traded(&mut self, swap: &Swap, deadline: StoreMs) -> u64 {
        let version = swap.expect + 1;
        let attempts = self.traded.get(&swap.id).map_or(0, |(t, _)| t.attempts);
        let terms = Some(swap.terms.clone());
        let traded = Traded {
            version,
            terms,
            allotment: swap.allotment.clone(),
            attempts,
        };
        self.deadlines
            .push(Reverse((deadline, Place::Traded(swap.id.clone()))));
        self.traded.insert(swap.id.clone(), (traded, deadline));
        version
    }

    pub(super) fn traded_ids(&self, limit: usize) -> Vec<MeterId> {
        let mut ids: Vec<MeterId> = self
            .traded
            .iter()
            .filter(|(_, (t, _))| t.version > 0)
            .map(|(id, _)| id.clone())
            .collect();
        ids.sort_unstable();
        ids.truncate(limit);
        ids
    }

    /// Counts what was asked of a key that is traded, or was just refused.
    pub(super) fn count_attempts(&mut self, id: &MeterId, units: u64, refused: bool, now: StoreMs) {
        match self.traded.get_mut(id) {
            Some((traded, deadline)) => {
                traded.attempts += units;
                if traded.version == 0 {
                    let until = now.plus(ATTEMPTS_TTL_MS);
                    if until < *deadline {
                        self.deadlines
                            .push(Reverse((until, Place::Traded(id.clone()))));
                    }
                    *deadline = until;
                }
            }
            None if refused => {
                let deadline = now.plus(ATTEMPTS_TTL_MS);
                self.deadlines
                    .push(Reverse((deadline, Place::Traded(id.clone()))));
                self.traded.insert(
                    id.clone(),
                    (
                        Traded {
                            attempts: units,
                            ..Traded::default()
                        },
                        deadline,
                    ),
                );
            }
            None => {}
        }
    }

    pub(super) fn count_usage(
        &mut self,
        key: &Key,
        start: StoreMs,
        keep_until: StoreMs,
        more: Counts,
    ) {
        let slot = self.slot(key, start, keep_until, None);
        *slot = slot.plus(more);
        self.note_change((key.clone(), start, None));
    }

    pub(super) fn merge(&mut self, slot: UsageSlot) {
        let actor = Some(slot.slot.actor);
        let held = self.slot(&slot.key, slot.period, slot.keep_until, actor.clone());
        let merged = held.max(slot.slot.counts);
        if merged != *held {
            *held = merged;
            self.note_change((slot.key, slot.period, actor));
        }
    }

    fn slot(
        &mut self,
        key: &Key,
        start: StoreMs,
        keep_until: StoreMs,
        actor: Option<Actor>,
    ) -> &mut Counts {
        let at = (key.clone(), start);
        if !self.usage.contains_key(&at) {
            self.deadlines
                .push(Reverse((keep_until, Place::Usage(key.clone(), start))));
        }
        let (slots, _) = self
            .usage
            .entry(at)
            .or_insert_with(|| (Slots::new(), keep_until));
        slots.entry(actor).or_default()
    }

    fn note_change(&mut self, key: FeedKey) {
        self.forget_change(&key);
        self.seq += 1;
        self.feed.insert(self.seq, key.clone());
        self.positions.insert(key, self.seq);
    }

    pub(super) fn usage(&self, key: &Key, start: StoreMs) -> Vec<(Option<Actor>, Counts)> {
        let slots = self
            .usage
            .get(&(key.clone(), start))
            .map(|(slots, _)| slots.clone());
        slots.unwrap_or_default().into_iter().collect()
    }

    pub(super) fn feed(&self, now: StoreMs, reader: &str, limit: usize) -> FeedPage {
        let acked = self.acks.get(reader).copied().unwrap_or(0);
        let mut changes = self.feed.range(acked + 1..);
        let page: Vec<(u64, &FeedKey)> = changes
            .by_ref()
            .take(limit)
            .map(|(seq, key)| (*seq, key))
            .collect();
        let seq = page.last().map_or(acked, |(seq, _)| *seq);
        let entry = |(key, period, actor): &FeedKey| {
            let slots = self
                .usage
                .get(&(key.clone(), *period))
                .map(|(slots, _)| slots);
            let counts = slots
                .and_then(|slots| slots.get(actor))
                .copied()
                .unwrap_or_default();
            FeedEntry {
                key: key.clone(),
                period: *period,
                actor: actor.clone(),
                counts,
            }
        };
        let entries = page.iter().map(|(_, key)| entry(key)).collect();
        FeedPage {
            now,
            entries,
            seq,
            more: changes.next().is_some(),
        }
    }

    pub(super) fn ack(&mut self, reader: String, seq: u64) {
        let acked = self.acks.entry(reader).or_default();
        *acked = (*acked).max(seq);
    }
}

/// Removes an entry whose deadline has passed; otherwise says when it will, if there is one.
fn expire_entry<K: std::hash::Hash + Eq, V>(
    map: &mut HashMap<K, (V, StoreMs)>,
    key: &K,
    now: StoreMs,
) -> Option<StoreMs> {
    let deadline = map.get(key).map(|(_, at)| *at)?;
    if deadline <= now {
        map.remove(key);
        return None;
    }
    Some(deadline)
}
