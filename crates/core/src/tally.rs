//! Tallies: how much one actor admitted of a key whose policy is allowed to err, so that its peers know.
//!
//! A tally is absolute and only grows, so that resending one is harmless. One that was forgotten begins anew, and says
//! since when it counts: two of the same actor are never added up or compared by mistake.

use crate::ids::StoreMs;
use crate::schedule::EXACT;

/// A tally remembers apart what was admitted in the last one to two cells of time, which are at least so long.
pub const CELL_MIN_MS: u64 = 2_500;
/// A tally of what isn't a window is kept so much longer than its cells.
pub const TALLY_TTL_MS: u64 = 60_000;

/// What one actor admitted of one key, in whole units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Since when, on the actor's own clock.
    pub began: StoreMs,
    pub units: u64,
    /// The cell of time in which it last grew.
    pub cell: u64,
    /// What it said when that cell began, and one cell earlier.
    pub at_cell: u64,
    pub at_cell_before: u64,
}

/// What a peer is told of a tally.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub began: StoreMs,
    pub units: u64,
    /// Of these, what may still matter to a rate or a sliding window.
    pub recent: u64,
}

/// The cells of a tally, where what was admitted matters for `matters_ms`.
pub const fn cell_ms(matters_ms: u64) -> u64 {
    if matters_ms / 2 > CELL_MIN_MS {
        matters_ms / 2
    } else {
        CELL_MIN_MS
    }
}

impl Tally {
    pub fn new(now: StoreMs) -> Self {
        Self {
            began: now,
            ..Self::default()
        }
    }

    /// As it was heard from a peer.
    pub fn heard(told: &Told) -> Self {
        Self {
            began: told.began,
            units: told.units,
            ..Self::default()
        }
    }

    pub fn count(&mut self, units: u64, now: StoreMs, cell_ms: u64) {
        let cell = now.0 / cell_ms;
        if cell != self.cell {
            self.at_cell_before = if cell == self.cell + 1 {
                self.at_cell
            } else {
                self.units
            };
            self.at_cell = self.units;
            self.cell = cell;
        }
        self.units = (self.units + units).min(EXACT);
    }

    /// What a peer is to be told at `now`.
    pub fn told(&self, now: StoreMs, cell_ms: u64) -> Told {
        let recent = match (now.0 / cell_ms).checked_sub(self.cell) {
            Some(0) => self.units - self.at_cell_before,
            Some(1) => self.units - self.at_cell,
            _ => 0,
        };
        Told {
            began: self.began,
            units: self.units,
            recent,
        }
    }

    /// What `told` says beyond this; `None` where it is older.
    pub fn more_in(&self, told: &Told) -> Option<u64> {
        match told.began.cmp(&self.began) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => {
                Some(told.units.saturating_sub(self.units)).filter(|m| *m > 0)
            }
            std::cmp::Ordering::Greater => Some(told.units),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: u64 = 1_000;

    #[test]
    fn what_is_recent_is_of_this_cell_and_the_one_before() {
        let mut tally = Tally::new(StoreMs(10_500));
        tally.count(5, StoreMs(10_500), CELL);
        tally.count(3, StoreMs(11_200), CELL);
        let recent = |tally: &Tally, ms| tally.told(StoreMs(ms), CELL).recent;
        assert_eq!(recent(&tally, 11_999), 8);
        assert_eq!(recent(&tally, 12_000), 3);
        assert_eq!(recent(&tally, 13_000), 0);
        tally.count(1, StoreMs(12_000), CELL);
        assert_eq!(recent(&tally, 12_500), 4);
        tally.count(2, StoreMs(20_000), CELL);
        assert_eq!(tally.told(StoreMs(20_000), CELL).units, 11);
        assert_eq!(recent(&tally, 20_000), 2);
    }

    #[test]
    fn what_was_heard_counts_once_and_what_is_older_not_at_all() {
        let told = |began, units| Told {
            began: StoreMs(began),
            units,
            recent: units,
        };
        let tally = Tally::heard(&told(7, 10));
        assert_eq!(tally.more_in(&told(7, 12)), Some(2));
        assert_eq!(tally.more_in(&told(7, 10)), None);
        assert_eq!(tally.more_in(&told(7, 9)), None);
        assert_eq!(tally.more_in(&told(6, 99)), None);
        assert_eq!(
            tally.more_in(&told(8, 3)),
            Some(3),
            "it has begun to count anew"
        );
    }
}
