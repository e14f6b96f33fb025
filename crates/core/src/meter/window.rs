//! The fixed window: whole units counted against the rights of one window label.

use super::{HOLDS_MAX, Hold, Reading, Rule, Terms, holds_in_epoch, label_at, label_bounds};
use crate::fence::{Fence, SPAN_MS};
use crate::ids::{Epoch, StoreMs};

/// The stored state of one label. What is held counts as used; the hold only says that it may be put back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Window {
    pub used: u64,
    pub epoch: Epoch,
    pub holds: Vec<Hold>,
}

/// A window read at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    pub window: Window,
    pub reading: Reading,
    pub label: u64,
    pub inside: bool,
    /// It has no rights, whatever the terms say.
    pub closed: bool,
    end: StoreMs,
    per_ms: u64,
}

impl Window {
    /// The label that a decision at `now` falls in.
    pub fn label(rule: &Rule, now: StoreMs) -> u64 {
        let Rule::Window { per_ms, .. } = rule else {
            panic!("a window is read under a window's rule");
        };
        label_at(now, *per_ms)
    }

    /// Reads the window of `label` at `now`.
    ///
    /// It has no rights once it is closed, and outside the span none where it isn't open yet: then the label may be
    /// one that this store has counted, and forgotten.
    pub fn settle(
        stored: Option<&Self>,
        label: u64,
        rule: &Rule,
        terms: Option<&Terms>,
        fence: &Fence,
        now: StoreMs,
    ) -> Settled {
        let Rule::Window { per_ms, .. } = rule else {
            panic!("a window is read under a window's rule");
        };
        let (_, end) = label_bounds(label, *per_ms);
        let inside = fence.span.contains(now);
        let delta = match terms {
            Some(Terms::Window { delta }) => *delta,
            _ => 0,
        };
        let closed = end <= fence.closed_before || (stored.is_none() && !inside);
        let rights = if closed {
            0
        } else {
            rule.window_base(label).saturating_add_signed(delta)
        };
        let mut window = stored.cloned().unwrap_or(Self {
            epoch: fence.record.epoch,
            ..Self::default()
        });
        if inside {
            window.holds = holds_in_epoch(&window.holds, window.epoch, fence);
            window.holds.retain(|h| h.until > now);
            window.epoch = fence.record.epoch;
        }
        let reading = Reading::Window {
            label,
            used: window.used,
            rights,
        };
        Settled {
            window,
            reading,
            label,
            inside,
            closed,
            end,
            per_ms: *per_ms,
        }
    }
}

impl Settled {
    /// Counts `cost`, to be put back by `hold` if one is given. The caller has seen that it fits.
    pub fn charge(&mut self, cost: u64, hold: Option<Hold>) {
        self.window.used += cost;
        self.window.holds.extend(hold);
        self.read();
    }

    pub fn can_hold(&self) -> bool {
        self.window.holds.len() < HOLDS_MAX
    }

    /// Kept past the end of the next label, so that a small step back finds it.
    pub fn ttl_ms(&self, now: StoreMs) -> u64 {
        self.end.plus(self.per_ms).since(now) + SPAN_MS
    }

    /// Ends the hold `id`; its units come back where `release`. False where there is no such hold (any more).
    pub fn end_hold(&mut self, id: u64, release: bool) -> bool {
        let Some(index) = self.window.holds.iter().position(|h| h.id == id) else {
            return false;
        };
        let hold = self.window.holds.remove(index);
        if release {
            self.window.used -= hold.units;
        }
        self.read();
        true
    }

    fn read(&mut self) {
        if let Reading::Window { used, .. } = &mut self.reading {
            *used = self.window.used;
        }
    }
}
