//! The sliding-window counter: units by cells of time.
//!
//! With one bucket the window before counts in proportion to what is left of it: previous x overlap + current. That is
//! right for traffic that came evenly, and up to twice the limit for traffic that came at the window's end; finer cells
//! alone don't help against that, since all of a cell may have come at its end. So with more buckets the oldest cell
//! counts in full while any of it lies in the window: never over the limit, and under it by at most one cell.

use super::{Meter, Settled, State};
use crate::fence::Fence;
use crate::ids::StoreMs;
use crate::policy::Algorithm;
use crate::schedule::EXACT;

/// The length of a cell, rounded up: the cells together are never less than the window.
const fn cell_ms(per_ms: u64, buckets: u32) -> u64 {
    per_ms.div_ceil(buckets as u64)
}

pub(super) const fn cell_start(cell: u64, per_ms: u64, buckets: u32) -> StoreMs {
    StoreMs(cell.saturating_mul(cell_ms(per_ms, buckets)))
}

impl Settled<'_> {
    /// `began`: when the present epoch began, where the counter is of an older one. All of it counts from there.
    pub(super) fn settle_counter(
        &mut self,
        stored: Option<&Meter>,
        began: Option<StoreMs>,
        per_ms: u64,
        buckets: u32,
        fence: &Fence,
    ) {
        let length = cell_ms(per_ms, buckets);
        let present = self.now.0 / length;
        let (mut cell, mut counts) = match stored.map(|m| &m.state) {
            Some(State::Counter { cell, counts }) => (*cell, counts.clone()),
            _ => (present, vec![0]),
        };
        self.blocked = stored.is_none() && self.may_be_lost(2 * per_ms, fence);
        if let Some(began) = began
            && self.inside
        {
            counts = vec![counts.iter().sum()];
            cell = began.0 / length;
        }
        // After a step back of the clock the newest cell goes on.
        let newest = cell.max(present);
        if self.inside {
            let passed = usize::try_from(newest - cell).unwrap_or(usize::MAX);
            let cells = buckets as usize + 1;
            let mut moved = vec![0; passed.min(cells)];
            moved.append(&mut counts);
            moved.truncate(cells);
            counts = moved;
        } else {
            // When any of it came isn't known, so all of it counts from now on.
            counts = vec![counts.iter().sum()];
        }
        if buckets == 1 {
            // What several windows of an older epoch put into one cell: more than any limit, and exact when multiplied.
            let most = EXACT / per_ms;
            counts
                .iter_mut()
                .for_each(|count| *count = (*count).min(most));
        }
        while counts.len() > 1 && counts.last() == Some(&0) {
            counts.pop();
        }
        self.meter.state = State::Counter {
            cell: newest,
            counts,
        };
        if self.inside {
            for hold in self.end_holds() {
                self.count(hold.units, self.now);
            }
        }
    }

    const fn cells(&self) -> (u64, u64, u64) {
        match self.rule.algorithm {
            Algorithm::SlidingWindow { per_ms, buckets } => {
                (per_ms, buckets as u64, cell_ms(per_ms, buckets))
            }
            _ => (1, 1, 1),
        }
    }

    /// What counts of the cells, rounded up.
    pub(super) fn count_cells(&self, cell: u64, counts: &[u64]) -> u64 {
        let (per_ms, buckets, length) = self.cells();
        if buckets > 1 || !self.inside {
            return counts.iter().sum();
        }
        let elapsed = self.now.0.saturating_sub(cell * length).min(per_ms);
        let previous = counts.get(1).copied().unwrap_or(0);
        counts[0] + (previous * (per_ms - elapsed)).div_ceil(per_ms)
    }

    /// When enough has gone for `need` to fit; `None`: not by that alone.
    pub(super) fn counter_frees(&self, cell: u64, counts: &[u64], need: u64) -> Option<StoreMs> {
        let (per_ms, buckets, length) = self.cells();
        // What may count beside `need`.
        let room = self.of.checked_sub(self.meter.held() + need)?;
        if buckets == 1 && self.inside {
            let previous = counts.get(1).copied().unwrap_or(0);
            // In this cell, and if not there in the next, where all of this one counts as the previous.
            let (begins, counted, whole) = match room.checked_sub(counts[0]) {
                Some(room) => (cell * length, previous, room),
                None => ((cell + 1) * length, counts[0], room),
            };
            let elapsed = match counted {
                0 => 0,
                counted => per_ms.saturating_sub(whole * per_ms / counted),
            };
            return Some(StoreMs(begins + elapsed));
        }
        let mut left: u64 = counts.iter().sum();
        for (age, count) in counts.iter().enumerate().rev() {
            left -= count;
            if left <= room {
                return Some(StoreMs((cell + buckets + 1 - age as u64) * length));
            }
        }
        None
    }

    pub(super) fn counter_ends(&self, cell: u64, counts: &[u64]) -> Option<StoreMs> {
        let (_, buckets, length) = self.cells();
        let newest = counts.iter().position(|count| *count > 0)?;
        Some(StoreMs(
            (cell + buckets + 1).saturating_sub(newest as u64) * length,
        ))
    }
}
