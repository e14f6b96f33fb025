//! Meters: an algorithm's state for one key in one region, and what a decision does to it.
//!
//! What stands here stands once more in Lua, and nowhere else; differential tests hold the two equal. Every number is
//! a whole one, and below 2^53 wherever Lua multiplies.

mod bucket;
mod counter;
mod log;
mod pool;
mod slack;
mod slots;
mod window;

pub use pool::{MEMBER_IDLE_MS, MEMBERS_MAX, Member, MemberShare, Pool};
pub use slack::{Beside, Slack, tally_cell_ms};

use crate::fence::{Fence, HOLD_MAX_MS, Missing, SPAN_MS};
use crate::ids::{Epoch, StoreMs};
use crate::planted::{self, Bug};
use crate::policy::{Algorithm, Limits, PPM};
use crate::schedule::{Flow, Rate, Shares, part_units};
use serde::{Deserialize, Serialize};

/// At most so many holds stand on one meter; one more is refused. Slots are as many as the limit.
pub const HOLDS_MAX: usize = 64;

/// What a script is told of a key's policy, as it stands in this region while the key isn't traded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub algorithm: Algorithm,
    pub limits: Limits,
    /// The limits depend on the request, so a meter notes those that it was last charged under.
    pub by_plan: bool,
    /// For a bucket: the longest that filling one takes under any limits of the policy.
    pub fill_ms: u64,
    pub part: Part,
    pub slack: Slack,
}

/// A region's part of the budget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Of rates and sliding windows.
    Shares(Shares),
    /// Of a fixed window, in units. Windows that begin before `from` have no base.
    Base { units: u64, from: StoreMs },
    /// Of slots, which each region has for itself.
    Whole,
    /// Nothing, of anything.
    Nothing,
}

/// What a swap laid down for a traded key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Terms {
    /// `own_ppb`: the share that rests on no loan from others and on no reclaim, for use outside the span.
    Loans {
        epoch: Epoch,
        shares: Shares,
        own_ppb: u64,
    },
    /// Rights received less rights given.
    Window { delta: i64 },
}

/// A meter as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meter {
    pub epoch: Epoch,
    /// What it was last charged under, where that depends on the request.
    pub limits: Option<Limits>,
    pub holds: Vec<Hold>,
    pub state: State,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// `tokens` micro-units at the moment `at`.
    Bucket { tokens: u64, at: StoreMs },
    /// Units of one label. What is held counts as used; a hold only says that it may be put back.
    Window { used: u64 },
    /// Units by the moment of their admission, in the order of time. What is held isn't among them yet.
    Log { entries: Vec<(StoreMs, u64)> },
    /// Units in the cell `cell` and those before it, newest first. What is held isn't among them yet.
    Counter { cell: u64, counts: Vec<u64> },
    /// All that is taken are holds.
    Slots,
}

/// Units taken out of a meter that may still be put back until a moment; after it they count as spent. A slot is
/// free after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// Below 2^53, drawn by the node.
    pub id: u64,
    pub units: u64,
    pub until: StoreMs,
}

/// How long a meter is kept, in milliseconds from now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    For(u64),
    /// And no shorter than it was to be kept before: the clock is doubted.
    AtLeast(u64),
    /// For as long as it was to be kept before.
    AsItWas,
}

/// What a meter says now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// In micro-units. `flow` is what is in force now.
    Bucket {
        spendable: u64,
        held: u64,
        flow: Flow,
    },
    /// In units.
    Window { label: u64, used: u64, rights: u64 },
    /// Of a sliding window or of slots, in units.
    Units {
        available: u64,
        /// What is in force: the share, or the slots.
        of: u64,
        /// How long until the charge would fit, if nothing else changes; 0: it does. `None`: it is more than is in force.
        retry_ms: Option<u64>,
        /// How long until nothing counts any more.
        reset_ms: u64,
    },
}

/// A meter settled to a moment, with what it stands under.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled<'a> {
    pub meter: Meter,
    /// False outside the span: then a write keeps the time to live as it was.
    pub inside: bool,
    /// For a window: it has no rights, whatever the terms say.
    pub closed: bool,
    /// The window.
    pub label: u64,
    /// What is in force: capacity in micro-units, rights, share or slots in units.
    pub of: u64,
    /// The share in force, of a rate or a sliding window.
    ppb: u64,
    /// Nothing is known of what it gave, so it gives nothing.
    blocked: bool,
    rule: &'a Rule,
    shares: Option<&'a Shares>,
    flow: Flow,
    now: StoreMs,
}

// === impl Rule ===

impl Rule {
    pub fn rate(&self) -> Rate {
        Rate {
            limit: self.limits.limit,
            per_ms: match self.algorithm {
                Algorithm::TokenBucket { per_ms }
                | Algorithm::Gcra { per_ms }
                | Algorithm::SlidingLog { per_ms }
                | Algorithm::SlidingWindow { per_ms, .. } => per_ms,
                Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. } => 1,
            },
            burst: self.limits.burst,
        }
    }

    /// The base of a window, in units.
    pub fn window_base(&self, label: u64) -> u64 {
        match (&self.part, self.algorithm) {
            (Part::Base { units, from }, Algorithm::FixedWindow { period })
                if period.bounds(label).0 >= *from =>
            {
                *units
            }
            _ => 0,
        }
    }

    /// The label of the window that a decision at `now` falls in; `None` where the algorithm has no windows.
    pub fn label(&self, now: StoreMs) -> Option<u64> {
        match self.algorithm {
            Algorithm::FixedWindow { period } => Some(period.label(now)),
            _ => None,
        }
    }

    /// Whether `state` is one of this rule's algorithm.
    fn keeps(&self, state: &State) -> bool {
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
                matches!(state, State::Bucket { .. })
            }
            Algorithm::FixedWindow { .. } => matches!(state, State::Window { .. }),
            Algorithm::SlidingLog { .. } => matches!(state, State::Log { .. }),
            Algorithm::SlidingWindow { .. } => matches!(state, State::Counter { .. }),
            Algorithm::Concurrency { .. } => matches!(state, State::Slots),
        }
    }

    /// How long a hold lasts at most; of a slot, how long it is taken.
    fn hold_ms(&self) -> u64 {
        match self.algorithm {
            Algorithm::Concurrency { slot_ttl_ms } => slot_ttl_ms,
            _ => HOLD_MAX_MS,
        }
    }
}

// === impl Reading ===

impl Reading {
    pub fn available(&self) -> u64 {
        match *self {
            Self::Bucket { spendable, .. } => spendable,
            Self::Window { used, rights, .. } => rights.saturating_sub(used),
            Self::Units { available, .. } => available,
        }
    }

    /// What is in force, in the reading's own units: what parts of the limit are parts of.
    pub fn of(&self) -> u64 {
        match *self {
            Self::Bucket { flow, .. } => flow.cap,
            Self::Window { rights, .. } => rights,
            Self::Units { of, .. } => of,
        }
    }
}

/// What a class that leaves `ppm` millionths has to leave of `of`, rounded up. In doubles, like Lua's.
pub fn reserve(of: u64, ppm: u32) -> u64 {
    (of as f64 * f64::from(ppm) / PPM as f64).ceil() as u64
}

// === impl Meter ===

impl Meter {
    /// Units held, in the meter's own units.
    pub fn held(&self) -> u64 {
        self.holds.iter().map(|h| h.units).sum()
    }
}

// === impl Settled ===

impl<'a> Settled<'a> {
    /// Settles `stored` to `now`. `terms` are those of the key's last swap, if it is traded. `label` is that of the
    /// window, and means nothing for the other algorithms.
    pub fn new(
        stored: Option<&Meter>,
        label: Option<u64>,
        rule: &'a Rule,
        terms: Option<&'a Terms>,
        fence: &Fence,
        now: StoreMs,
    ) -> Self {
        let inside = fence.span.contains(now);
        let stored = stored.filter(|m| rule.keeps(&m.state));
        // What is known by a clock that stepped, or may have, is doubted; units of a window have no time.
        let is_sure = inside && stored.is_some_and(|m| m.epoch == fence.record.epoch);
        let label = label.or_else(|| rule.label(now));
        let is_timeless = matches!(rule.algorithm, Algorithm::FixedWindow { .. });
        let stored = stored.filter(|_| !rule.is_lenient() || is_sure || is_timeless);
        let terms = terms.filter(|_| !rule.is_lenient());
        let mut settled = Self {
            meter: Meter {
                epoch: fence.record.epoch,
                limits: rule.by_plan.then_some(rule.limits),
                holds: stored.map(|m| m.holds.clone()).unwrap_or_default(),
                state: State::Slots,
            },
            inside,
            closed: false,
            label: label.unwrap_or(0),
            of: 0,
            ppb: 0,
            blocked: false,
            rule,
            shares: None,
            flow: Flow::NONE,
            now,
        };
        let old_epoch = stored.is_some_and(|m| m.epoch != fence.record.epoch);
        // A bucket goes on from where it is charged, in the span or not.
        let goes_on = inside || rule.algorithm.is_bucket();
        if old_epoch && goes_on {
            let until = fence.epoch_began.plus(rule.hold_ms());
            settled.meter.holds.iter_mut().for_each(|h| h.until = until);
        }
        if let Some(stored) = stored
            && !goes_on
        {
            settled.meter.epoch = stored.epoch;
        }
        settled.put_in_force(terms, fence);
        let began = old_epoch.then_some(fence.epoch_began);
        match rule.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
                settled.settle_bucket(stored, began, fence);
            }
            Algorithm::FixedWindow { period } => {
                settled.settle_window(stored, period, terms, fence);
            }
            Algorithm::SlidingLog { per_ms } => settled.settle_log(stored, began, per_ms, fence),
            Algorithm::SlidingWindow { per_ms, buckets } => {
                settled.settle_counter(stored, began, per_ms, buckets, fence);
            }
            Algorithm::Concurrency { slot_ttl_ms } => {
                settled.settle_slots(stored, slot_ttl_ms, fence);
            }
        }
        settled
    }

    /// The share in force: that of the terms, if they are of this epoch, or else the region's own.
    fn put_in_force(&mut self, terms: Option<&'a Terms>, fence: &Fence) {
        let untraded = match &self.rule.part {
            Part::Shares(shares) => shares,
            Part::Base { .. } | Part::Whole | Part::Nothing => return,
        };
        let (shares, own_ppb) = match terms {
            Some(Terms::Loans {
                epoch,
                shares,
                own_ppb,
            }) if *epoch == fence.record.epoch => (shares, *own_ppb),
            Some(Terms::Loans { own_ppb, .. }) => (untraded, untraded.least().min(*own_ppb)),
            _ => (untraded, untraded.least()),
        };
        self.shares = Some(shares);
        let ppb = if self.inside || planted::is_on(Bug::ReclaimOutsideSpan) {
            shares.at(self.now)
        } else {
            own_ppb
        };
        self.ppb = ppb;
        if self.rule.algorithm.is_bucket() {
            self.flow = self.rule.rate().share(ppb);
            self.of = self.flow.cap;
            if !self.inside {
                self.flow = Flow {
                    cap: self.flow.cap,
                    ..Flow::NONE
                };
            }
        } else {
            self.of = part_units(self.rule.limits.limit, ppb);
        }
    }

    /// Whether a meter that isn't there gives nothing yet: it may have been lost, and what it gave counts for so long.
    fn may_be_lost(&self, counts_ms: u64, fence: &Fence) -> bool {
        match fence.missing {
            _ if self.rule.is_lenient() => false,
            _ if !self.inside => true,
            Missing::Full => false,
            Missing::EmptyAt(moment) => self.now < moment.plus(counts_ms),
        }
    }

    /// Takes out the holds that are over, in the order of their ends.
    fn end_holds(&mut self) -> Vec<Hold> {
        let now = self.now;
        let mut over: Vec<Hold> = self
            .meter
            .holds
            .extract_if(.., |h| h.until <= now)
            .collect();
        over.sort_by_key(|h| (h.until, h.id));
        over
    }

    /// Whether it gives nothing, whatever its share: what it gave before may be lost, and may count still.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// What can be charged, in the rule's units: micro-units for a bucket, units for all else.
    pub fn available(&self) -> u64 {
        if self.blocked {
            return 0;
        }
        match &self.meter.state {
            State::Bucket { tokens, .. } if self.inside => *tokens,
            State::Bucket { tokens, .. } => {
                (*tokens).min(self.of.saturating_sub(self.meter.held()))
            }
            State::Window { used } => self.of.saturating_sub(*used),
            State::Log { .. } | State::Counter { .. } | State::Slots => {
                self.of.saturating_sub(self.counted())
            }
        }
    }

    /// For a sliding window or slots: what counts of what was given, in whole units, rounded up. All, where nothing is
    /// known.
    pub fn counted(&self) -> u64 {
        let held = self.meter.held();
        match &self.meter.state {
            _ if self.blocked => self.of,
            State::Log { entries } => held + log::total(entries),
            State::Counter { cell, counts } => held + self.count_cells(*cell, counts),
            State::Window { used } => *used,
            State::Slots | State::Bucket { .. } => held,
        }
    }

    /// What is told of the meter to a request that needs `need`, in the rule's units.
    pub fn reading(&self, need: u64) -> Reading {
        match &self.meter.state {
            State::Bucket { .. } => Reading::Bucket {
                spendable: self.available(),
                held: self.meter.held(),
                flow: self.flow,
            },
            State::Window { used } => Reading::Window {
                label: self.label,
                used: *used,
                rights: self.of,
            },
            State::Log { .. } | State::Counter { .. } | State::Slots => Reading::Units {
                available: self.available(),
                of: self.of,
                retry_ms: self.retry_ms(need),
                reset_ms: self.reset_ms(),
            },
        }
    }

    fn retry_ms(&self, need: u64) -> Option<u64> {
        if need > self.of {
            return None;
        }
        if need <= self.available() {
            return Some(0);
        }
        if self.blocked {
            return Some(self.longest_ms());
        }
        let at = match &self.meter.state {
            State::Log { entries } => self.log_frees(entries, need),
            State::Counter { cell, counts } => self.counter_frees(*cell, counts, need),
            State::Slots => self.slots_free(need),
            State::Bucket { .. } | State::Window { .. } => None,
        };
        let ms = at.map_or_else(|| self.longest_ms(), |at| at.since(self.now));
        Some(ms.max(1))
    }

    fn reset_ms(&self) -> u64 {
        if self.blocked || (!self.meter.holds.is_empty() && self.meter.state != State::Slots) {
            return self.longest_ms();
        }
        let at = match &self.meter.state {
            State::Log { entries } => self.log_ends(entries),
            State::Counter { cell, counts } => self.counter_ends(*cell, counts),
            State::Slots => self.meter.holds.iter().map(|h| h.until).max(),
            State::Bucket { .. } | State::Window { .. } => None,
        };
        at.map_or(0, |at| at.since(self.now))
    }

    /// The longest that something goes on counting.
    fn longest_ms(&self) -> u64 {
        match self.rule.algorithm {
            Algorithm::Concurrency { slot_ttl_ms } => slot_ttl_ms,
            algorithm => algorithm.counts_ms(),
        }
    }

    /// Takes `cost` out. With `hold_ms` it may be put back under `id` for so long. The caller has seen that it fits.
    pub fn charge(&mut self, cost: u64, id: u64, hold_ms: Option<u64>) {
        let hold = hold_ms.map(|ms| Hold {
            id,
            units: cost,
            until: self.now.plus(ms),
        });
        match &mut self.meter.state {
            State::Bucket { tokens, .. } => *tokens -= cost,
            State::Window { used } => *used += cost,
            State::Log { .. } | State::Counter { .. } if hold.is_none() => {
                self.count(cost, self.now)
            }
            State::Log { .. } | State::Counter { .. } => {}
            State::Slots => {
                let ms = hold_ms.unwrap_or_else(|| self.rule.hold_ms());
                self.meter.holds.push(Hold {
                    id,
                    units: cost,
                    until: self.now.plus(ms),
                });
                return;
            }
        }
        self.meter.holds.extend(hold);
    }

    pub fn can_hold(&self) -> bool {
        self.meter.state == State::Slots || self.meter.holds.len() < HOLDS_MAX
    }

    /// Ends the hold `id`: its units come back where `release`, and are spent otherwise; a slot is taken for its time.
    /// False where there is no such hold (any more).
    pub fn end_hold(&mut self, id: u64, release: bool) -> bool {
        let Some(index) = self.meter.holds.iter().position(|h| h.id == id) else {
            return false;
        };
        if self.meter.state == State::Slots && !release {
            self.meter.holds[index].until = self.now.plus(self.rule.hold_ms());
            return true;
        }
        let hold = self.meter.holds.remove(index);
        match &mut self.meter.state {
            State::Bucket { tokens, .. } if release => *tokens += hold.units,
            State::Window { used } if release => *used -= hold.units,
            State::Log { .. } | State::Counter { .. } if !release => {
                self.count(hold.units, self.now)
            }
            _ => {}
        }
        true
    }

    /// Counts units in a sliding window.
    fn count(&mut self, units: u64, at: StoreMs) {
        match &mut self.meter.state {
            State::Log { entries } => log::add(entries, at, units),
            State::Counter { counts, .. } => counts[0] += units,
            State::Bucket { .. } | State::Window { .. } | State::Slots => {}
        }
    }

    /// How long to keep the meter: until its absence means the same as its presence.
    pub fn keep(&self) -> Keep {
        let ttl_ms = || match self.shares {
            Some(shares) => self.ttl_under(shares),
            None => self.ttl_under(&Shares::constant(0)),
        };
        match self.inside {
            true => Keep::For(ttl_ms()),
            false if self.rule.algorithm.is_bucket() => Keep::AtLeast(ttl_ms()),
            false => Keep::AsItWas,
        }
    }

    /// As [`Settled::keep`], under shares that are about to be in force.
    fn ttl_under(&self, shares: &Shares) -> u64 {
        let now = self.now;
        let longest = self.meter.holds.iter().map(|h| h.until.since(now)).max();
        let longest = longest.unwrap_or(0);
        let ms = match (&self.meter.state, self.rule.algorithm) {
            (State::Bucket { at, .. }, _) => {
                let last = shares.last();
                let fill_ms = self.rule.rate().share(last.ppb).fill_ms();
                last.from.since(now) + fill_ms.max(self.rule.fill_ms) + longest + at.since(now)
            }
            // Past the end of the next label, so that a small step back finds it.
            (State::Window { .. }, Algorithm::FixedWindow { period }) => {
                period.bounds(self.label.saturating_add(1)).1.since(now)
            }
            (State::Log { entries }, _) => {
                let last = entries.last().map_or(now, |(at, _)| *at);
                last.since(now) + self.longest_ms() + longest
            }
            (State::Counter { cell, .. }, Algorithm::SlidingWindow { per_ms, buckets }) => {
                let begins = counter::cell_start(*cell, per_ms, buckets);
                begins.since(now) + self.longest_ms() + longest
            }
            _ => longest,
        };
        ms.saturating_add(SPAN_MS)
    }

    /// Puts other terms in force: clamps what they no longer hold. `None`: they leave less than what is used or held.
    ///
    /// Returns how long to keep the meter, where it has to be written.
    pub fn put_under(&mut self, terms: &Terms) -> Option<Option<u64>> {
        if planted::is_on(Bug::SwapWithoutGuard) && !self.rule.algorithm.is_bucket() {
            return Some(None);
        }
        match (terms, &self.rule.part) {
            (Terms::Loans { shares, .. }, Part::Shares(_)) => {
                let ppb = shares.at(self.now);
                if let State::Bucket { tokens, .. } = &mut self.meter.state {
                    let cap = self.rule.rate().share(ppb).cap;
                    let held = self.meter.holds.iter().map(|h| h.units).sum();
                    if planted::is_on(Bug::TokensKept) {
                        return Some(Some(self.ttl_under(shares)));
                    }
                    *tokens = (*tokens).min(cap.checked_sub(held)?);
                    return Some(Some(self.ttl_under(shares)));
                }
                let of = part_units(self.rule.limits.limit, ppb);
                // What was admitted on a loan that is over counts on, and is no reason not to raise a share.
                (of >= self.of || of >= self.counted()).then_some(None)
            }
            (Terms::Window { delta }, Part::Base { .. }) => {
                let rights = self
                    .rule
                    .window_base(self.label)
                    .checked_add_signed(*delta)?;
                (!self.closed && self.counted() <= rights).then_some(None)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
