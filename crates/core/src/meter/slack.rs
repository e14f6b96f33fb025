//! What a policy's tolerance comes to in one region.
//!
//! A policy that may go over by x has, beside its budget, an *overdraft*: a budget of x times its own, dealt in equal
//! parts, never traded, and kept by the same meters. Two budgets that are each kept are together at most (1 + x)
//! times one, which is the whole proof. What is known of everybody's usage only decides when the overdraft is drawn on.
//!
//! What is *known* is one more meter, of the whole budget: it is charged with what is admitted here and with what peers
//! say. Under never-under it is the only one. No promise to stay below anything rests on it, so in doubt it admits.

use super::{Part, Reading, Rule, Settled};
use crate::fence::Fence;
use crate::ids::StoreMs;
use crate::policy::Algorithm;
use crate::schedule::{EXACT, Flow, MICRO, PPB, Shares, part_units};
use crate::tally;

/// Which side a rule may err on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Slack {
    /// Never over.
    #[default]
    Nothing,
    /// This region's part of the overdraft.
    Over(Part),
    /// Never under: the rule's part is the whole budget, and what is known of its usage decides.
    Known,
}

/// What stands beside the meter of a key that may go over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beside<T> {
    pub overdraft: T,
    pub known: T,
}

// === impl Rule ===

impl Rule {
    /// Whether what isn't known of it counts as not used.
    pub fn is_lenient(&self) -> bool {
        self.slack == Slack::Known
    }

    /// Whether peers are told what was admitted under it.
    pub fn is_told(&self) -> bool {
        self.slack != Slack::Nothing
    }

    /// The rules of what stands beside the meter.
    pub fn beside(&self) -> Option<Beside<Self>> {
        let Slack::Over(part) = &self.slack else {
            return None;
        };
        let overdraft = Self {
            part: part.clone(),
            slack: Slack::Nothing,
            ..self.clone()
        };
        Some(Beside {
            overdraft,
            known: self.known(),
        })
    }

    /// The rule of what is known of everybody's usage.
    pub fn known(&self) -> Self {
        let part = match self.algorithm {
            Algorithm::FixedWindow { .. } => Part::Base {
                units: self.limits.limit,
                from: StoreMs(0),
            },
            _ => Part::Shares(Shares::constant(PPB)),
        };
        Self {
            part,
            slack: Slack::Known,
            ..self.clone()
        }
    }

    /// A whole unit, in the rule's units.
    pub fn unit(&self) -> u64 {
        if self.algorithm.is_bucket() { MICRO } else { 1 }
    }

    /// The cells of this key's tallies.
    pub fn tally_cell_ms(&self) -> u64 {
        tally_cell_ms(self.algorithm, self.fill_ms)
    }

    /// How long tallies are kept. The label is the window's.
    pub fn tally_ttl_ms(&self, label: Option<u64>, now: StoreMs) -> u64 {
        match (self.algorithm, label) {
            (Algorithm::FixedWindow { period }, Some(label)) => {
                period.bounds(label.saturating_add(1)).1.since(now)
            }
            _ => 2 * self.tally_cell_ms() + tally::TALLY_TTL_MS,
        }
    }

    /// What a peer's tally of `more`, of which `recent` is recent, takes out of what is known, in the rule's units. A
    /// window counts all. What flows back, or slides out of sight, counts only where it is recent: the rest may have
    /// been admitted long ago, and is doubted.
    pub fn debit(&self, more: u64, recent: u64) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow { .. } => more,
            algorithm if algorithm.is_bucket() => more.min(recent).min(EXACT / MICRO) * MICRO,
            _ => more.min(recent),
        }
    }
}

/// The cells of a policy's tallies.
pub fn tally_cell_ms(algorithm: Algorithm, fill_ms: u64) -> u64 {
    tally::cell_ms(if algorithm.is_bucket() {
        fill_ms
    } else {
        match algorithm {
            Algorithm::SlidingLog { per_ms } | Algorithm::SlidingWindow { per_ms, .. } => per_ms,
            _ => 0,
        }
    })
}

// === impl Settled ===

impl Settled<'_> {
    /// Whether it is written: what is known isn't noted by a clock that nobody vouches for, but for windows, where no
    /// time matters.
    pub fn is_kept(&self) -> bool {
        self.inside || !self.rule.is_lenient() || self.rule.label(self.now).is_some()
    }

    /// Takes `units` out of what is known, as far as they are there. Returns what wasn't.
    pub fn debit(&mut self, units: u64, id: u64, hold_ms: Option<u64>) -> u64 {
        let taken = units.min(self.available());
        if taken > 0 {
            self.charge(taken, id, hold_ms);
        }
        units - taken
    }
}

// === impl Beside ===

impl Beside<Settled<'_>> {
    /// `terms` are never of these: neither is traded.
    pub fn settle<'a>(
        rules: &'a Beside<Rule>,
        stored: Beside<Option<&super::Meter>>,
        label: Option<u64>,
        fence: &Fence,
        now: StoreMs,
    ) -> Beside<Settled<'a>> {
        Beside {
            overdraft: Settled::new(stored.overdraft, label, &rules.overdraft, None, fence, now),
            known: Settled::new(stored.known, label, &rules.known, None, fence, now),
        }
    }

    /// What can be charged in all where `rights` are there: these, or with the overdraft what is known to be left.
    pub fn available(&self, rights: u64) -> u64 {
        let with_overdraft = rights.saturating_add(self.overdraft.available());
        rights.max(with_overdraft.min(self.known.available()))
    }

    pub fn can_hold(&self) -> bool {
        self.overdraft.can_hold() && self.known.can_hold()
    }

    /// Charges beside the meter what was admitted: `overdrawn` of the `cost` is beyond its rights.
    pub fn charge(&mut self, cost: u64, overdrawn: u64, id: u64, hold_ms: Option<u64>) {
        if overdrawn > 0 {
            self.overdraft.charge(overdrawn, id, hold_ms);
        }
        self.known.debit(cost, id, hold_ms);
    }

    /// Puts into a meter's reading what can be charged in all.
    pub fn put_in(&self, reading: &mut Reading, meter: &Settled<'_>, need: u64, available: u64) {
        let in_force = self.of(meter);
        match reading {
            Reading::Bucket {
                spendable, flow, ..
            } => (*spendable, *flow) = (available, self.flow(meter)),
            Reading::Window { used, rights, .. } => {
                *used = in_force.saturating_sub(available);
                *rights = in_force.max(available);
            }
            Reading::Units {
                available: there,
                of,
                retry_ms,
                ..
            } => {
                (*there, *of) = (available, in_force);
                if need <= available {
                    *retry_ms = Some(0);
                }
            }
        }
    }

    /// What is in force with the overdraft: of a bucket its flow, otherwise units.
    pub fn flow(&self, meter: &Settled<'_>) -> Flow {
        let ppb = (meter.ppb + self.overdraft.ppb).min(PPB);
        let flow = self.known.rule.rate().share(ppb);
        match meter.inside {
            true => flow,
            false => Flow {
                cap: flow.cap,
                ..Flow::NONE
            },
        }
    }

    /// What is in force with the overdraft.
    pub fn of(&self, meter: &Settled<'_>) -> u64 {
        match self.known.rule.algorithm {
            Algorithm::FixedWindow { .. } => meter.of.saturating_add(self.overdraft.of),
            algorithm if algorithm.is_bucket() => self.flow(meter).cap,
            _ => {
                let ppb = (meter.ppb + self.overdraft.ppb).min(PPB);
                part_units(self.known.rule.limits.limit, ppb)
            }
        }
    }
}
