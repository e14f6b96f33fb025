//! Stores, what they know of lives, and what was done in lives that are over.

use super::{FirstLifeModel, Planted};
use apportion_core::lives::{LifeTable, OnEmpty, RegionState, Standing};
use apportion_core::{Life, StoreMs};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub regions: Vec<RegionNow>,
    /// What was said once, and may arrive late.
    pub late: Vec<Said>,
    pub late_left: u8,
    pub losses_left: u8,
    /// A life was taken for the first though one before it had admitted, and not everybody who could
    /// have known is lost.
    pub is_taken_twice: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionNow {
    pub state: RegionState,
    /// The present life began with an empty store.
    pub was_emptied: bool,
    /// Lives of this region that could admit.
    pub admitted: BTreeSet<Life>,
    /// Regions whose stores knew, when the present life began, of an earlier one that had admitted; and still do.
    pub witnesses: BTreeSet<usize>,
    /// Another store, which had a life of this region on record, was emptied.
    pub is_forgotten: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said(LifeTable);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// What a region says just now is heard.
    Hear { by: usize, from: usize },
    /// It is said, and will arrive late.
    Delay { from: usize },
    /// It arrives.
    HearLate { by: usize, which: usize },
    /// The store is empty: lost.
    Empty(usize),
    /// The store is there, but another process.
    Restart(usize),
}

// === impl RegionNow ===

impl Hash for RegionNow {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let s = &self.state;
        s.life.hash(hasher);
        match &s.standing {
            Standing::Asking(answers) => (0, answers).hash(hasher),
            Standing::First => 1.hash(hasher),
            Standing::Later => 2.hash(hasher),
        }
        (&s.present, &s.known, &s.ended).hash(hasher);
        // What is said of revisions and closings has no hash of its own; nothing is closed here.
        format!("{:?}", s.rollout).hash(hasher);
        (self.was_emptied, self.is_forgotten).hash(hasher);
        (&self.admitted, &self.witnesses).hash(hasher);
    }
}

// === impl Said ===

impl Hash for Said {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let t = &self.0;
        (&t.sender, &t.present, &t.known, &t.ended).hash(hasher);
        format!("{:?}", t.rollout).hash(hasher);
    }
}

// === impl World ===

impl World {
    pub fn new(model: &FirstLifeModel) -> Self {
        let region = |i: usize| RegionNow {
            state: model.emptied(i, 0),
            was_emptied: false,
            admitted: BTreeSet::new(),
            witnesses: BTreeSet::new(),
            is_forgotten: false,
        };
        let mut world = Self {
            regions: (0..model.bounds.regions).map(region).collect(),
            late: Vec::new(),
            late_left: model.bounds.late,
            losses_left: model.bounds.losses,
            is_taken_twice: false,
        };
        (0..model.bounds.regions).for_each(|i| world.note(model, i));
        world
    }

    /// What is so since region `i` has changed.
    fn note(&mut self, model: &FirstLifeModel, i: usize) {
        let r = &self.regions[i];
        let life = r.state.life;
        let is_first = r.state.standing == Standing::First;
        let has_admitted = r.admitted.iter().any(|l| *l != life);
        if is_first && has_admitted && (!r.witnesses.is_empty() || !r.is_forgotten) {
            self.is_taken_twice = true;
        }
        let admits = r.state.may_admit() || model.has(Planted::AdmitsUnrecorded);
        let r = &mut self.regions[i];
        if admits {
            r.admitted.insert(life);
        }
    }
}

// === impl FirstLifeModel ===

impl FirstLifeModel {
    fn emptied(&self, i: usize, life: u64) -> RegionState {
        let how = if self.has(Planted::EmptyIsNew) {
            OnEmpty::New
        } else {
            OnEmpty::Ask
        };
        let life = Life::from_random(life);
        RegionState::on_empty(&self.regions[i], life, "", StoreMs(0), how, &self.peers[i])
    }

    pub(super) fn enumerate(&self, world: &World, actions: &mut Vec<Action>) {
        for i in 0..self.bounds.regions {
            for from in (0..self.bounds.regions).filter(|from| *from != i) {
                actions.push(Action::Hear { by: i, from });
            }
            if world.late_left > 0 {
                actions.push(Action::Delay { from: i });
            }
            // All regions are alike: let the first that loses its store be the first.
            let is_untouched = world.losses_left == self.bounds.losses;
            if world.losses_left > 0 && (i == 0 || !is_untouched) {
                actions.extend([Action::Empty(i), Action::Restart(i)]);
            }
            for which in 0..world.late.len() {
                actions.push(Action::HearLate { by: i, which });
            }
        }
    }

    pub(super) fn apply(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Hear { by, from } => {
                let table = self.table(world, from)?;
                self.hear(&mut next, by, &table)?;
            }
            Action::Delay { from } => {
                let said = Said(self.table(world, from)?);
                if world.late.contains(&said) {
                    return None;
                }
                next.late_left -= 1;
                next.late.push(said);
            }
            Action::HearLate { by, which } => {
                let Said(table) = world.late[which].clone();
                if table.sender.region == self.regions[by] {
                    return None;
                }
                self.hear(&mut next, by, &table)?;
            }
            Action::Empty(i) => {
                let life = world.regions[i].state.life.to_bits() + 1;
                for (j, other) in next.regions.iter_mut().enumerate().filter(|(j, _)| *j != i) {
                    other.witnesses.remove(&i);
                    other.is_forgotten |=
                        world.regions[i].state.known.contains_key(&self.regions[j]);
                }
                self.begin(&mut next, i, self.emptied(i, life), true);
            }
            Action::Restart(i) => {
                let before = world.regions[i].state.clone();
                let life = Life::from_random(before.life.to_bits() + 1);
                let standing = before.standing.clone();
                let mut state = before.reborn(life, "", StoreMs(0));
                if self.has(Planted::RestartIsNoLoss) {
                    state.standing = standing;
                }
                self.begin(&mut next, i, state, false);
            }
        }
        (next != *world).then_some(next)
    }

    fn begin(&self, next: &mut World, i: usize, state: RegionState, was_emptied: bool) {
        next.losses_left -= 1;
        let knows = |other: &RegionNow| {
            let known = other.state.known.get(&self.regions[i]);
            known.is_some_and(|lives| !lives.is_disjoint(&next.regions[i].admitted))
        };
        let all = next.regions.iter().enumerate();
        let witnesses = all
            .filter(|(j, other)| *j != i && knows(other))
            .map(|(j, _)| j);
        next.regions[i].witnesses = witnesses.collect();
        next.regions[i].state = state;
        next.regions[i].was_emptied = was_emptied;
        next.note(self, i);
    }

    /// What a region says of lives.
    fn table(&self, world: &World, from: usize) -> Option<LifeTable> {
        let state = &world.regions[from].state;
        let is_asking = matches!(state.standing, Standing::Asking(_));
        if self.has(Planted::SilentWhileAsking) && is_asking {
            return None;
        }
        let mut table = state.table();
        if self.has(Planted::LivesNotPassedOn) {
            table.known.clear();
        }
        Some(table)
    }

    fn hear(&self, next: &mut World, by: usize, table: &LifeTable) -> Option<()> {
        let peers = &self.peers[by];
        let mut state = next.regions[by].state.hear(table, peers)?;
        if let Standing::Asking(answers) = &state.standing {
            let enough = match self.planted {
                Some(Planted::OneAnswerSuffices) => !answers.is_empty(),
                Some(Planted::AnswersNeedNotAgree) => answers.len() == peers.len(),
                _ => false,
            };
            let own = state.known.get(&state.region).map_or(0, BTreeSet::len);
            if enough && own <= 1 {
                state.standing = Standing::First;
            }
        }
        next.regions[by].state = state;
        next.note(self, by);
        Some(())
    }

    /// Whether nobody is asking any more once all have heard all others, three times over.
    pub(super) fn settled(&self, world: &World) -> bool {
        let mut later = world.clone();
        for _ in 0..3 {
            for from in 0..self.bounds.regions {
                for by in (0..self.bounds.regions).filter(|by| *by != from) {
                    if let Some(table) = self.table(&later, from) {
                        self.hear(&mut later, by, &table);
                    }
                }
            }
        }
        let asks = |r: &RegionNow| matches!(r.state.standing, Standing::Asking(_));
        !later.regions.iter().any(asks)
    }
}
