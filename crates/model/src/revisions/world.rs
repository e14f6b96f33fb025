//! Regions, what they go by, and what they have heard of each other.

use super::{Bases, Bounds, Planted, REVISIONS, RevisionsModel};

/// A set of revisions, by bits.
type Set = u8;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub bases: Bases,
    pub regions: Vec<RegionNow>,
    /// What was said once, and may arrive late.
    pub late: Vec<Said>,
    pub late_left: u8,
    pub losses_left: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegionNow {
    pub life: u8,
    /// Every revision that this life has read.
    pub read: Set,
    /// The one in force: the oldest that it goes by.
    pub front: usize,
    /// It can't know what an earlier life confirmed: it has no base.
    pub is_unsure: bool,
    pub heard: Vec<Heard>,
}

/// What a region has heard of another.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Heard {
    pub life: u8,
    /// What that life has confirmed.
    pub confirmed: Set,
    /// What it goes by, as it said when it knew of our present life.
    pub list: Option<Set>,
}

/// One region's word.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Said {
    pub from: usize,
    pub life: u8,
    pub list: Set,
    pub confirmed: Set,
    /// The lives of the others that it knows of.
    pub lives: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A region reads a newer revision; it may skip some.
    Read { region: usize, revision: usize },
    /// What a region says just now is heard.
    Hear { by: usize, from: usize },
    /// It is said, and will arrive late.
    Delay { from: usize },
    /// It arrives.
    HearLate { by: usize, which: usize },
    /// The store is lost; its next life reads this revision.
    Lose { region: usize, revision: usize },
}

// === impl RegionNow ===

impl RegionNow {
    /// The revisions that it goes by.
    pub fn list(&self) -> impl Iterator<Item = usize> {
        let (read, front) = (self.read, self.front);
        (front..REVISIONS).filter(move |k| read & 1 << k != 0)
    }

    fn list_set(&self) -> Set {
        self.list().fold(0, |set, k| set | 1 << k)
    }

    fn newest(&self) -> usize {
        self.list().last().unwrap_or(self.front)
    }
}

// === impl World ===

impl World {
    pub fn new(bounds: &Bounds, bases: Bases) -> Self {
        let heard = Heard {
            life: 0,
            confirmed: 1,
            list: Some(1),
        };
        let region = RegionNow {
            life: 0,
            read: 1,
            front: 0,
            is_unsure: false,
            heard: vec![heard; bounds.regions],
        };
        Self {
            bases,
            regions: vec![region; bounds.regions],
            late: Vec::new(),
            late_left: bounds.late,
            losses_left: bounds.losses,
        }
    }

    /// The base that a region goes by.
    fn base(&self, model: &RevisionsModel, i: usize) -> u8 {
        let r = &self.regions[i];
        if r.is_unsure {
            return 0;
        }
        if model.has(Planted::ConfirmedBeforeLowered) {
            return self.bases[r.front][i];
        }
        r.list().map(|k| self.bases[k][i]).min().unwrap_or(0)
    }

    pub fn used(&self, model: &RevisionsModel) -> u8 {
        (0..self.regions.len()).map(|i| self.base(model, i)).sum()
    }

    /// The largest limit of all revisions from the oldest that is in force anywhere to the newest that anybody reads.
    pub fn limit(&self) -> u8 {
        let oldest = self.regions.iter().map(|r| r.front).min().unwrap_or(0);
        let newest = self
            .regions
            .iter()
            .map(RegionNow::newest)
            .max()
            .unwrap_or(0);
        let limits = (oldest..=newest).map(|k| self.bases[k].iter().sum());
        limits.max().unwrap_or(0)
    }
}

// === impl RevisionsModel ===

impl RevisionsModel {
    pub(super) fn enumerate(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, r) in world.regions.iter().enumerate() {
            for revision in r.newest() + 1..REVISIONS {
                actions.push(Action::Read {
                    region: i,
                    revision,
                });
            }
            for from in (0..self.bounds.regions).filter(|from| *from != i) {
                actions.push(Action::Hear { by: i, from });
            }
            if world.late_left > 0 {
                actions.push(Action::Delay { from: i });
            }
            for which in 0..world.late.len() {
                actions.push(Action::HearLate { by: i, which });
            }
            if world.losses_left > 0 {
                for revision in 0..REVISIONS {
                    actions.push(Action::Lose {
                        region: i,
                        revision,
                    });
                }
            }
        }
    }

    pub(super) fn apply(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Read { region, revision } => self.read(&mut next, region, revision),
            Action::Hear { by, from } => self.hear(&mut next, by, &self.said(world, from)),
            Action::Delay { from } => {
                let said = self.said(world, from);
                if world.late.contains(&said) {
                    return None;
                }
                next.late_left -= 1;
                next.late.push(said);
            }
            Action::HearLate { by, which } => {
                let said = world.late[which].clone();
                if said.from == by {
                    return None;
                }
                self.hear(&mut next, by, &said);
            }
            Action::Lose { region, revision } => {
                next.losses_left -= 1;
                let r = &mut next.regions[region];
                *r = RegionNow {
                    life: r.life + 1,
                    read: 1 << revision,
                    front: revision,
                    is_unsure: !self.has(Planted::LaterLifeIsSure),
                    heard: vec![Heard::default(); self.bounds.regions],
                };
            }
        }
        (next != *world).then_some(next)
    }

    fn read(&self, next: &mut World, i: usize, revision: usize) {
        next.regions[i].read |= 1 << revision;
        self.advance(next, i);
    }

    fn said(&self, world: &World, from: usize) -> Said {
        let r = &world.regions[from];
        let list = r.list_set();
        Said {
            from,
            life: r.life,
            list,
            confirmed: if self.has(Planted::ConfirmedInForceOnly) {
                1 << r.front
            } else {
                list
            },
            lives: r.heard.iter().map(|h| h.life).collect(),
        }
    }

    fn hear(&self, next: &mut World, by: usize, said: &Said) {
        let r = &mut next.regions[by];
        let knows_us = said.lives[by] == r.life;
        let heard = &mut r.heard[said.from];
        if said.life < heard.life {
            if self.has(Planted::ConfirmationWithoutLife) {
                heard.confirmed |= said.confirmed;
                self.advance(next, by);
            }
            return;
        }
        if said.life > heard.life {
            *heard = Heard {
                life: said.life,
                ..Heard::default()
            };
        }
        heard.confirmed |= said.confirmed;
        if knows_us {
            heard.list = Some(said.list);
        }
        self.advance(next, by);
    }

    /// Leaves behind whatever can be left behind by now.
    fn advance(&self, next: &mut World, i: usize) {
        if next.regions[i].is_unsure {
            let r = &mut next.regions[i];
            let newest = r.newest();
            let alone = Some(1 << newest);
            let mut others = r.heard.iter().enumerate().filter(|(j, _)| *j != i);
            if others.all(|(_, heard)| heard.list == alone) {
                r.is_unsure = false;
                r.front = newest;
            }
            return;
        }
        let list: Vec<usize> = next.regions[i].list().collect();
        for (n, to) in list.iter().enumerate().skip(1) {
            if self.may_leave(next, i, &list[..n], *to) {
                next.regions[i].front = *to;
                return self.advance(next, i);
            }
        }
    }

    fn may_leave(&self, world: &World, i: usize, before: &[usize], to: usize) -> bool {
        let has_skipped = to - before[0] != before.len();
        let against = if self.has(Planted::AgainstTheLastOnly) {
            &before[before.len() - 1..]
        } else {
            before
        };
        let loses = |j: usize| {
            against
                .iter()
                .any(|k| world.bases[to][j] < world.bases[*k][j])
        };
        let waits_for_all = has_skipped && !self.has(Planted::SkippedUnnoticed);
        let confirms = |j: usize| {
            j != i && world.regions[i].heard[j].confirmed & 1 << to != 0
                || j == i && !self.has(Planted::ConfirmedInForceOnly)
        };
        let needed = (0..self.bounds.regions).filter(|j| waits_for_all || loses(*j));
        let mut missing = needed.clone().filter(|j| !confirms(*j));
        match self.planted {
            Some(Planted::RaisedWithoutWaiting) => true,
            Some(Planted::OneConfirmationSuffices) => {
                needed.clone().count() == 0 || needed.clone().any(confirms)
            }
            Some(Planted::ConfirmedInForceOnly) => missing.all(|j| j == i),
            _ => missing.next().is_none(),
        }
    }

    /// Whether the newest revision is in force everywhere once all have read it and heard each other, a few times over.
    pub(super) fn rolled_out(&self, world: &World) -> bool {
        let mut later = world.clone();
        for i in 0..self.bounds.regions {
            if later.regions[i].newest() < REVISIONS - 1 {
                self.read(&mut later, i, REVISIONS - 1);
            }
        }
        for _ in 0..4 {
            for from in 0..self.bounds.regions {
                for by in (0..self.bounds.regions).filter(|by| *by != from) {
                    let said = self.said(&later, from);
                    self.hear(&mut later, by, &said);
                }
            }
        }
        let mut all = later.regions.iter();
        all.all(|r| !r.is_unsure && r.front == REVISIONS - 1)
    }
}
