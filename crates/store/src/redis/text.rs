//! How values are written in Redis: as text, so that an operator can read them, with numbers in decimal.
//!
//! The Lua beside this reads and writes the same.

use crate::{Answer, StoreError};
use apportion_core::meter::{Bucket, Hold, Meter, Reading, Rule, Terms, Window};
use apportion_core::schedule::{EXACT, Flow, Schedule, Step};
use apportion_core::usage::Counts;
use apportion_core::{Actor, Epoch, Life, Record, Region, StoreMs};
use std::fmt::Write;
use std::str::FromStr;

/// Stands for this store's own actor.
const OWN: &str = ".";

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

// === records ===

pub(super) fn record(record: &Record) -> String {
    format!("{} {} {}", record.life, record.epoch.0, record.revision)
}

pub(super) fn parse_record(text: &str) -> Option<Record> {
    let [life, epoch, revision] = fields(text, ' ')?;
    Some(Record {
        life: Life::parse(life)?,
        epoch: Epoch(epoch.parse().ok()?),
        revision: revision.parse().ok()?,
    })
}

// === actors ===

pub(super) fn actor(actor: &Actor) -> String {
    format!("{}/{}", actor.region, actor.life)
}

pub(super) fn parse_actor(text: &str) -> Option<Actor> {
    let (region, life) = text.rsplit_once('/')?;
    Some(Actor {
        region: Region::new(region),
        life: Life::parse(life)?,
    })
}

/// `None` inside: this store's own actor.
pub(super) fn parse_slot_actor(text: &str) -> Option<Option<Actor>> {
    match text {
        OWN => Some(None),
        _ => parse_actor(text).map(Some),
    }
}

pub(super) fn parse_counts(text: &str) -> Option<Counts> {
    let [admitted, refunded, refused] = numbers(text, ',')?;
    Some(Counts {
        admitted,
        refunded,
        refused,
    })
}

// === schedules, rules and terms ===

fn write_steps(schedule: &Schedule, to: &mut String) -> Result<(), StoreError> {
    for (i, step) in schedule.steps().iter().enumerate() {
        let Flow {
            cap,
            whole,
            rest,
            per,
        } = step.flow;
        for n in [cap, whole, rest, per] {
            exact("a flow", n)?;
        }
        if per == 0 {
            return Err(StoreError::Rejected("a flow's rest is per nothing".into()));
        }
        let sep = if i == 0 { "" } else { ";" };
        write!(to, "{sep}{},{cap},{whole},{rest},{per}", step.from.0)
            .expect("writing to a String can't fail");
    }
    Ok(())
}

fn parse_steps(text: &str) -> Option<Schedule> {
    let steps = text.split(';').map(|step| {
        let [from, cap, whole, rest, per] = numbers(step, ',')?;
        let flow = Flow {
            cap,
            whole,
            rest,
            per,
        };
        let from = StoreMs(from);
        Some(Step { from, flow })
    });
    let steps = steps.collect::<Option<Vec<Step>>>()?;
    let sound = steps.is_sorted_by_key(|s| s.from) && steps.iter().all(|s| s.flow.per > 0);
    sound.then(|| Schedule::new(steps))
}

pub(super) fn rule(rule: &Rule) -> Result<String, StoreError> {
    match rule {
        Rule::Bucket { schedule } => {
            let mut text = String::from("b");
            write_steps(schedule, &mut text)?;
            Ok(text)
        }
        Rule::Window {
            per_ms,
            base,
            base_from,
        } => {
            exact("a window's length", *per_ms)?;
            exact("a window's base", *base)?;
            Ok(format!("w{per_ms},{base},{}", base_from.0))
        }
    }
}

pub(super) fn terms(terms: &Terms) -> Result<String, StoreError> {
    match terms {
        Terms::Bucket {
            epoch,
            schedule,
            own_cap,
        } => {
            let mut text = format!("b{};{};", epoch.0, exact("a capacity", *own_cap)?);
            write_steps(schedule, &mut text)?;
            Ok(text)
        }
        Terms::Window { delta } => {
            exact("a window's rights", delta.unsigned_abs())?;
            Ok(format!("w{delta}"))
        }
    }
}

pub(super) fn parse_terms(text: &str) -> Option<Terms> {
    if let Some(delta) = text.strip_prefix('w') {
        let delta = delta.parse().ok()?;
        return Some(Terms::Window { delta });
    }
    let (epoch, rest) = text.strip_prefix('b')?.split_once(';')?;
    let (own_cap, steps) = rest.split_once(';')?;
    Some(Terms::Bucket {
        epoch: Epoch(epoch.parse().ok()?),
        schedule: parse_steps(steps)?,
        own_cap: own_cap.parse().ok()?,
    })
}

// === meters ===

pub(super) fn parse_meter(text: &str) -> Option<Meter> {
    let mut parts = text.split(';');
    let head = parts.next()?;
    let holds = parts.map(|hold| {
        let [id, units, until] = numbers(hold, ',')?;
        let until = StoreMs(until);
        Some(Hold { id, units, until })
    });
    let holds = holds.collect::<Option<Vec<Hold>>>()?;
    let epoch = |n: u64| u32::try_from(n).ok().map(Epoch);
    if let Some([tokens, at, e]) = numbers(head, ',') {
        return Some(Meter::Bucket(Bucket {
            tokens,
            at: StoreMs(at),
            epoch: epoch(e)?,
            holds,
        }));
    }
    let [used, e] = numbers(head, ',')?;
    Some(Meter::Window(Window {
        used,
        epoch: epoch(e)?,
        holds,
    }))
}

// === fields ===

pub(super) fn fields<const N: usize>(text: &str, sep: char) -> Option<[&str; N]> {
    let mut parts = text.split(sep);
    let mut found = [""; N];
    for field in &mut found {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(found)
}

pub(super) fn numbers<const N: usize>(text: &str, sep: char) -> Option<[u64; N]> {
    let mut found = [0; N];
    for (n, field) in found.iter_mut().zip(fields::<N>(text, sep)?) {
        *n = u64::from_str(field).ok()?;
    }
    Some(found)
}

/// `1 b spendable held cap whole rest per` or `0 w label used rights`; the flag says whether the charge fits.
pub(super) fn parse_answer(text: &str) -> Option<Answer> {
    let (fits, reading) = text.split_once(' ')?;
    let reading = if let Some(bucket) = reading.strip_prefix("b ") {
        let [spendable, held, cap, whole, rest, per] = numbers(bucket, ' ')?;
        let flow = Flow {
            cap,
            whole,
            rest,
            per,
        };
        Reading::Bucket {
            spendable,
            held,
            flow,
        }
    } else {
        let [label, used, rights] = numbers(reading.strip_prefix("w ")?, ' ')?;
        Reading::Window {
            label,
            used,
            rights,
        }
    };
    let fits = fits == "1";
    Some(Answer { fits, reading })
}
