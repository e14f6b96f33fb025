//! One partition's data, and what expires of it.

use super::expiring::Expiring;
use crate::op::*;
use apportion_core::meter::{Beside, Keep, MEMBER_IDLE_MS, Meter, Pool, Terms};
use apportion_core::planted::{self, Bug};
use apportion_core::tally::Tally;
use apportion_core::usage::Counts;
use apportion_core::{Actor, Key, StoreMs};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    meters: Expiring<MeterId, Meter>,
    overdrafts: Expiring<MeterId, Meter>,
    known: Expiring<MeterId, Meter>,
    pools: Expiring<MeterId, Pool>,
    traded: Expiring<MeterId, Traded>,
    usage: Expiring<(Key, StoreMs), Slots>,
    tallies: Expiring<MeterId, Tallies>,
    /// What changed, by the number of the change.
    feed: BTreeMap<u64, Changed>,
    positions: HashMap<Changed, u64>,
    seq: u64,
    acks: HashMap<String, u64>,
}

type Slots = BTreeMap<Option<Actor>, Counts>;
type Tallies = BTreeMap<Option<Actor>, Tally>;

/// A usage slot or a tally.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Changed {
    Usage(Key, StoreMs, Option<Actor>),
    Tally(MeterId, Option<Actor>),
}

impl Data {
    pub(super) fn expire(&mut self, now: StoreMs) {
        self.meters.expire(now);
        self.overdrafts.expire(now);
        self.known.expire(now);
        self.pools.expire(now);
        self.traded.expire(now);
        for ((key, start), slots) in self.usage.expire(now) {
            for actor in slots.into_keys() {
                self.forget_change(&Changed::Usage(key.clone(), start, actor));
            }
        }
        for (id, tallies) in self.tallies.expire(now) {
            for actor in tallies.into_keys() {
                self.forget_change(&Changed::Tally(id.clone(), actor));
            }
        }
    }

    fn forget_change(&mut self, key: &Changed) {
        if let Some(seq) = self.positions.remove(key) {
            self.feed.remove(&seq);
        }
    }

    pub(super) fn meter(&self, id: &MeterId) -> Option<&Meter> {
        self.meters.get(id)
    }

    pub(super) fn deadline(&self, id: &MeterId) -> Option<StoreMs> {
        self.meters.deadline(id)
    }

    pub(super) fn put_meter(&mut self, id: MeterId, meter: Meter, now: StoreMs, keep: Keep) {
        put(&mut self.meters, id, meter, now, keep);
    }

    /// What stands beside a meter that may go over.
    pub(super) fn beside(&self, id: &MeterId) -> Beside<Option<&Meter>> {
        Beside {
            overdraft: self.overdrafts.get(id),
            known: self.known.get(id),
        }
    }

    pub(super) fn put_overdraft(&mut self, id: MeterId, meter: Meter, now: StoreMs, keep: Keep) {
        put(&mut self.overdrafts, id, meter, now, keep);
    }

    pub(super) fn put_known(&mut self, id: MeterId, meter: Meter, now: StoreMs, keep: Keep) {
        put(&mut self.known, id, meter, now, keep);
    }

    pub(super) fn tally(&self, id: &MeterId, actor: &Option<Actor>) -> Option<Tally> {
        self.tallies.get(id)?.get(actor).copied()
    }

    pub(super) fn put_tally(
        &mut self,
        id: &MeterId,
        actor: Option<Actor>,
        tally: Tally,
        deadline: StoreMs,
    ) {
        let mut tallies = self.tallies.get(id).cloned().unwrap_or_default();
        tallies.insert(actor.clone(), tally);
        self.tallies.put(id.clone(), tallies, deadline);
        self.note_change(Changed::Tally(id.clone(), actor));
    }

    pub(super) fn pool(&self, id: &MeterId) -> Pool {
        self.pools.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn put_pool(&mut self, id: MeterId, pool: Pool, now: StoreMs) {
        self.pools.put(id, pool, now.plus(MEMBER_IDLE_MS));
    }

    pub(super) fn snapshot(&self, id: &MeterId) -> Snapshot {
        Snapshot {
            meter: self.meter(id).cloned(),
            traded: self.traded.get(id).cloned(),
        }
    }

    pub(super) fn terms(&self, id: &MeterId) -> Option<Terms> {
        let terms = self.traded.get(id).and_then(|t| t.terms.clone());
        if planted::is_on(Bug::CrossWindow) && terms.is_none() {
            let before = MeterId {
                key: id.key.clone(),
                label: id.label.map(|label| label.saturating_sub(1)),
            };
            return self.traded.get(&before).and_then(|t| t.terms.clone());
        }
        terms
    }

    pub(super) fn version(&self, id: &MeterId) -> u64 {
        self.traded.get(id).map_or(0, |t| t.version)
    }

    pub(super) fn put_traded(&mut self, swap: &Swap, deadline: StoreMs) -> u64 {
        let version = swap.expect + 1;
        let attempts = self.traded.get(&swap.id).map_or(0, |t| t.attempts);
        let terms = Some(swap.terms.clone());
        let traded = Traded {
            version,
            terms,
            allotment: swap.allotment.clone(),
            attempts,
        };
        self.traded.put(swap.id.clone(), traded, deadline);
        version
    }

    pub(super) fn traded_ids(&self, limit: usize) -> Vec<MeterId> {
        let mut ids: Vec<MeterId> = self
            .traded
            .iter()
            .filter(|(_, t)| t.version > 0)
            .map(|(id, _)| id.clone())
            .collect();
        ids.sort_unstable();
        ids.truncate(limit);
        ids
    }

    /// Counts what was asked of a key that is traded, or was just refused.
    pub(super) fn count_attempts(&mut self, id: &MeterId, units: u64, refused: bool, now: StoreMs) {
        match self.traded.get_mut(id) {
            Some(traded) => {
                traded.attempts += units;
                if traded.version == 0 {
                    self.traded.keep_until(id, now.plus(ATTEMPTS_TTL_MS));
                }
            }
            None if refused => {
                let traded = Traded {
                    attempts: units,
                    ..Traded::default()
                };
                self.traded
                    .put(id.clone(), traded, now.plus(ATTEMPTS_TTL_MS));
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
        self.note_change(Changed::Usage(key.clone(), start, None));
    }

    pub(super) fn merge(&mut self, slot: UsageSlot) {
        let actor = Some(slot.slot.actor);
        let held = self.slot(&slot.key, slot.period, slot.keep_until, actor.clone());
        let merged = match planted::is_on(Bug::UsageAddedUp) {
            true => held.plus(slot.slot.counts),
            false => held.max(slot.slot.counts),
        };
        if merged != *held {
            *held = merged;
            self.note_change(Changed::Usage(slot.key, slot.period, actor));
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
        if self.usage.get(&at).is_none() {
            self.usage.put(at.clone(), Slots::new(), keep_until);
        }
        let slots = self.usage.get_mut(&at).expect("it was put there");
        slots.entry(actor).or_default()
    }

    fn note_change(&mut self, key: Changed) {
        self.forget_change(&key);
        self.seq += 1;
        self.feed.insert(self.seq, key.clone());
        self.positions.insert(key, self.seq);
    }

    pub(super) fn usage(&self, key: &Key, start: StoreMs) -> Vec<(Option<Actor>, Counts)> {
        let slots = self.usage.get(&(key.clone(), start)).cloned();
        slots.unwrap_or_default().into_iter().collect()
    }

    pub(super) fn feed(&self, now: StoreMs, reader: &str, limit: usize) -> FeedPage {
        let acked = self.acks.get(reader).copied().unwrap_or(0);
        let mut changes = self.feed.range(acked + 1..);
        let page: Vec<(u64, &Changed)> = changes
            .by_ref()
            .take(limit)
            .map(|(seq, key)| (*seq, key))
            .collect();
        let seq = page.last().map_or(acked, |(seq, _)| *seq);
        let (mut entries, mut tallies) = (Vec::new(), Vec::new());
        for (_, changed) in page {
            match changed {
                Changed::Usage(key, period, actor) => {
                    let slots = self.usage.get(&(key.clone(), *period));
                    let counts = slots.and_then(|slots| slots.get(actor));
                    entries.push(FeedEntry {
                        key: key.clone(),
                        period: *period,
                        actor: actor.clone(),
                        counts: counts.copied().unwrap_or_default(),
                    });
                }
                Changed::Tally(id, actor) => tallies.push(TallyEntry {
                    id: id.clone(),
                    actor: actor.clone(),
                    tally: self.tally(id, actor).unwrap_or_default(),
                }),
            }
        }
        FeedPage {
            now,
            entries,
            tallies,
            seq,
            more: changes.next().is_some(),
        }
    }

    /// Nothing is traded, and nothing was counted.
    pub(super) fn is_quiet(&self) -> bool {
        self.feed.is_empty() && self.traded.is_empty()
    }

    pub(super) fn ack(&mut self, reader: String, seq: u64) {
        let acked = self.acks.entry(reader).or_default();
        *acked = (*acked).max(seq);
    }
}

fn put(to: &mut Expiring<MeterId, Meter>, id: MeterId, meter: Meter, now: StoreMs, keep: Keep) {
    let had = to.deadline(&id).unwrap_or_default();
    let deadline = match keep {
        Keep::For(ttl_ms) => now.plus(ttl_ms.max(1)),
        Keep::AtLeast(ttl_ms) => now.plus(ttl_ms.max(1)).max(had),
        Keep::AsItWas => now.plus(1).max(had),
    };
    to.put(id, meter, deadline);
}
