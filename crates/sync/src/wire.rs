//! Messages to and from their wire form.
//!
//! What comes in is checked against every bound before the machine sees any of it: a message is taken as a whole or
//! refused as a whole, with the field at fault. No input makes this panic.

mod rollout;
#[cfg(test)]
mod tests;

use crate::message::{Ask, Count, Message, Trade, UsageEntry};
use apportion_core::allotment::{LoanGrant, Row, RowSeen, Statement};
use apportion_core::lives::{Heard, Kept, LifeTable, Nonce, Word};
use apportion_core::policy::{PPB, limits};
use apportion_core::tally::Told;
use apportion_core::usage::Counts;
use apportion_core::{Actor, Epoch, Key, Life, Limits, Region, StoreMs};
use apportion_proto::sync::v1 as proto;
use apportion_store::MeterId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Usage slots in one message.
pub const USAGE_MAX: usize = 20_000;
/// Tallies in one message.
pub const COUNTS_MAX: usize = 20_000;
/// Asks, grants, statements, rows, rows seen, words of what is left, and demands: so many of each in one message.
pub const TRADE_MAX: usize = 5_000;
pub const REGIONS_MAX: usize = limits::MAX_REGIONS;
/// Lives of one region.
pub const LIVES_MAX: usize = 256;
/// Those that one message can speak of.
pub const ACTORS_MAX: usize = REGIONS_MAX * LIVES_MAX;
const PARTITIONS: usize = 256;
const READER_MAX: usize = 128;
/// Lua counts exactly up to here: units, counts, moments.
const NUMBER_MAX: u64 = (1 << 53) - 1;
const LIFE_MAX: u64 = (1 << 48) - 1;

/// Why a message was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    #[error("{field}: missing")]
    Missing { field: &'static str },
    #[error("{field}: {count} of them; expected at most {most}")]
    TooMany {
        field: &'static str,
        count: usize,
        most: usize,
    },
    #[error("{field}: {value}; expected at most {most}")]
    TooLarge {
        field: &'static str,
        value: u64,
        most: u64,
    },
    #[error("{field}: {reason}")]
    Malformed {
        field: &'static str,
        reason: &'static str,
    },
}

/// Those that a message speaks of, each by its place.
struct Actors {
    list: Vec<proto::Actor>,
    places: HashMap<Actor, u32>,
}

// === to the wire ===

pub fn to_wire(message: &Message) -> proto::Message {
    let table = &message.table;
    let mut actors = Actors::beginning_with(&table.sender);
    let usage = message.usage.iter().map(|entry| proto::Usage {
        actor: actors.place(&entry.actor),
        key: entry.key.to_string(),
        period_ms: entry.period.0,
        admitted: entry.counts.admitted,
        refunded: entry.counts.refunded,
        refused: entry.counts.refused,
    });
    let usage = usage.collect();
    let counts = message.counts.iter().map(|count| proto::Count {
        actor: actors.place(&count.actor),
        key: count.id.key.to_string(),
        label: count.id.label,
        began_ms: count.told.began.0,
        units: count.told.units,
        recent: count.told.recent,
    });
    let counts = counts.collect();
    let trade = trade_to_wire(&message.trade, &mut actors);
    proto::Message {
        actors: actors.list,
        epoch: table.epoch.0,
        began_at_ms: table.began_at.0,
        present: table
            .present
            .iter()
            .map(|(region, life)| actor_to_wire(region, *life))
            .collect(),
        known: table.known.iter().map(lives_to_wire).collect(),
        ended: table.ended.iter().map(|life| life.to_bits()).collect(),
        revisions: rollout::revisions_to_wire(&table.rollout),
        original: table.rollout.original,
        retired: rollout::retired_to_wire(&table.rollout),
        behind: table.rollout.behind.iter().copied().collect(),
        policies: message.policies,
        is_reply: message.is_reply,
        usage,
        through_ms: message.through.map(|through| through.0),
        feed: positions_to_wire(&message.feed),
        acks: positions_to_wire(&message.acks),
        reader: message.reader.clone(),
        trade: (!message.trade.is_empty()).then_some(trade),
        counts,
        closing: table.word.map(closing_to_wire),
        kept: table.kept.iter().map(kept_to_wire).collect(),
    }
}

fn closing_to_wire(word: Word) -> proto::Closing {
    proto::Closing {
        number: word.nonce.number,
        random: word.nonce.random,
        strike_by: word.strike_by,
    }
}

fn kept_to_wire((region, kept): (&Region, &Kept)) -> proto::KeptClosing {
    proto::KeptClosing {
        region: region.to_string(),
        life: kept.life.to_bits(),
        number: kept.nonce.number,
        random: kept.nonce.random,
        told: kept.told,
        struck_by: kept.struck_by,
    }
}

fn trade_to_wire(trade: &Trade, actors: &mut Actors) -> proto::Trade {
    let asks = trade.asks.iter().map(|ask| proto::Ask {
        key: ask.id.key.to_string(),
        label: ask.id.label,
        asked_at_ms: ask.asked_at.0,
        want: ask.want,
        keep: ask.keep,
        refusing: ask.refusing,
        last_resort: ask.last_resort,
        limits: ask.limits.map(|limits| proto::Limits {
            limit: limits.limit,
            burst: limits.burst,
        }),
    });
    let left = trade.left.iter().map(|(id, units)| proto::Left {
        key: id.key.to_string(),
        label: id.label,
        units: *units,
    });
    let (asks, left) = (asks.collect(), left.collect());
    let grants = trade.grants.iter().map(|(key, grant)| proto::Grant {
        key: key.to_string(),
        by: actors.place(&grant.by),
        by_epoch: grant.by_epoch.0,
        to: actors.place(&grant.to),
        to_epoch: grant.to_epoch.0,
        asked_at_ms: grant.asked_at.0,
        amount_ppb: grant.amount_ppb,
    });
    let grants = grants.collect();
    let statements = trade
        .statements
        .iter()
        .map(|(key, statement)| proto::Statement {
            key: key.to_string(),
            by: actors.place(&statement.by),
            epoch: statement.epoch.0,
            to: actors.place(&statement.to),
            up_to_ms: statement.up_to.0,
            keep_ppb: statement.keep_ppb,
        });
    let statements = statements.collect();
    let mut row = |id: &MeterId, from: &Actor, to: &Actor, units: u64| proto::Row {
        key: id.key.to_string(),
        label: id.label,
        from: actors.place(from),
        to: actors.place(to),
        units,
    };
    let rows = trade.rows.iter();
    let rows = rows
        .map(|(id, r)| row(id, &r.from, &r.to, r.units))
        .collect();
    let seen = trade.seen.iter();
    let seen = seen
        .map(|(id, r)| row(id, &r.from, &r.to, r.units))
        .collect();
    proto::Trade {
        asks,
        grants,
        statements,
        rows,
        seen,
        left,
        demands: trade
            .demands
            .iter()
            .map(|(key, ppb)| proto::Demand {
                key: key.to_string(),
                ppb: *ppb,
            })
            .collect(),
    }
}

fn actor_to_wire(region: &Region, life: Life) -> proto::Actor {
    proto::Actor {
        region: region.to_string(),
        life: life.to_bits(),
    }
}

fn lives_to_wire((region, lives): (&Region, &BTreeSet<Life>)) -> proto::Lives {
    proto::Lives {
        region: region.to_string(),
        lives: lives.iter().map(|life| life.to_bits()).collect(),
    }
}

fn positions_to_wire(positions: &[(u8, u64)]) -> Vec<proto::FeedPosition> {
    let position = |(partition, seq): &(u8, u64)| proto::FeedPosition {
        partition: u32::from(*partition),
        seq: *seq,
    };
    positions.iter().map(position).collect()
}

impl Actors {
    fn beginning_with(sender: &Actor) -> Self {
        let mut actors = Self {
            list: Vec::new(),
            places: HashMap::new(),
        };
        actors.place(sender);
        actors
    }

    fn place(&mut self, actor: &Actor) -> u32 {
        if let Some(place) = self.places.get(actor) {
            return *place;
        }
        let place = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(actor_to_wire(&actor.region, actor.life));
        self.places.insert(actor.clone(), place);
        place
    }
}

// === from the wire ===

/// # Errors
/// Where a bound is broken or a field can't be read: the message is to be refused as a whole.
pub fn from_wire(wire: proto::Message) -> Result<Message, WireError> {
    let actors = few("actors", wire.actors, ACTORS_MAX)?;
    let actors = each(actors, |actor| {
        Ok(Actor {
            region: region("actors.region", &actor.region)?,
            life: life("actors.life", actor.life)?,
        })
    })?;
    let sender = actors
        .first()
        .cloned()
        .ok_or(WireError::Missing { field: "actors" })?;
    let known = few("known", wire.known, REGIONS_MAX)?;
    let ended = few("ended", wire.ended, LIVES_MAX)?;
    let table = LifeTable {
        sender,
        epoch: Epoch(wire.epoch),
        began_at: moment("began_at_ms", wire.began_at_ms)?,
        present: present_from_wire(few("present", wire.present, REGIONS_MAX)?)?,
        known: known_from_wire(known)?,
        ended: ended
            .into_iter()
            .map(|bits| life("ended", bits))
            .collect::<Result<_, _>>()?,
        word: wire.closing.map(closing_from_wire),
        kept: kept_from_wire(few("kept", wire.kept, REGIONS_MAX)?)?,
        rollout: rollout::from_wire(wire.revisions, wire.original, wire.retired, wire.behind)?,
    };
    let usage = few("usage", wire.usage, USAGE_MAX)?;
    let usage = each(usage, |entry| {
        Ok(UsageEntry {
            key: key("usage.key", &entry.key)?,
            period: moment("usage.period_ms", entry.period_ms)?,
            actor: at("usage.actor", &actors, entry.actor)?,
            counts: Counts {
                admitted: number("usage.admitted", entry.admitted)?,
                refunded: number("usage.refunded", entry.refunded)?,
                refused: number("usage.refused", entry.refused)?,
            },
        })
    })?;
    let counts = few("counts", wire.counts, COUNTS_MAX)?;
    let counts = each(counts, |count| {
        let units = number("counts.units", count.units)?;
        Ok(Count {
            id: MeterId {
                key: key("counts.key", &count.key)?,
                label: label("counts.label", count.label)?,
            },
            actor: at("counts.actor", &actors, count.actor)?,
            told: Told {
                began: moment("counts.began_ms", count.began_ms)?,
                units,
                recent: at_most("counts.recent", count.recent, units)?,
            },
        })
    })?;
    let through = wire.through_ms.map(|ms| moment("through_ms", ms));
    Ok(Message {
        table,
        policies: wire.policies,
        is_reply: wire.is_reply,
        usage,
        counts,
        through: through.transpose()?,
        feed: positions("feed", wire.feed)?,
        acks: positions("acks", wire.acks)?,
        reader: reader(wire.reader)?,
        trade: trade_from_wire(wire.trade.unwrap_or_default(), &actors)?,
    })
}

fn present_from_wire(present: Vec<proto::Actor>) -> Result<Heard, WireError> {
    let mut heard = Heard::new();
    for actor in present {
        let name = region("present.region", &actor.region)?;
        let twice = heard.insert(name, life("present.life", actor.life)?);
        once("present.region", twice.is_none())?;
    }
    Ok(heard)
}

fn known_from_wire(
    known: Vec<proto::Lives>,
) -> Result<BTreeMap<Region, BTreeSet<Life>>, WireError> {
    let mut all = BTreeMap::new();
    for entry in known {
        let name = region("known.region", &entry.region)?;
        let lives = few("known.lives", entry.lives, LIVES_MAX)?;
        let lives = lives.into_iter().map(|bits| life("known.lives", bits));
        let twice = all.insert(name, lives.collect::<Result<_, _>>()?);
        once("known.region", twice.is_none())?;
    }
    Ok(all)
}

fn closing_from_wire(closing: proto::Closing) -> Word {
    Word {
        nonce: Nonce {
            number: closing.number,
            random: closing.random,
        },
        strike_by: closing.strike_by,
    }
}

fn kept_from_wire(list: Vec<proto::KeptClosing>) -> Result<BTreeMap<Region, Kept>, WireError> {
    let mut all = BTreeMap::new();
    for entry in list {
        let kept = Kept {
            life: life("kept.life", entry.life)?,
            nonce: Nonce {
                number: entry.number,
                random: entry.random,
            },
            told: entry.told,
            struck_by: entry.struck_by,
        };
        let twice = all.insert(region("kept.region", &entry.region)?, kept);
        once("kept.region", twice.is_none())?;
    }
    Ok(all)
}

fn trade_from_wire(trade: proto::Trade, actors: &[Actor]) -> Result<Trade, WireError> {
    let asks = few("trade.asks", trade.asks, TRADE_MAX)?;
    let asks = each(asks, |ask| {
        // A rate's asks are in parts, a window's in units.
        let most = if ask.label.is_none() { PPB } else { NUMBER_MAX };
        Ok(Ask {
            id: MeterId {
                key: key("trade.asks.key", &ask.key)?,
                label: label("trade.asks.label", ask.label)?,
            },
            asked_at: moment("trade.asks.asked_at_ms", ask.asked_at_ms)?,
            want: at_most("trade.asks.want", ask.want, most)?,
            keep: ask
                .keep
                .map(|keep| at_most("trade.asks.keep", keep, most))
                .transpose()?,
            refusing: ask.refusing,
            last_resort: ask.last_resort,
            limits: ask.limits.map(limits_from_wire).transpose()?,
        })
    })?;
    let grants = few("trade.grants", trade.grants, TRADE_MAX)?;
    let grants = each(grants, |grant| {
        let key = key("trade.grants.key", &grant.key)?;
        let grant = LoanGrant {
            by: at("trade.grants.by", actors, grant.by)?,
            by_epoch: Epoch(grant.by_epoch),
            to: at("trade.grants.to", actors, grant.to)?,
            to_epoch: Epoch(grant.to_epoch),
            asked_at: moment("trade.grants.asked_at_ms", grant.asked_at_ms)?,
            amount_ppb: at_most("trade.grants.amount_ppb", grant.amount_ppb, PPB)?,
        };
        Ok((key, grant))
    })?;
    let statements = few("trade.statements", trade.statements, TRADE_MAX)?;
    let statements = each(statements, |statement| {
        let key = key("trade.statements.key", &statement.key)?;
        let statement = Statement {
            by: at("trade.statements.by", actors, statement.by)?,
            epoch: Epoch(statement.epoch),
            to: at("trade.statements.to", actors, statement.to)?,
            up_to: moment("trade.statements.up_to_ms", statement.up_to_ms)?,
            keep_ppb: at_most("trade.statements.keep_ppb", statement.keep_ppb, PPB)?,
        };
        Ok((key, statement))
    })?;
    let rows = few("trade.rows", trade.rows, TRADE_MAX)?;
    let rows = each(rows, |row| {
        let id = window(["trade.rows.key", "trade.rows.label"], &row.key, row.label)?;
        let row = Row {
            from: at("trade.rows.from", actors, row.from)?,
            to: at("trade.rows.to", actors, row.to)?,
            units: number("trade.rows.units", row.units)?,
        };
        Ok((id, row))
    })?;
    let seen = few("trade.seen", trade.seen, TRADE_MAX)?;
    let seen = each(seen, |row| {
        let id = window(["trade.seen.key", "trade.seen.label"], &row.key, row.label)?;
        let seen = RowSeen {
            from: at("trade.seen.from", actors, row.from)?,
            to: at("trade.seen.to", actors, row.to)?,
            units: number("trade.seen.units", row.units)?,
        };
        Ok((id, seen))
    })?;
    let left = few("trade.left", trade.left, TRADE_MAX)?;
    let left = each(left, |left| {
        let id = MeterId {
            key: key("trade.left.key", &left.key)?,
            label: label("trade.left.label", left.label)?,
        };
        Ok((id, number("trade.left.units", left.units)?))
    })?;
    let demands = few("trade.demands", trade.demands, TRADE_MAX)?;
    let demands = each(demands, |demand| {
        let key = key("trade.demands.key", &demand.key)?;
        Ok((key, number("trade.demands.ppb", demand.ppb)?))
    })?;
    Ok(Trade {
        asks,
        grants,
        statements,
        rows,
        seen,
        left,
        demands,
    })
}

fn limits_from_wire(wire: proto::Limits) -> Result<Limits, WireError> {
    let most = *limits::UNITS.end();
    Ok(Limits {
        limit: at_most("trade.asks.limits.limit", wire.limit, most)?,
        burst: at_most("trade.asks.limits.burst", wire.burst, most)?,
    })
}

fn positions(
    field: &'static str,
    wire: Vec<proto::FeedPosition>,
) -> Result<Vec<(u8, u64)>, WireError> {
    each(few(field, wire, PARTITIONS)?, |position| {
        let partition = u8::try_from(position.partition).map_err(|_| WireError::TooLarge {
            field,
            value: u64::from(position.partition),
            most: u64::from(u8::MAX),
        })?;
        Ok((partition, number(field, position.seq)?))
    })
}

fn reader(name: String) -> Result<String, WireError> {
    let field = "reader";
    if name.len() > READER_MAX || !name.bytes().all(|b| b.is_ascii_graphic()) {
        let reason = "not a name of at most 128 printable ASCII characters";
        return Err(WireError::Malformed { field, reason });
    }
    Ok(name)
}

// === bounds ===

fn few<T>(field: &'static str, list: Vec<T>, most: usize) -> Result<Vec<T>, WireError> {
    let count = list.len();
    if count > most {
        return Err(WireError::TooMany { field, count, most });
    }
    Ok(list)
}

fn each<T, U>(
    list: Vec<T>,
    read: impl FnMut(T) -> Result<U, WireError>,
) -> Result<Vec<U>, WireError> {
    list.into_iter().map(read).collect()
}

fn at_most(field: &'static str, value: u64, most: u64) -> Result<u64, WireError> {
    if value > most {
        return Err(WireError::TooLarge { field, value, most });
    }
    Ok(value)
}

fn number(field: &'static str, value: u64) -> Result<u64, WireError> {
    at_most(field, value, NUMBER_MAX)
}

fn moment(field: &'static str, ms: u64) -> Result<StoreMs, WireError> {
    number(field, ms).map(StoreMs)
}

pub(crate) fn label(field: &'static str, label: Option<u64>) -> Result<Option<u64>, WireError> {
    label.map(|label| number(field, label)).transpose()
}

fn life(field: &'static str, bits: u64) -> Result<Life, WireError> {
    at_most(field, bits, LIFE_MAX).map(Life::from_random)
}

fn region(field: &'static str, name: &str) -> Result<Region, WireError> {
    if !limits::is_region_name(name) {
        return Err(WireError::Malformed {
            field,
            reason: "no name for a region",
        });
    }
    Ok(Region::new(name))
}

pub(crate) fn key(field: &'static str, text: &str) -> Result<Key, WireError> {
    Key::parse(text).ok_or(WireError::Malformed {
        field,
        reason: "no key",
    })
}

fn window(fields: [&'static str; 2], text: &str, of: Option<u64>) -> Result<MeterId, WireError> {
    let [key_field, label_field] = fields;
    let known = label(label_field, of)?;
    Ok(MeterId {
        key: key(key_field, text)?,
        label: Some(known.ok_or(WireError::Missing { field: label_field })?),
    })
}

fn at(field: &'static str, actors: &[Actor], place: u32) -> Result<Actor, WireError> {
    let actor = usize::try_from(place).ok().and_then(|i| actors.get(i));
    actor.cloned().ok_or(WireError::Malformed {
        field,
        reason: "not a place in the list of actors",
    })
}

fn once(field: &'static str, is_first: bool) -> Result<(), WireError> {
    if is_first {
        return Ok(());
    }
    Err(WireError::Malformed {
        field,
        reason: "named twice",
    })
}
