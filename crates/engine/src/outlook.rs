//! Which windows have nothing left in any region, as far as is known here: for them no transfer is worth waiting for.

use apportion_core::Key;
use std::collections::{BTreeMap, HashMap};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// So many windows are remembered; one more, and the oldest is forgotten.
pub(crate) const WINDOWS_MAX: usize = 10_000;

/// Written by the sync side, read where a window refuses. A hint: nothing is admitted or refused by it.
#[derive(Debug, Default)]
pub struct Outlook {
    windows: RwLock<Windows>,
}

#[derive(Debug, Default)]
struct Windows {
    /// The number under which each was noted.
    exhausted: HashMap<(Key, u64), u64>,
    oldest_first: BTreeMap<u64, (Key, u64)>,
    noted: u64,
}

impl Outlook {
    /// Notes whether all rights of all regions are used up in the window `label`, until it ends.
    pub fn set_exhausted(&self, key: &Key, label: u64, exhausted: bool) {
        let mut windows = self.write();
        let window = (key.clone(), label);
        if exhausted {
            windows.note(window);
        } else {
            windows.forget(&window);
        }
    }

    pub fn is_exhausted(&self, key: &Key, label: u64) -> bool {
        self.read().exhausted.contains_key(&(key.clone(), label))
    }

    fn read(&self) -> RwLockReadGuard<'_, Windows> {
        self.windows.read().expect("nothing panics under the lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Windows> {
        self.windows.write().expect("nothing panics under the lock")
    }
}

// === impl Windows ===

impl Windows {
    fn note(&mut self, window: (Key, u64)) {
        if self.exhausted.contains_key(&window) {
            return;
        }
        if self.exhausted.len() >= WINDOWS_MAX
            && let Some((_, oldest)) = self.oldest_first.pop_first()
        {
            self.exhausted.remove(&oldest);
        }
        self.noted += 1;
        self.oldest_first.insert(self.noted, window.clone());
        self.exhausted.insert(window, self.noted);
    }

    fn forget(&mut self, window: &(Key, u64)) {
        if let Some(noted) = self.exhausted.remove(window) {
            self.oldest_first.remove(&noted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    #[test]
    fn a_window_is_exhausted_until_it_is_said_not_to_be() {
        let outlook = Outlook::default();
        let (a, b) = (key("pool@1:a"), key("pool@1:b"));
        assert!(!outlook.is_exhausted(&a, 7));
        outlook.set_exhausted(&a, 7, true);
        assert!(outlook.is_exhausted(&a, 7));
        assert!(!outlook.is_exhausted(&a, 8));
        assert!(!outlook.is_exhausted(&b, 7));
        outlook.set_exhausted(&a, 7, false);
        outlook.set_exhausted(&b, 7, false);
        assert!(!outlook.is_exhausted(&a, 7));
        assert!(outlook.read().oldest_first.is_empty());
    }

    #[test]
    fn the_oldest_window_makes_room_for_a_new_one() {
        let outlook = Outlook::default();
        let key = key("pool@1:a");
        for label in 0..=WINDOWS_MAX as u64 {
            outlook.set_exhausted(&key, label, true);
            outlook.set_exhausted(&key, label, true);
        }
        assert!(!outlook.is_exhausted(&key, 0));
        assert!(outlook.is_exhausted(&key, 1));
        assert!(outlook.is_exhausted(&key, WINDOWS_MAX as u64));
        let windows = outlook.read();
        assert_eq!(windows.exhausted.len(), WINDOWS_MAX);
        assert_eq!(windows.oldest_first.len(), WINDOWS_MAX);
    }
}
