//! What happens next: events in the order of time, and of their making where that is the same.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Queue<E> {
    made: u64,
    events: BinaryHeap<Reverse<Scheduled<E>>>,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: u64,
    order: u64,
    event: E,
}

// === impl Queue ===

impl<E> Queue<E> {
    pub(super) fn push(&mut self, at: u64, event: E) {
        self.made += 1;
        let order = self.made;
        self.events.push(Reverse(Scheduled { at, order, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse(next) = self.events.pop()?;
        Some((next.at, next.event))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            made: 0,
            events: BinaryHeap::new(),
        }
    }
}

// === impl Scheduled ===

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
