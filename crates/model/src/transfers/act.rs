//! The world of transfers: what can happen next, and what comes of it.

use super::{Bounds, HALVES, LABELS, Planted, TransfersModel};
use apportion_core::StoreMs;
use apportion_core::allotment::{self, Transfers};
use std::hash::{Hash, Hasher};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub regions: Vec<RegionNow>,
    /// What lives that are over have used, by label.
    pub used_before: [u8; LABELS],
    /// Every row that was ever sent, in order; any may arrive at any time.
    pub rows: Vec<Row>,
    pub gifts_left: u8,
    pub losses_left: u8,
    pub steps_left: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegionNow {
    pub life: u8,
    /// Its clock, in halves of a window.
    pub half: u8,
    /// The latest moment that its clock has ever shown in this life.
    pub high_water: u8,
    /// The first label with a base.
    pub base_from: usize,
    pub windows: [Window; LABELS],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Window {
    pub used: u8,
    pub transfers: Kept,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept(Transfers);

/// A row on its way: cumulative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Row {
    pub label: u8,
    pub from: u8,
    pub from_life: u8,
    pub to: u8,
    pub to_life: u8,
    pub units: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The clock goes on.
    Tick(u8),
    /// It is set back, by a window at least: what is long over in the store is forgotten by then.
    SetBack { region: u8, to: u8 },
    /// One unit of the present window.
    Spend(u8),
    Give {
        by: u8,
        to: u8,
        to_life: u8,
        label: u8,
        units: u8,
    },
    /// A row arrives.
    TakeIn(Row),
    /// The store is lost, or rolled back: a new life, on a host whose clock may be behind.
    Lose { region: u8, behind: bool },
}

// === impl Kept ===

impl Kept {
    fn new(mut transfers: Transfers) -> Self {
        let by_actor = |a: &apportion_core::Actor| (a.region.clone(), a.life);
        transfers.given.sort_by_key(|g| by_actor(&g.to));
        transfers.received.sort_by_key(|r| by_actor(&r.from));
        Self(transfers)
    }
}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Transfers { given, received } = &self.0;
        given.len().hash(state);
        for g in given {
            (&g.to, g.units, g.asked_at).hash(state);
        }
        for r in received {
            (&r.from, r.units).hash(state);
        }
    }
}

// === impl RegionNow ===

impl RegionNow {
    fn label(&self) -> usize {
        usize::from(self.half / HALVES)
    }

    fn base(&self, model: &TransfersModel, label: usize) -> u8 {
        if label >= self.base_from {
            model.bounds.base
        } else {
            0
        }
    }

    fn rights(&self, model: &TransfersModel, label: usize) -> i64 {
        i64::from(self.base(model, label)) + self.windows[label].transfers.0.delta()
    }

    fn left(&self, model: &TransfersModel, label: usize) -> u8 {
        let is_over = label < usize::from(self.high_water / HALVES);
        if is_over && !model.has(Planted::OpenedAgain) {
            return 0;
        }
        let left = self.rights(model, label) - i64::from(self.windows[label].used);
        u8::try_from(left).unwrap_or(0)
    }

    /// What the store drops by itself: a window, once the next one is over too.
    fn expire(&mut self) {
        let label = self.label();
        for (_, window) in self
            .windows
            .iter_mut()
            .enumerate()
            .filter(|(l, _)| l + 2 <= label)
        {
            window.transfers = Kept::default();
            window.used = 0;
        }
    }
}

// === impl World ===

impl World {
    pub fn new(bounds: &Bounds) -> Self {
        let region = RegionNow {
            life: 0,
            half: bounds.from,
            high_water: bounds.from,
            base_from: 0,
            windows: Default::default(),
        };
        Self {
            regions: vec![region; bounds.regions],
            used_before: [0; LABELS],
            rows: Vec::new(),
            gifts_left: bounds.gifts,
            losses_left: bounds.losses,
            steps_left: bounds.steps,
        }
    }

    /// By all lives of all regions.
    pub fn used(&self, label: usize) -> u64 {
        let present = self
            .regions
            .iter()
            .map(|r| u64::from(r.windows[label].used));
        present.sum::<u64>() + u64::from(self.used_before[label])
    }

    /// Nobody has seen it end.
    pub fn is_open(&self, label: usize) -> bool {
        self.regions
            .iter()
            .all(|r| label >= usize::from(r.high_water / HALVES))
    }

    /// All rights to a window.
    pub fn rights(&self, model: &TransfersModel, label: usize) -> u64 {
        let rights = self.regions.iter().map(|r| r.rights(model, label));
        u64::try_from(rights.sum::<i64>()).unwrap_or(0)
    }

    /// This world when every row has arrived, whichever first.
    pub fn delivered(&self, model: &TransfersModel) -> Self {
        let mut later = self.clone();
        for row in self.rows.iter().rev() {
            if let Some(next) = model.take_in(&later, *row) {
                later = next;
            }
        }
        later
    }
}

// === impl TransfersModel ===

impl TransfersModel {
    pub(super) fn enumerate(&self, world: &World, actions: &mut Vec<Action>) {
        let regions = self.bounds.regions as u8;
        for (i, r) in (0..regions).zip(&world.regions) {
            if r.half < self.bounds.halves {
                actions.push(Action::Tick(i));
            }
            if r.left(self, r.label()) > 0 {
                actions.push(Action::Spend(i));
            }
            if world.steps_left > 0 {
                for to in 0..r.half.saturating_sub(HALVES) {
                    actions.push(Action::SetBack { region: i, to });
                }
            }
            if world.losses_left > 0 {
                actions.push(Action::Lose {
                    region: i,
                    behind: false,
                });
                if r.half.is_multiple_of(HALVES) && r.half > 0 {
                    actions.push(Action::Lose {
                        region: i,
                        behind: true,
                    });
                }
            }
            if world.gifts_left > 0 {
                self.enumerate_gifts(world, i, r, actions);
            }
        }
        actions.extend(world.rows.iter().map(|row| Action::TakeIn(*row)));
    }

    fn enumerate_gifts(&self, world: &World, by: u8, r: &RegionNow, actions: &mut Vec<Action>) {
        let ahead = if self.has(Planted::GivenFarAhead) {
            LABELS - 1
        } else {
            r.label() + 1
        };
        for label in r.label()..=ahead.min(LABELS - 1) {
            let most = if self.has(Planted::GivenUnguarded) {
                u8::try_from(r.rights(self, label)).unwrap_or(0)
            } else {
                r.left(self, label)
            };
            for (to, receiver) in (0..).zip(&world.regions).filter(|(to, _)| *to != by) {
                for (to_life, units) in
                    (0..=receiver.life).flat_map(|life| (1..=most).map(move |u| (life, u)))
                {
                    actions.push(Action::Give {
                        by,
                        to,
                        to_life,
                        label: label as u8,
                        units,
                    });
                }
            }
        }
    }

    pub(super) fn apply(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick(i) => {
                let r = &mut next.regions[usize::from(i)];
                r.half += 1;
                r.high_water = r.high_water.max(r.half);
                forget(&mut next, usize::from(i));
            }
            Action::SetBack { region, to } => {
                next.steps_left -= 1;
                next.regions[usize::from(region)].half = to;
            }
            Action::Spend(i) => {
                let r = &mut next.regions[usize::from(i)];
                let label = r.label();
                r.windows[label].used += 1;
            }
            Action::Give {
                by,
                to,
                to_life,
                label,
                units,
            } => {
                next.gifts_left -= 1;
                let r = &mut next.regions[usize::from(by)];
                let us = self.actor(by, r.life);
                let window = &mut r.windows[usize::from(label)];
                let transfers = window.transfers.0.clone();
                // As many asks as were answered: each is newer than the one before.
                let asked_at = StoreMs(u64::from(self.bounds.gifts - world.gifts_left) + 1);
                let (given, row) =
                    transfers.give(us, self.actor(to, to_life), u64::from(units), asked_at)?;
                if !self.has(Planted::SentBeforeRecorded) {
                    window.transfers = Kept::new(given);
                }
                let row = Row {
                    label,
                    from: by,
                    from_life: r.life,
                    to,
                    to_life,
                    units: row.units as u8,
                };
                if let Err(place) = next.rows.binary_search(&row) {
                    next.rows.insert(place, row);
                }
            }
            Action::TakeIn(row) => return self.take_in(world, row),
            Action::Lose { region, behind } => self.lose(&mut next, usize::from(region), behind),
        }
        Some(next)
    }

    fn take_in(&self, world: &World, row: Row) -> Option<World> {
        let us = usize::from(row.to);
        let r = &world.regions[us];
        let mut label = usize::from(row.label);
        if self.has(Planted::CrossWindow) {
            label = r.label();
        }
        if label < usize::from(r.high_water / HALVES) && !self.has(Planted::OpenedAgain) {
            return None;
        }
        let to_life = if self.has(Planted::RowByRegion) {
            r.life
        } else {
            row.to_life
        };
        let message = allotment::Row {
            from: self.actor(row.from, row.from_life).clone(),
            to: self.actor(row.to, to_life).clone(),
            units: u64::from(row.units),
        };
        let mut transfers = r.windows[label].transfers.0.clone();
        let held = transfers
            .received
            .iter_mut()
            .find(|held| held.from == message.from);
        let mut added = message.clone();
        match (self.planted, held) {
            (Some(Planted::RowsAddedUp), Some(held)) if held.units < self.limit() => {
                added.units += held.units;
            }
            (Some(Planted::NewestNotLargestRow), Some(held)) => held.units = 0,
            _ => {}
        }
        let taken = transfers.take_in(self.actor(row.to, r.life), &added)?;
        let mut next = world.clone();
        next.regions[us].windows[label].transfers = Kept::new(taken);
        (next != *world).then_some(next)
    }

    fn lose(&self, next: &mut World, i: usize, behind: bool) {
        next.losses_left -= 1;
        let r = &mut next.regions[i];
        let used = r.windows.iter().map(|w| w.used);
        for (before, used) in next.used_before.iter_mut().zip(used) {
            *before += used;
        }
        r.windows = Default::default();
        if self.has(Planted::RollbackWithoutLife) {
            return;
        }
        r.life += 1;
        r.half -= u8::from(behind);
        r.high_water = r.half;
        r.base_from = self.base_from_label(r.half);
    }
}

/// What a store forgets, the world doesn't.
fn forget(world: &mut World, i: usize) {
    let r = &mut world.regions[i];
    let before: Vec<u8> = r.windows.iter().map(|w| w.used).collect();
    r.expire();
    for (label, used) in before.iter().enumerate() {
        world.used_before[label] += used - r.windows[label].used;
    }
}
