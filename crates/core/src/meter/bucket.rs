//! The token bucket: it refills along its shares, piece by piece, to its capacity less what is held. GCRA is kept as
//! one: arrival times would over-admit when a share changes.

use super::{Hold, Meter, Settled, State};
use crate::fence::{Fence, Missing};
use crate::ids::StoreMs;
use crate::planted::{self, Bug};
use crate::schedule::{Rate, Shares};

impl Settled<'_> {
    /// `began`: when the present epoch began, where the stored bucket is of an older one. It goes on from there.
    pub(super) fn settle_bucket(
        &mut self,
        stored: Option<&Meter>,
        began: Option<StoreMs>,
        fence: &Fence,
    ) {
        let stored = stored.and_then(|m| match m.state {
            State::Bucket { tokens, at } => Some((tokens, at)),
            _ => None,
        });
        if !self.inside {
            let unknown = if self.rule.is_lenient() { self.of } else { 0 };
            let (tokens, at) = stored.unwrap_or((unknown, self.now));
            // Nothing flows; nor will it for the time before, which would give back what is taken now.
            let at = began.unwrap_or(at).max(self.now);
            self.meter.state = State::Bucket { tokens, at };
            return;
        }
        let (tokens, at) = match (stored, fence.missing) {
            (Some((tokens, at)), _) => (tokens, began.unwrap_or(at)),
            // A meter is kept until it is surely full under the last of its shares, traded or not.
            (None, Missing::Full) => (self.of, self.now),
            (None, Missing::EmptyAt(_)) if self.rule.is_lenient() => (self.of, self.now),
            (None, Missing::EmptyAt(moment)) => (0, moment),
        };
        let to = self.now.max(at);
        let tokens = match self.shares {
            Some(shares) => refill(&self.rule.rate(), shares, tokens, at, to, &self.meter.holds),
            None => 0,
        };
        self.end_holds();
        let room = match () {
            () if planted::is_on(Bug::TokensKept) => u64::MAX,
            () if planted::is_on(Bug::HoldsNotKept) => self.of,
            () => self.of.saturating_sub(self.meter.held()),
        };
        self.meter.state = State::Bucket {
            tokens: tokens.min(room),
            at: to,
        };
    }
}

/// Settles piece by piece also where a hold runs out: what it held is spent then, and may flow in again.
fn refill(
    rate: &Rate,
    shares: &Shares,
    tokens: u64,
    from: StoreMs,
    to: StoreMs,
    holds: &[Hold],
) -> u64 {
    let mut ends: Vec<StoreMs> = holds.iter().map(|h| h.until).collect();
    ends.retain(|end| from < *end && *end < to);
    ends.sort_unstable();
    ends.push(to);
    let (mut tokens, mut moment) = (tokens, from);
    for end in ends {
        let held = holds
            .iter()
            .filter(|h| h.until > moment && !planted::is_on(Bug::HoldsNotKept))
            .map(|h| h.units)
            .sum();
        tokens = shares.settle(rate, tokens, moment, end, held);
        moment = end;
    }
    tokens
}
