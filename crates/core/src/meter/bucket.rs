//! The token bucket: it refills along the schedule, piece by piece, to its capacity less what is held.

use super::{HOLDS_MAX, Hold, Reading, Rule, Terms, holds_in_epoch};
use crate::fence::{Fence, Missing, SPAN_MS};
use crate::ids::{Epoch, StoreMs};
use crate::schedule::Schedule;

/// The stored state: `tokens` micro-units at the moment `at`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    pub tokens: u64,
    pub at: StoreMs,
    pub epoch: Epoch,
    pub holds: Vec<Hold>,
}

/// A bucket settled to a moment, with what it stands under.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled<'a> {
    pub bucket: Bucket,
    pub reading: Reading,
    /// False outside the span: then a write keeps the moment, the epoch and the time to live as they were.
    pub inside: bool,
    schedule: &'a Schedule,
}

impl Bucket {
    /// How long from `now` to keep a bucket under `schedule`: until its absence means the same as its presence.
    pub fn ttl_ms(&self, schedule: &Schedule, now: StoreMs) -> u64 {
        let holds = self
            .holds
            .iter()
            .map(|h| h.until.since(now))
            .max()
            .unwrap_or(0);
        schedule.refill_ms(now) + holds + self.at.since(now) + SPAN_MS
    }

    /// Settles `stored` to `now`. `terms` are those of the key's last swap, if it is traded.
    ///
    /// # Panics
    /// Where `rule` isn't a bucket's.
    pub fn settle<'a>(
        stored: Option<&Self>,
        rule: &'a Rule,
        terms: Option<&'a Terms>,
        fence: &Fence,
        now: StoreMs,
    ) -> Settled<'a> {
        let Rule::Bucket { schedule: untraded } = rule else {
            panic!("a bucket is settled under a bucket's rule");
        };
        let (schedule, own_cap) = match terms {
            Some(Terms::Bucket {
                epoch,
                schedule,
                own_cap,
            }) if *epoch == fence.record.epoch => (schedule, *own_cap),
            Some(Terms::Bucket { own_cap, .. }) => (untraded, untraded.least_cap().min(*own_cap)),
            _ => (untraded, untraded.least_cap()),
        };
        if !fence.span.contains(now) {
            let bucket = stored.cloned().unwrap_or(Self {
                tokens: 0,
                at: now,
                epoch: fence.record.epoch,
                holds: vec![],
            });
            let held = held(&bucket.holds);
            let spendable = bucket.tokens.min(own_cap.saturating_sub(held));
            let flow = crate::schedule::Flow {
                cap: own_cap,
                ..crate::schedule::Flow::NONE
            };
            return Settled {
                bucket,
                reading: Reading::Bucket {
                    spendable,
                    held,
                    flow,
                },
                inside: false,
                schedule,
            };
        }
        let flow = schedule.at(now);
        let (tokens, at, holds) = match stored {
            Some(b) if b.epoch == fence.record.epoch => (b.tokens, b.at, b.holds.clone()),
            Some(b) => (
                b.tokens,
                fence.epoch_began,
                holds_in_epoch(&b.holds, b.epoch, fence),
            ),
            // A meter is kept until it is surely full under the last step of its schedule, traded or not.
            None => match fence.missing {
                Missing::Full => (flow.cap, now, vec![]),
                Missing::EmptyAt(moment) => (0, moment, vec![]),
            },
        };
        let tokens = refill(schedule, tokens, at, now.max(at), &holds);
        let holds: Vec<Hold> = holds.into_iter().filter(|h| h.until > now).collect();
        let held = held(&holds);
        let tokens = tokens.min(flow.cap.saturating_sub(held));
        let bucket = Self {
            tokens,
            at: at.max(now),
            epoch: fence.record.epoch,
            holds,
        };
        Settled {
            reading: Reading::Bucket {
                spendable: tokens,
                held,
                flow,
            },
            bucket,
            inside: true,
            schedule,
        }
    }
}

impl Settled<'_> {
    /// Takes `cost` out, to be put back by `hold` if one is given. The caller has seen that it fits.
    pub fn charge(&mut self, cost: u64, hold: Option<Hold>) {
        self.bucket.tokens -= cost;
        self.bucket.holds.extend(hold);
        self.read();
    }

    pub fn can_hold(&self) -> bool {
        self.bucket.holds.len() < HOLDS_MAX
    }

    /// How long from `now` the bucket is to be kept.
    pub fn ttl_ms(&self, now: StoreMs) -> u64 {
        self.bucket.ttl_ms(self.schedule, now)
    }

    /// Ends the hold `id`; its units come back where `release`. False where there is no such hold (any more).
    pub fn end_hold(&mut self, id: u64, release: bool) -> bool {
        let Some(index) = self.bucket.holds.iter().position(|h| h.id == id) else {
            return false;
        };
        let hold = self.bucket.holds.remove(index);
        if release {
            self.bucket.tokens += hold.units;
        }
        self.read();
        true
    }

    fn read(&mut self) {
        if let Reading::Bucket {
            spendable,
            held: out,
            flow,
        } = &mut self.reading
        {
            *out = held(&self.bucket.holds);
            *spendable = match self.inside {
                true => self.bucket.tokens,
                false => self.bucket.tokens.min(flow.cap.saturating_sub(*out)),
            };
        }
    }
}

/// Settles piece by piece also where a hold runs out: what it held is spent then, and may flow in again.
fn refill(schedule: &Schedule, tokens: u64, from: StoreMs, to: StoreMs, holds: &[Hold]) -> u64 {
    let mut ends: Vec<StoreMs> = holds.iter().map(|h| h.until).collect();
    ends.retain(|end| from < *end && *end < to);
    ends.sort_unstable();
    ends.push(to);
    let (mut tokens, mut moment) = (tokens, from);
    for end in ends {
        let out = holds
            .iter()
            .filter(|h| h.until > moment)
            .map(|h| h.units)
            .sum();
        tokens = schedule.settle(tokens, moment, end, out);
        moment = end;
    }
    tokens
}

fn held(holds: &[Hold]) -> u64 {
    holds.iter().map(|h| h.units).sum()
}
