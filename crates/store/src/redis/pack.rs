//! Values as msgpack: what scripts are told and answer, and what is stored beside what an operator reads as text.
//!
//! All are sequences without an array around them. The Lua beside this reads and writes the same. What is read is
//! outside data: `None` for all that isn't as expected.

use crate::StoreError;
use crate::op::*;
use apportion_core::meter::{Hold, Meter, Part, Reading, Rule, Slack, State, Terms};
use apportion_core::period::Period;
use apportion_core::policy::{Algorithm, Limits};
use apportion_core::schedule::{EXACT, Flow, Shares, Step};
use apportion_core::tally::Tally;
use apportion_core::usage::Counts;
use apportion_core::{Epoch, StoreMs};
use rmp::Marker;
use rmp::{decode, encode};
use std::collections::HashMap;

/// The algorithms by their numbers in Lua.
const BUCKET: u64 = 1;
const WINDOW: u64 = 2;
const LOG: u64 = 3;
const COUNTER: u64 = 4;
const SLOTS: u64 = 5;
/// Added to the algorithm in the first value of a stored meter.
const NOTED: u64 = 8;
const HELD: u64 = 16;

/// A plain bucket is stored as one decimal number, which Redis keeps in 16 bytes where any text takes 48: its tokens and
/// one, and then in nine digits the milliseconds from its moment to its deadline, times this, and its epoch.
pub(super) const PLAIN_EPOCHS: u64 = 256;
/// Below: the nine digits' bound.
pub(super) const PLAIN_DISTANCES: u64 = 1_000_000_000 / PLAIN_EPOCHS;
/// Below: what 63 bits hold beside the nine digits.
pub(super) const PLAIN_TOKENS: u64 = 9_000_000_000;

/// Added to an answer's flags: after the reading stands what was drawn on the overdraft.
pub(super) const OVERDRAWN: u64 = 32;

const INTO_VEC: &str = "writing to a Vec can't fail";

/// A number that Lua can hold. Times are only compared, and may be beyond.
pub(super) fn exact(name: &str, n: u64) -> Result<u64, StoreError> {
    if n <= EXACT {
        Ok(n)
    } else {
        Err(StoreError::Rejected(format!(
            "{name} is {n}, beyond 2^53, which the store can't count"
        )))
    }
}

/// Values one after the other.
#[derive(Default, Debug)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    values: u64,
}

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

// === impl Writer ===

impl Writer {
    pub(super) fn count(&mut self, n: u64) -> &mut Self {
        self.values += 1;
        match i64::try_from(n) {
            Ok(_) => encode::write_uint(&mut self.bytes, n)
                .map(drop)
                .expect(INTO_VEC),
            // Lua would read it as negative.
            Err(_) => encode::write_f64(&mut self.bytes, n as f64).expect(INTO_VEC),
        }
        self
    }

    pub(super) fn signed(&mut self, n: i64) -> &mut Self {
        self.values += 1;
        encode::write_sint(&mut self.bytes, n)
            .map(drop)
            .expect(INTO_VEC);
        self
    }

    /// As a string: the Lua side knows no others.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.values += 1;
        let len = u32::try_from(bytes.len()).expect("nothing that is sent is of such a length");
        encode::write_str_len(&mut self.bytes, len)
            .map(drop)
            .expect(INTO_VEC);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// `inner`, and before it how many values it has.
    pub(super) fn counted(&mut self, inner: &Self) -> &mut Self {
        self.count(inner.values);
        self.append(inner)
    }

    pub(super) fn append(&mut self, inner: &Self) -> &mut Self {
        self.values += inner.values;
        self.bytes.extend_from_slice(&inner.bytes);
        self
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn steps(&mut self, shares: &Shares) -> Result<(), StoreError> {
        for step in shares.steps() {
            self.count(step.from.0).count(exact("a share", step.ppb)?);
        }
        Ok(())
    }

    /// Algorithm, limit, burst, the algorithm's two numbers, `fill_ms`, flags, the part, and that of the overdraft.
    pub(super) fn rule(&mut self, rule: &Rule) -> Result<(), StoreError> {
        let (kind, a, b) = match rule.algorithm {
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => (BUCKET, per_ms, 0),
            Algorithm::FixedWindow {
                period: Period::Every { per_ms, offset_ms },
            } => (WINDOW, per_ms, offset_ms),
            Algorithm::FixedWindow {
                period: Period::Month,
            } => (WINDOW, 0, 0),
            Algorithm::SlidingLog { per_ms } => (LOG, per_ms, 0),
            Algorithm::SlidingWindow { per_ms, buckets } => (COUNTER, per_ms, buckets.into()),
            Algorithm::Concurrency { slot_ttl_ms } => (SLOTS, slot_ttl_ms, 0),
        };
        self.count(kind)
            .count(exact("a limit", rule.limits.limit)?)
            .count(exact("a burst", rule.limits.burst)?)
            .count(exact("a period", a)?)
            .count(exact("a period's offset", b)?)
            .count(exact("a bucket's time to fill", rule.fill_ms)?)
            .count(u64::from(rule.by_plan) | slack_flag(&rule.slack));
        self.part(&rule.part)?;
        match &rule.slack {
            Slack::Over(part) => self.part(part),
            Slack::Nothing | Slack::Known => Ok(()),
        }
    }

    fn part(&mut self, part: &Part) -> Result<(), StoreError> {
        match part {
            Part::Nothing => self.count(0),
            Part::Whole => self.count(1),
            Part::Base { units, from } => {
                let units = exact("a window's base", *units)?;
                self.count(2).count(units).count(from.0)
            }
            Part::Shares(shares) => {
                self.count(3).count(shares.steps().len() as u64);
                self.steps(shares)?;
                self
            }
        };
        Ok(())
    }
}

const fn slack_flag(slack: &Slack) -> u64 {
    match slack {
        Slack::Nothing => 0,
        Slack::Over(_) => 2,
        Slack::Known => 4,
    }
}

pub(super) fn terms(terms: &Terms) -> Result<Vec<u8>, StoreError> {
    let mut to = Writer::default();
    match terms {
        Terms::Loans {
            epoch,
            shares,
            own_ppb,
        } => {
            let own_ppb = exact("a share", *own_ppb)?;
            to.count(1).count(epoch.0.into()).count(own_ppb);
            to.steps(shares)?;
        }
        Terms::Window { delta } => {
            exact("a window's rights", delta.unsigned_abs())?;
            to.count(2).signed(*delta);
        }
    }
    Ok(to.into_bytes())
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&mut self) -> Option<u64> {
        decode::read_int(&mut self.0).ok()
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        decode::read_int(&mut self.0).ok()
    }

    fn moment(&mut self) -> Option<StoreMs> {
        // A moment beyond all time was sent as a float, and may come back as one.
        match Marker::from_u8(*self.0.first()?) {
            Marker::F64 => Some(StoreMs(decode::read_f64(&mut self.0).ok()? as u64)),
            Marker::F32 => Some(StoreMs(decode::read_f32(&mut self.0).ok()? as u64)),
            _ => self.count().map(StoreMs),
        }
    }

    pub(super) fn array_len(&mut self) -> Option<u32> {
        decode::read_array_len(&mut self.0).ok()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = decode::read_str_len(&mut self.0).ok()?;
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// A string, or `false`.
    pub(super) fn text_or_none(&mut self) -> Option<Option<&'a str>> {
        if self.0.first() == Some(&Marker::False.to_u8()) {
            self.0 = &self.0[1..];
            return Some(None);
        }
        self.text().map(Some)
    }

    /// Everything that is left.
    fn rest<T>(mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut found = Vec::new();
        while !self.is_empty() {
            found.push(read(&mut self)?);
        }
        Some(found)
    }

    /// Flags and a reading, as a decision answers them for each charge.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        let flags = self.count()?;
        let reading = match flags % OVERDRAWN / 4 {
            BUCKET => Reading::Bucket {
                spendable: self.count()?,
                held: self.count()?,
                flow: Flow {
                    cap: self.count()?,
                    whole: self.count()?,
                    rest: self.count()?,
                    per: self.count()?,
                },
            },
            WINDOW => Reading::Window {
                label: self.count()?,
                used: self.count()?,
                rights: self.count()?,
            },
            LOG | COUNTER | SLOTS => Reading::Units {
                available: self.count()?,
                of: self.count()?,
                retry_ms: match self.signed()? {
                    -1 => None,
                    ms => Some(u64::try_from(ms).ok()?),
                },
                reset_ms: self.count()?,
            },
            _ => return None,
        };
        Some(Answer {
            fits: flags & 1 == 1,
            crowded: flags & 2 == 2,
            reading,
            overdrawn: match flags >= OVERDRAWN {
                true => self.count()?,
                false => 0,
            },
        })
    }
}

// === what is stored ===

pub(super) fn parse_terms(bytes: &[u8]) -> Option<Terms> {
    let mut reader = Reader::new(bytes);
    if reader.count()? == 2 {
        let delta = reader.signed()?;
        return reader.is_empty().then_some(Terms::Window { delta });
    }
    let epoch = Epoch(u32::try_from(reader.count()?).ok()?);
    let own_ppb = reader.count()?;
    let steps = reader.rest(|r| {
        Some(Step {
            from: r.moment()?,
            ppb: r.count()?,
        })
    })?;
    let sound = bytes.first() == Some(&1) && !steps.is_empty();
    (sound && steps.is_sorted_by_key(|s| s.from)).then(|| Terms::Loans {
        epoch,
        shares: Shares::new(steps),
        own_ppb,
    })
}

pub(super) fn parse_tally(bytes: &[u8]) -> Option<Tally> {
    let mut reader = Reader::new(bytes);
    let tally = Tally {
        began: StoreMs(reader.count()?),
        units: reader.count()?,
        cell: reader.count()?,
        at_cell: reader.count()?,
        at_cell_before: reader.count()?,
    };
    reader.is_empty().then_some(tally)
}

pub(super) fn parse_counts(bytes: &[u8]) -> Option<Counts> {
    let mut reader = Reader::new(bytes);
    let counts = Counts {
        admitted: reader.count()?,
        refunded: reader.count()?,
        refused: reader.count()?,
    };
    reader.is_empty().then_some(counts)
}

/// What stands beside a meter: the list of a log; the ids of slots with their ends; the units of some.
pub(super) struct Beside {
    pub(super) list: Vec<Vec<u8>>,
    pub(super) slots: Vec<(u64, StoreMs)>,
    pub(super) units: HashMap<u64, u64>,
    /// When a plain bucket expires.
    pub(super) deadline: StoreMs,
}

fn parse_plain_bucket(digits: &[u8], deadline: StoreMs) -> Option<Meter> {
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let (tokens, rest) = (number / 1_000_000_000, number % 1_000_000_000);
    let distance = rest / PLAIN_EPOCHS;
    Some(Meter {
        epoch: Epoch(u32::try_from(rest % PLAIN_EPOCHS).ok()?),
        limits: None,
        holds: Vec::new(),
        state: State::Bucket {
            tokens: tokens.checked_sub(1)?,
            at: StoreMs(deadline.0.checked_sub(distance)?),
        },
    })
}

pub(super) fn parse_meter(bytes: &[u8], beside: &Beside) -> Option<Meter> {
    if bytes.first().is_some_and(u8::is_ascii_digit) {
        return parse_plain_bucket(bytes, beside.deadline);
    }
    let mut reader = Reader::new(bytes);
    let tag = reader.count()?;
    let epoch = Epoch(u32::try_from(reader.count()?).ok()?);
    let mut holds = Vec::new();
    let state = match tag % NOTED {
        BUCKET => State::Bucket {
            tokens: reader.count()?,
            at: StoreMs(reader.count()?),
        },
        WINDOW => State::Window {
            used: reader.count()?,
        },
        LOG => State::Log {
            entries: entries(&mut reader, &beside.list)?,
        },
        COUNTER => {
            let cell = reader.count()?;
            let cells = reader.count()?;
            let counts = (0..cells).map(|_| reader.count());
            let counts: Vec<u64> = counts.collect::<Option<_>>()?;
            State::Counter { cell, counts }
        }
        SLOTS => {
            // Their sum, their number and the first of their ends.
            let [sum, number, _] = [reader.count()?, reader.count()?, reader.count()?];
            holds = slots(beside);
            let same = holds.iter().map(|h| h.units).sum::<u64>() == sum;
            if !same || holds.len() as u64 != number {
                return None;
            }
            State::Slots
        }
        _ => return None,
    };
    let limits = match tag % HELD >= NOTED {
        true => Some(Limits {
            limit: reader.count()?,
            burst: reader.count()?,
        }),
        false => None,
    };
    let held = reader.rest(|r| {
        Some(Hold {
            id: r.count()?,
            units: r.count()?,
            until: StoreMs(r.count()?),
        })
    })?;
    if tag < HELD && !held.is_empty() {
        return None;
    }
    holds.extend(held);
    Some(Meter {
        epoch,
        limits,
        holds,
        state,
    })
}

/// A log's list, and after it the newest entry, which the meter has.
fn entries(reader: &mut Reader<'_>, list: &[Vec<u8>]) -> Option<Vec<(StoreMs, u64)>> {
    let [sum, _, last, last_units] = [
        reader.count()?,
        reader.count()?,
        reader.count()?,
        reader.count()?,
    ];
    let mut entries = Vec::with_capacity(list.len() + 1);
    for entry in list {
        let mut entry = Reader::new(entry);
        entries.push((StoreMs(entry.count()?), entry.count()?));
    }
    if last_units > 0 {
        entries.push((StoreMs(last), last_units));
    }
    (entries.iter().map(|(_, units)| units).sum::<u64>() == sum).then_some(entries)
}

fn slots(beside: &Beside) -> Vec<Hold> {
    let hold = |&(id, until)| Hold {
        id,
        units: beside.units.get(&id).copied().unwrap_or(1),
        until,
    };
    beside.slots.iter().map(hold).collect()
}
