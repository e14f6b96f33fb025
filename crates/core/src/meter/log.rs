//! The sliding-window log: every admission is remembered until it is a whole period old.

use super::{Meter, Settled, State};
use crate::fence::Fence;
use crate::ids::StoreMs;

type Entries = [(StoreMs, u64)];

pub(super) fn total(entries: &Entries) -> u64 {
    entries.iter().map(|(_, units)| units).sum()
}

/// Adds what was admitted at `at`. Entries stay in the order of time: after a step back of the clock what is admitted
/// counts from the newest on.
pub(super) fn add(entries: &mut Vec<(StoreMs, u64)>, at: StoreMs, units: u64) {
    match entries.last_mut() {
        Some((last, counted)) if *last >= at => *counted += units,
        _ => entries.push((at, units)),
    }
}

impl Settled<'_> {
    /// `began`: when the present epoch began, where the log is of an older one. All of it counts from there.
    pub(super) fn settle_log(
        &mut self,
        stored: Option<&Meter>,
        began: Option<StoreMs>,
        per_ms: u64,
        fence: &Fence,
    ) {
        let mut entries = match stored.map(|m| &m.state) {
            Some(State::Log { entries }) => entries.clone(),
            _ => Vec::new(),
        };
        self.blocked = stored.is_none() && self.may_be_lost(per_ms, fence);
        if self.inside {
            if let Some(began) = began
                && !entries.is_empty()
            {
                entries = vec![(began, total(&entries))];
            }
            for hold in self.end_holds() {
                add(&mut entries, hold.until, hold.units);
            }
            entries.retain(|(at, _)| at.plus(per_ms) > self.now);
        }
        self.meter.state = State::Log { entries };
    }

    /// When enough entries have gone for `need` to fit; `None`: not by that alone.
    pub(super) fn log_frees(&self, entries: &Entries, need: u64) -> Option<StoreMs> {
        let mut short = (need + self.counted()).saturating_sub(self.of);
        let enough = entries.iter().find(|(_, units)| {
            short = short.saturating_sub(*units);
            short == 0
        });
        enough.map(|(at, _)| at.plus(self.longest_ms()))
    }

    pub(super) fn log_ends(&self, entries: &Entries) -> Option<StoreMs> {
        entries.last().map(|(at, _)| at.plus(self.longest_ms()))
    }
}
