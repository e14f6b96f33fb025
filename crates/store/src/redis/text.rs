//! Records and actors in Redis: as text, so that an operator can read them.

use apportion_core::{Actor, Epoch, Life, Record, Region};

/// Stands for this store's own actor.
const OWN: &str = ".";

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

// === fields ===

pub(super) fn fields<const N: usize>(text: &str, sep: char) -> Option<[&str; N]> {
    let mut parts = text.split(sep);
    let mut found = [""; N];
    for field in &mut found {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(found)
}
