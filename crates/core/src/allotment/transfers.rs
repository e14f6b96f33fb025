//! Transfers of a window: rights given for good, from one life of the giver to one life of the receiver.
//!
//! Rows are cumulative, written by the giver alone and merged by maximum, so that loss, delay, doubling and
//! reordering are harmless. A row belongs to one window label.

use crate::ids::{Actor, StoreMs};
use crate::planted::{self, Bug};
use serde::{Deserialize, Serialize};

/// Rows on record for one label: two lives of each of 64 regions.
const ROWS_MAX: usize = 128;

/// The rows of one key and one window label that one region is a party to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Transfers {
    pub given: Vec<Given>,
    pub received: Vec<Received>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Given {
    pub to: Actor,
    /// All units ever given to that life, for this label.
    pub units: u64,
    /// How much of it the receiver is known to have on record.
    pub confirmed: u64,
    /// The newest ask that was answered: a doubled ask isn't answered twice.
    pub asked_at: StoreMs,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Received {
    pub from: Actor,
    pub units: u64,
}

/// A row on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub from: Actor,
    pub to: Actor,
    pub units: u64,
}

/// The receiver has so much of a row on record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowSeen {
    pub from: Actor,
    pub to: Actor,
    pub units: u64,
}

impl Transfers {
    /// Rights received less rights given.
    pub fn delta(&self) -> i64 {
        let sum = |units: u64| i64::try_from(units).expect("limits are validated to fit");
        sum(self.received_units()) - sum(self.given_units())
    }

    pub fn received_units(&self) -> u64 {
        self.received.iter().map(|r| r.units).sum()
    }

    pub fn given_units(&self) -> u64 {
        self.given.iter().map(|g| g.units).sum()
    }

    /// Gives `units` more to the asker. `None` where the ask was answered before. The swap that lays this down proves
    /// that the rights are unused; only then may the row be sent.
    #[must_use]
    pub fn give(
        mut self,
        us: &Actor,
        to: &Actor,
        units: u64,
        asked_at: StoreMs,
    ) -> Option<(Self, Row)> {
        let full = self.given.len() >= ROWS_MAX;
        let by_region = planted::is_on(Bug::RowsByRegion);
        let is_of = |g: &Given| g.to == *to || (by_region && g.to.region == to.region);
        match self.given.iter_mut().find(|g| is_of(g)) {
            Some(given) if given.asked_at >= asked_at => return None,
            Some(given) => {
                given.units += units;
                given.asked_at = asked_at;
                given.to = to.clone();
            }
            None if full => return None,
            None => self.given.push(Given {
                to: to.clone(),
                units,
                confirmed: 0,
                asked_at,
            }),
        }
        let row = self.rows(us).into_iter().find(|row| row.to == *to)?;
        Some((self, row))
    }

    /// Every row that was given and isn't known to have arrived.
    pub fn unconfirmed(&self, us: &Actor) -> Vec<Row> {
        let open = |row: &Row| {
            self.given
                .iter()
                .any(|g| g.to == row.to && g.confirmed < g.units)
        };
        self.rows(us).into_iter().filter(open).collect()
    }

    fn rows(&self, us: &Actor) -> Vec<Row> {
        self.given
            .iter()
            .map(|g| Row {
                from: us.clone(),
                to: g.to.clone(),
                units: g.units,
            })
            .collect()
    }

    /// Takes in a row. `None` where it is for another life, or holds nothing new.
    #[must_use]
    pub fn take_in(mut self, us: &Actor, row: &Row) -> Option<Self> {
        let is_ours =
            row.to == *us || (planted::is_on(Bug::OlderLifeRow) && row.to.region == us.region);
        if !is_ours || row.from.region == us.region {
            return None;
        }
        let full = self.received.len() >= ROWS_MAX;
        match self.received.iter_mut().find(|r| r.from == row.from) {
            Some(held) if planted::is_on(Bug::RowsAddedUp) => held.units += row.units,
            Some(held) if held.units >= row.units => return None,
            Some(held) => held.units = row.units,
            None if full => return None,
            None => self.received.push(Received {
                from: row.from.clone(),
                units: row.units,
            }),
        }
        Some(self)
    }

    /// Notes that a row has arrived, so that it isn't sent again.
    #[must_use]
    pub fn confirm(mut self, us: &Actor, seen: &RowSeen) -> Option<Self> {
        let given = self
            .given
            .iter_mut()
            .find(|g| g.to == seen.to && seen.from == *us)?;
        let confirmed = seen.units.min(given.units);
        if confirmed <= given.confirmed {
            return None;
        }
        given.confirmed = confirmed;
        Some(self)
    }
}
