//! Concurrency: slots taken and released, and free again after a time if nobody releases them.

use super::{Meter, Settled, State};
use crate::fence::Fence;
use crate::ids::StoreMs;
use crate::meter::Part;

impl Settled<'_> {
    /// Outside the span no slot comes back by itself.
    pub(super) fn settle_slots(&mut self, stored: Option<&Meter>, slot_ttl_ms: u64, fence: &Fence) {
        self.of = match self.rule.part {
            Part::Whole => self.rule.limits.limit,
            _ => 0,
        };
        self.blocked = stored.is_none() && self.may_be_lost(slot_ttl_ms, fence);
        if self.inside {
            self.end_holds();
        }
        self.meter.state = State::Slots;
    }

    /// When enough slots are over for `need` to fit, if none is released before.
    pub(super) fn slots_free(&self, need: u64) -> Option<StoreMs> {
        let mut holds = self.meter.holds.clone();
        holds.sort_by_key(|h| h.until);
        let mut short = (need + self.meter.held()).saturating_sub(self.of);
        let enough = holds.iter().find(|h| {
            short = short.saturating_sub(h.units);
            short == 0
        });
        enough.map(|h| h.until)
    }
}
