//! A map whose entries expire.

use apportion_core::StoreMs;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

#[derive(Clone, Debug)]
pub(super) struct Expiring<K, V> {
    entries: HashMap<K, (V, StoreMs)>,
    /// A deadline may have been moved since: then the entry itself knows better.
    deadlines: BinaryHeap<Reverse<(StoreMs, K)>>,
}

impl<K: Clone + Eq + Hash + Ord, V> Expiring<K, V> {
    /// Takes out what has expired.
    pub(super) fn expire(&mut self, now: StoreMs) -> Vec<(K, V)> {
        let mut gone = Vec::new();
        while self
            .deadlines
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= now)
        {
            let Some(Reverse((_, key))) = self.deadlines.pop() else {
                return gone;
            };
            match self.entries.get(&key).map(|(_, at)| *at) {
                Some(at) if at > now => self.deadlines.push(Reverse((at, key))),
                Some(_) => {
                    if let Some((value, _)) = self.entries.remove(&key) {
                        gone.push((key, value));
                    }
                }
                None => {}
            }
        }
        gone
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    pub(super) fn deadline(&self, key: &K) -> Option<StoreMs> {
        self.entries.get(key).map(|(_, at)| *at)
    }

    /// Stores `value` until `deadline`.
    pub(super) fn put(&mut self, key: K, value: V, deadline: StoreMs) {
        self.note(&key, deadline);
        self.entries.insert(key, (value, deadline));
    }

    /// Moves the deadline of what is there.
    pub(super) fn keep_until(&mut self, key: &K, deadline: StoreMs) {
        self.note(key, deadline);
        if let Some((_, at)) = self.entries.get_mut(key) {
            *at = deadline;
        }
    }

    fn note(&mut self, key: &K, deadline: StoreMs) {
        if self.deadline(key).is_none_or(|at| deadline < at) {
            self.deadlines.push(Reverse((deadline, key.clone())));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (value, _))| (key, value))
    }
}

impl<K: Ord, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            deadlines: BinaryHeap::new(),
        }
    }
}
