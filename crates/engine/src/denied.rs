//! What the store has refused lately, so that a node can refuse the same again without asking.
//!
//! It only ever refuses what the store would refuse too: a request that needs no less of the same key, under the same
//! limits and the same rules, before the moment that the meter itself named. What could change that sooner has a
//! say in how long an entry is used, or takes it out: [`DeniedCache::changed`].
//!
//! Nothing is lost by it: what is refused here is counted, and told to the store with the next call on the key, or
//! by [`Engine::flush_denied`](crate::Engine::flush_denied).

use crate::report::Told;
use apportion_core::meter::reserve;
use apportion_core::schedule::EXACT;
use apportion_core::{Key, Limits, Policy};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// So many keys are remembered.
pub const DENIED_MAX: usize = 10_000;
/// What was refused here is told to the store after so long, if it wasn't before.
pub const TELL_AFTER_MS: u64 = 1_000;

/// Units that are counted of a key before the store is told; beyond, the count stays. A thousand times as many are still
/// exact in Lua.
const UNITS_MAX: u64 = EXACT >> 10;

const SHARDS: usize = 64;
const SHARD_MAX: usize = DENIED_MAX / SHARDS;
/// Keys share a place where it is noted when one of them changed last.
const CHANGES: usize = 1_024;

/// Shared by the requests of a node. The sync side tells it of what it changes.
pub struct DeniedCache {
    /// Milliseconds, never going back.
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    is_off: bool,
    /// So that nobody can choose keys that collide.
    seed: u64,
    shards: Vec<Mutex<Shard>>,
    /// Entries, and counts without an entry.
    occupied: AtomicUsize,
    changes: AtomicU64,
    /// The number of the last change of any key with this place.
    changed: Vec<AtomicU64>,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u128, Entry, BuildHasherDefault<TakeAsIs>>,
    /// Counts of entries that had to go.
    left: Vec<Unsent>,
}

struct Entry {
    refusal: Refusal,
    /// Units refused here since the store was last told, and since when.
    denied: u64,
    denied_since: u64,
}

/// When a request asked the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    at_ms: u64,
    changes: u64,
}

/// One policy's refusal of one key, as the store told it.
pub(crate) struct Refusal {
    pub(crate) key: Key,
    pub(crate) policy: Arc<Policy>,
    pub(crate) limits: Limits,
    /// Of the rules under which it was told.
    pub(crate) rules: u64,
    /// What was asked for and not there, in the rule's units.
    pub(crate) need: u64,
    pub(crate) told: Told,
    pub(crate) asked: Asked,
    /// For so long nothing changes that.
    pub(crate) sure_ms: u64,
    /// What the request's other policies said then.
    pub(crate) beside: Arc<[(Key, Told)]>,
}

/// What a request needs of a key.
pub(crate) struct Need<'a> {
    pub(crate) key: &'a Key,
    pub(crate) limits: Limits,
    pub(crate) rules: u64,
    /// In the rule's units.
    pub(crate) cost: u64,
    pub(crate) reserve_ppm: u32,
    /// In whole units.
    pub(crate) units: u64,
}

/// A refusal that still stands.
pub(crate) struct Hit {
    /// What the meter says by now.
    pub(crate) told: Told,
    pub(crate) since_ms: u64,
    pub(crate) beside: Arc<[(Key, Told)]>,
}

/// Units refused here that the store doesn't know of.
#[derive(Debug, Clone)]
pub(crate) struct Unsent {
    pub(crate) key: Key,
    pub(crate) policy: Arc<Policy>,
    pub(crate) limits: Limits,
    pub(crate) units: u64,
    pub(crate) since: u64,
}

/// The keys are hashes already.
#[derive(Default)]
struct TakeAsIs(u64);

// === impl DeniedCache ===

impl DeniedCache {
    /// Goes by `clock`: milliseconds since any moment, never going back. While it stands still, refusals go on.
    pub fn with_clock(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            is_off: false,
            seed: rand::random(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            occupied: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            changed: (0..CHANGES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Remembers nothing: every request is the store's to decide.
    pub fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// What was refused of `key` may be admitted now: a share was raised, something was given back.
    pub fn changed(&self, key: &Key) {
        let hash = self.hash(key);
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.last_change(hash).fetch_max(number, Ordering::SeqCst);
        let mut shard = self.shard(hash);
        if let Some(entry) = shard
            .entries
            .get_mut(&hash)
            .filter(|e| e.refusal.key == *key)
        {
            entry.refusal.sure_ms = 0;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.occupied.load(Ordering::Relaxed) == 0
    }

    /// To be called before the store is asked: from then on its answers may be old.
    pub(crate) fn ask(&self) -> Asked {
        Asked {
            at_ms: (self.clock)(),
            changes: self.changes.load(Ordering::SeqCst),
        }
    }

    /// Remembers what the store has refused, unless something has changed since it was asked.
    pub(crate) fn remember(&self, refusal: Refusal) {
        let hash = self.hash(&refusal.key);
        let mut shard = self.shard(hash);
        if self.is_off || self.last_change(hash).load(Ordering::SeqCst) > refusal.asked.changes {
            return;
        }
        let before = shard.total();
        if !shard.entries.contains_key(&hash) && shard.entries.len() >= SHARD_MAX {
            shard.forget_oldest();
        }
        let entry = match shard.entries.remove(&hash) {
            Some(entry) if entry.refusal.key == refusal.key => Entry { refusal, ..entry },
            // Another key with the same hash.
            Some(other) => {
                shard.leave(other);
                Entry::new(refusal)
            }
            None => Entry::new(refusal),
        };
        shard.entries.insert(hash, entry);
        self.count(before, &shard);
    }

    /// Whether the store would surely refuse. If so, the units count as refused.
    pub(crate) fn refuses(&self, need: &Need<'_>) -> Option<Hit> {
        let hash = self.hash(need.key);
        let mut shard = self.shard(hash);
        let entry = shard.entries.get_mut(&hash)?;
        let now = (self.clock)();
        let since_ms = entry.stands(need, now)?;
        if entry.denied == 0 {
            entry.denied_since = now;
        }
        entry.denied = add(entry.denied, need.units);
        Some(Hit {
            told: entry.refusal.told.after(since_ms),
            since_ms,
            beside: entry.refusal.beside.clone(),
        })
    }

    /// A request was admitted under these limits. What was refused under others may be admitted now: a meter goes on
    /// under those of the last request.
    pub(crate) fn admitted(&self, key: &Key, limits: Limits) {
        if self.is_empty() {
            return;
        }
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        if let Some(entry) = shard.entries.get_mut(&hash)
            && entry.refusal.limits != limits
        {
            entry.refusal.sure_ms = 0;
        }
    }

    /// Takes what was refused of `key`, to tell the store.
    pub(crate) fn take(&self, key: &Key) -> u64 {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        let entry = shard
            .entries
            .get_mut(&hash)
            .filter(|e| e.refusal.key == *key);
        entry.map_or(0, |entry| std::mem::take(&mut entry.denied))
    }

    /// The store wasn't told after all.
    pub(crate) fn put_back(&self, key: &Key, units: u64) {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        if let Some(entry) = shard
            .entries
            .get_mut(&hash)
            .filter(|e| e.refusal.key == *key)
        {
            if entry.denied == 0 {
                entry.denied_since = (self.clock)();
            }
            entry.denied = add(entry.denied, units);
        }
    }

    /// As [`DeniedCache::put_back`], for what [`DeniedCache::overdue`] gave: its entry may be gone.
    pub(crate) fn put_back_unsent(&self, unsent: Unsent) {
        let mut shard = self.shard(self.hash(&unsent.key));
        let before = shard.total();
        shard.keep(unsent);
        self.count(before, &shard);
    }

    /// Takes what the store hasn't been told for `after_ms`, of at most `most` keys. Forgets entries that are of no more
    /// use.
    pub(crate) fn overdue(&self, most: usize, after_ms: u64) -> Vec<Unsent> {
        let now = (self.clock)();
        let mut overdue = Vec::new();
        if self.is_empty() {
            return overdue;
        }
        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.total();
            let is_due = |since: u64| now.saturating_sub(since) >= after_ms;
            let room = most.saturating_sub(overdue.len()).min(shard.left.len());
            overdue.extend(shard.left.extract_if(..room, |u| is_due(u.since)));
            for entry in shard.entries.values_mut() {
                if overdue.len() < most && entry.denied > 0 && is_due(entry.denied_since) {
                    overdue.push(entry.take_unsent());
                }
            }
            shard.entries.retain(|_, e| e.denied > 0 || e.until() > now);
            self.count(before, &shard);
        }
        overdue
    }

    fn count(&self, before: usize, shard: &Shard) {
        let after = shard.total();
        if after >= before {
            self.occupied.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.occupied.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn hash(&self, key: &Key) -> u128 {
        xxh3_128_with_seed(key.as_str().as_bytes(), self.seed)
    }

    fn shard(&self, hash: u128) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 64) as usize % SHARDS])
    }

    fn last_change(&self, hash: u128) -> &AtomicU64 {
        &self.changed[(hash >> 80) as usize % CHANGES]
    }
}

impl Default for DeniedCache {
    fn default() -> Self {
        let start = Instant::now();
        Self::with_clock(move || {
            u64::try_from(start.elapsed().as_millis()).expect("no machine is up for so long")
        })
    }
}

impl fmt::Debug for DeniedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedCache")
            .field("occupied", &self.occupied)
            .finish_non_exhaustive()
    }
}

fn add(units: u64, more: u64) -> u64 {
    units.saturating_add(more).min(UNITS_MAX)
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().expect("nothing panics under the lock")
}

// === impl Shard ===

impl Shard {
    fn total(&self) -> usize {
        self.entries.len() + self.left.len()
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, e)| e.refusal.asked.at_ms);
        if let Some(hash) = oldest.map(|(hash, _)| *hash)
            && let Some(entry) = self.entries.remove(&hash)
        {
            self.leave(entry);
        }
    }

    /// Keeps the count of an entry that goes.
    fn leave(&mut self, mut entry: Entry) {
        if entry.denied > 0 {
            self.keep(entry.take_unsent());
        }
    }

    fn keep(&mut self, unsent: Unsent) {
        if let Some(same) = self.left.iter_mut().find(|u| u.key == unsent.key) {
            same.units = add(same.units, unsent.units);
        } else if self.left.len() < SHARD_MAX {
            self.left.push(unsent);
        } else {
            tracing::debug!(
                key = %unsent.key,
                units = unsent.units,
                "too many keys are refused: what was refused of this one isn't counted"
            );
        }
    }
}

// === impl Entry ===

impl Entry {
    fn new(refusal: Refusal) -> Self {
        Self {
            refusal,
            denied: 0,
            denied_since: 0,
        }
    }

    fn until(&self) -> u64 {
        let Refusal { asked, sure_ms, .. } = &self.refusal;
        asked.at_ms.saturating_add(*sure_ms)
    }

    /// If it refuses `need` too, for how long it has stood.
    fn stands(&self, need: &Need<'_>, now: u64) -> Option<u64> {
        let refusal = &self.refusal;
        let needed = need.cost + reserve(refusal.told.reading.of(), need.reserve_ppm);
        let stands = now < self.until()
            && needed >= refusal.need
            && need.limits == refusal.limits
            && need.rules == refusal.rules
            && need.key == &refusal.key;
        stands.then(|| now.saturating_sub(refusal.asked.at_ms))
    }

    fn take_unsent(&mut self) -> Unsent {
        Unsent {
            key: self.refusal.key.clone(),
            policy: self.refusal.policy.clone(),
            limits: self.refusal.limits,
            units: std::mem::take(&mut self.denied),
            since: self.denied_since,
        }
    }
}

// === impl TakeAsIs ===

impl Hasher for TakeAsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

#[cfg(test)]
mod tests;
