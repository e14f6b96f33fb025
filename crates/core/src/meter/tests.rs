//! What each meter promises, at the tick, one before and one after.

mod buckets;
mod counters;
mod logs;
mod slack;
mod slots;
mod windows;

use super::*;
use crate::fence::{Missing, SPAN_MS, Span};
use crate::ids::{Life, Record};
use crate::period::Period;
use crate::schedule::{MICRO, PPB, Step};

const T0: u64 = 1_700_000_000_000;
const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;

fn at(ms: u64) -> StoreMs {
    StoreMs(T0 + ms)
}

fn fence() -> Fence {
    Fence {
        record: Record {
            life: Life::from_random(1),
            epoch: Epoch(1),
            revision: 1,
        },
        span: Span {
            from: at(0),
            until: at(400 * DAY_MS),
        },
        epoch_began: at(0),
        missing: Missing::Full,
        closed_before: StoreMs(0),
        replicated: false,
    }
}

fn outside() -> Fence {
    Fence {
        span: Span::never(),
        ..fence()
    }
}

fn kept_ms(settled: &Settled<'_>) -> u64 {
    match settled.keep() {
        Keep::For(ms) => ms,
        other => panic!("{other:?}"),
    }
}

/// In the epoch after that of [`fence`].
fn next_epoch(began: StoreMs) -> Fence {
    let mut fence = fence();
    fence.record.epoch = Epoch(2);
    fence.epoch_began = began;
    fence
}

/// The store may have lost what it had at `moment`.
fn doubted(moment: StoreMs) -> Fence {
    Fence {
        missing: Missing::EmptyAt(moment),
        ..fence()
    }
}

fn rule(algorithm: Algorithm, limit: u64, part: Part) -> Rule {
    Rule {
        algorithm,
        limits: Limits::of(limit),
        by_plan: false,
        fill_ms: 0,
        part,
        slack: Slack::Nothing,
    }
}

/// With all of the budget, in one region.
fn whole(algorithm: Algorithm, limit: u64) -> Rule {
    rule(algorithm, limit, Part::Shares(Shares::constant(PPB)))
}

fn terms(ppb: u64, own_ppb: u64) -> Terms {
    Terms::Loans {
        epoch: Epoch(1),
        shares: Shares::constant(ppb),
        own_ppb,
    }
}

fn hold(id: u64, units: u64, until: StoreMs) -> Hold {
    Hold { id, units, until }
}

/// A meter of the first epoch without holds.
fn meter(state: State) -> Meter {
    Meter {
        epoch: Epoch(1),
        limits: None,
        holds: vec![],
        state,
    }
}

fn settle<'a>(stored: Option<&Meter>, rule: &'a Rule, fence: &Fence, now: StoreMs) -> Settled<'a> {
    Settled::new(stored, None, rule, None, fence, now)
}

/// A run of charges on one meter, each stored if it fits.
struct Run<'a> {
    rule: &'a Rule,
    fence: Fence,
    stored: Option<Meter>,
}

impl<'a> Run<'a> {
    fn new(rule: &'a Rule) -> Self {
        Self {
            rule,
            fence: fence(),
            stored: None,
        }
    }

    fn available(&self, ms: u64) -> u64 {
        settle(self.stored.as_ref(), self.rule, &self.fence, at(ms)).available()
    }

    /// Whether `cost` is admitted at `ms`.
    fn charge(&mut self, ms: u64, cost: u64) -> bool {
        let mut s = settle(self.stored.as_ref(), self.rule, &self.fence, at(ms));
        let fits = cost <= s.available();
        if fits {
            s.charge(cost, 0, None);
            self.stored = Some(s.meter);
        }
        fits
    }

    /// How many units, one by one, are admitted at `ms`.
    fn fill(&mut self, ms: u64) -> u64 {
        let mut given = 0;
        while self.charge(ms, 1) {
            given += 1;
        }
        given
    }

    fn retry_ms(&self, ms: u64, need: u64) -> Option<u64> {
        let s = settle(self.stored.as_ref(), self.rule, &self.fence, at(ms));
        match s.reading(need) {
            Reading::Units { retry_ms, .. } => retry_ms,
            Reading::Bucket { .. } | Reading::Window { .. } => None,
        }
    }
}
