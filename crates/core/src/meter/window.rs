//! The fixed window: whole units counted against the rights of one window label.

use super::{Meter, Settled, State, Terms};
use crate::fence::Fence;
use crate::period::Period;

impl Settled<'_> {
    /// It has no rights once it is closed, and outside the span none where it isn't open yet: then the label may be
    /// one that this store has counted, and forgotten.
    pub(super) fn settle_window(
        &mut self,
        stored: Option<&Meter>,
        period: Period,
        terms: Option<&Terms>,
        fence: &Fence,
    ) {
        let used = stored.map_or(0, |m| match m.state {
            State::Window { used } => used,
            _ => 0,
        });
        let delta = match terms {
            Some(Terms::Window { delta }) => *delta,
            _ => 0,
        };
        let (_, end) = period.bounds(self.label);
        self.closed = !self.rule.is_lenient()
            && (end <= fence.closed_before || (stored.is_none() && !self.inside));
        if !self.closed {
            self.of = self
                .rule
                .window_base(self.label)
                .saturating_add_signed(delta);
        }
        if self.inside {
            self.end_holds();
        }
        self.meter.state = State::Window { used };
    }
}
