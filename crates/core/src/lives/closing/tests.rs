//! A closing can be broken off at any point and taken again; nothing but the one copy that ends with it goes on.

use super::*;
use crate::lives::{LifeTable, OnEmpty, Standing};
use proptest::prelude::*;

const BIRTH: StoreMs = StoreMs(1_000_000_000);
const LATER: StoreMs = BIRTH.plus(1_000);

/// One region's store: what it holds, and what runs it.
#[derive(Clone, Debug)]
struct Shop {
    state: RegionState,
    /// What was decided in this life, as this store has it.
    spent: u64,
    /// Its partitions know that decisions are stopped.
    told_to_stop: bool,
}

/// Three regions, each with its store and the mark of the process that runs it.
#[derive(Debug)]
struct World {
    shops: Vec<Shop>,
    runs: Vec<String>,
    /// What was decided in each life in truth.
    truth: BTreeMap<Life, u64>,
    fresh: u64,
}

fn regions() -> Vec<Region> {
    ["a", "b", "c"].map(Region::new).to_vec()
}

fn others(of: usize) -> Vec<Region> {
    let mut regions = regions();
    regions.remove(of);
    regions
}

impl World {
    fn new() -> Self {
        let shop = |i: usize| Shop {
            state: RegionState::on_empty(
                &regions()[i],
                Life::from_random(i as u64 + 1),
                "run-0",
                BIRTH,
                OnEmpty::New,
                &others(i),
            ),
            spent: 0,
            told_to_stop: false,
        };
        let mut world = Self {
            shops: (0..3).map(shop).collect(),
            runs: vec!["run-0".to_owned(); 3],
            truth: BTreeMap::new(),
            fresh: 10,
        };
        world.all_talk();
        world
    }

    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn deliver(&mut self, table: &LifeTable, to: usize) {
        // A closed store isn't written to.
        if self.shops[to].state.stage() == Some(Stage::Closed) {
            return;
        }
        if let Some(next) = self.shops[to].state.hear(table, &others(to)) {
            self.shops[to].state = next;
        }
    }

    fn talk(&mut self, from: usize, to: usize) {
        let table = self.shops[from].state.table();
        self.deliver(&table, to);
    }

    fn all_talk(&mut self) {
        for _ in 0..3 {
            for from in 0..3 {
                for to in (0..3).filter(|to| *to != from) {
                    self.talk(from, to);
                }
            }
        }
    }

    /// What a node does when it looks at its store.
    fn look(&mut self, i: usize, now: StoreMs) {
        let run = self.runs[i].clone();
        let state = self.shops[i].state.clone();
        let next = match state.fingerprint == run || state.is_sealed() {
            true => state.clone().advance_closing(&run, now, &others(i)),
            false => None,
        };
        let next = next.unwrap_or_else(|| {
            let life = Life::from_random(self.fresh());
            state.reborn(life, &run, now)
        });
        let shop = &mut self.shops[i];
        if next.life != shop.state.life {
            (shop.spent, shop.told_to_stop) = (0, false);
        }
        if !next.is_shut() {
            shop.told_to_stop = false;
        }
        shop.state = next;
    }

    /// The partitions are told to stop, and then the store says that it is closed.
    fn seal(&mut self, i: usize) {
        let shop = &mut self.shops[i];
        if shop.state.stage() == Some(Stage::Stopping) {
            shop.told_to_stop = true;
            shop.state = shop.state.clone().closed();
        }
    }

    /// A decision by a node that knows this life, if the store lets it.
    fn decide(&mut self, i: usize) -> Result<(), String> {
        let shop = &mut self.shops[i];
        let attached = shop.state.fingerprint == self.runs[i];
        if shop.told_to_stop || shop.state.is_sealed() || !attached {
            return Ok(());
        }
        let truth = self.truth.entry(shop.state.life).or_default();
        if *truth != shop.spent {
            return Err(format!(
                "life {} goes on from {} of {truth} decisions",
                shop.state.life, shop.spent
            ));
        }
        *truth += 1;
        shop.spent += 1;
        Ok(())
    }

    fn restart(&mut self, i: usize, copy: Shop) {
        self.shops[i] = copy;
        self.runs[i] = format!("run-{}", self.fresh());
    }

    fn stage(&self, i: usize) -> Option<Stage> {
        self.shops[i].state.stage()
    }

    fn life(&self, i: usize) -> Life {
        self.shops[i].state.life
    }

    fn begin(&mut self, i: usize, now: StoreMs) {
        let random = self.fresh();
        let state = self.shops[i].state.clone();
        self.shops[i].state = state.begin_closing(random, now);
    }

    fn close(&mut self, i: usize) {
        self.begin(i, LATER);
        self.all_talk();
        self.look(i, LATER);
        self.seal(i);
        assert_eq!(self.stage(i), Some(Stage::Closed));
    }

    fn open(&mut self, i: usize) {
        let run = self.runs[i].clone();
        let state = self.shops[i].state.clone();
        self.shops[i].state = state.begin_opening(&run);
    }

    fn settle(&mut self, i: usize) {
        for _ in 0..3 {
            self.look(i, LATER);
            self.all_talk();
        }
        self.look(i, LATER);
    }

    fn is_open(&self, i: usize) -> bool {
        !self.shops[i].state.is_shut()
    }
}

#[test]
fn a_closed_store_that_comes_back_with_its_last_word_goes_on_in_its_life() {
    let mut world = World::new();
    let (life, epoch) = (world.life(0), world.shops[0].state.epoch);
    world.decide(0).unwrap();
    world.close(0);
    let copy = world.shops[0].clone();
    world.restart(0, copy);
    world.look(0, LATER);
    assert!(!world.is_open(0), "nobody has struck it off yet");
    world.settle(0);
    assert!(world.is_open(0));
    assert_eq!(world.life(0), life);
    assert_eq!(world.shops[0].state.fingerprint, world.runs[0]);
    assert_eq!(world.shops[0].state.standing, Standing::First);
    assert!(
        world.shops[0].state.epoch > epoch,
        "nobody saw its clock meanwhile"
    );
    world.decide(0).unwrap();
}

#[test]
fn the_same_copy_goes_on_only_once() {
    let mut world = World::new();
    let life = world.life(0);
    world.close(0);
    let copy = world.shops[0].clone();
    world.restart(0, copy.clone());
    world.settle(0);
    world.decide(0).unwrap();
    world.restart(0, copy);
    world.settle(0);
    assert!(world.is_open(0));
    assert_ne!(world.life(0), life, "its nonce was struck off before");
    assert_eq!(world.shops[0].state.standing, Standing::Later);
}

#[test]
fn a_copy_from_before_the_last_word_is_a_loss() {
    for steps in 0..4 {
        let mut world = World::new();
        let life = world.life(0);
        let mut copies = vec![world.shops[0].clone()];
        world.begin(0, LATER);
        copies.push(world.shops[0].clone());
        world.all_talk();
        copies.push(world.shops[0].clone());
        world.look(0, LATER);
        assert_eq!(world.stage(0), Some(Stage::Stopping));
        copies.push(world.shops[0].clone());
        world.seal(0);
        world.restart(0, copies.swap_remove(steps));
        world.settle(0);
        assert_ne!(world.life(0), life, "after {steps} steps");
    }
}

#[test]
fn a_region_closes_only_once_every_peer_knows_the_nonce() {
    let mut world = World::new();
    world.begin(0, LATER);
    for _ in 0..3 {
        world.talk(0, 1);
        world.talk(1, 0);
        world.look(0, LATER);
    }
    assert!(world.is_open(0));
    let closing = world.shops[0].state.closing.clone().expect("it is told");
    assert_eq!(closing.unconfirmed(&others(0)), [Region::new("c")]);
    let mut late = World::new();
    std::mem::swap(&mut late.shops, &mut world.shops);
    late.look(0, LATER.plus(TELL_MS + 1));
    assert!(
        matches!(late.stage(0), Some(Stage::Open { .. })),
        "given up"
    );
    // What was told is withdrawn, and the next attempt has a nonce of its own.
    late.all_talk();
    assert!(late.shops[1].state.closing_peers(&others(1)).is_empty());
    late.close(0);
    assert_eq!(
        late.shops[0].state.closing.as_ref().map(|c| c.nonce.number),
        Some(2)
    );
}

#[test]
fn a_peer_that_lost_its_state_makes_it_a_loss() {
    let mut world = World::new();
    let life = world.life(0);
    world.close(0);
    let peer = world.shops[1].clone();
    world.restart(1, peer);
    world.look(1, LATER);
    let copy = world.shops[0].clone();
    world.restart(0, copy);
    world.settle(0);
    assert_ne!(world.life(0), life);
}

#[test]
fn a_late_word_to_a_lost_life_of_a_peer_is_not_taken_for_one_to_the_present() {
    let mut world = World::new();
    world.begin(0, LATER);
    let told = world.shops[0].state.table();
    let peer = world.shops[1].clone();
    world.restart(1, peer);
    world.look(1, LATER);
    world.deliver(&told, 1);
    assert!(world.shops[1].state.kept.is_empty());
}

#[test]
fn a_restart_waits_for_a_peer_that_is_away() {
    let mut world = World::new();
    let life = world.life(0);
    world.close(0);
    let copy = world.shops[0].clone();
    world.restart(0, copy);
    for _ in 0..5 {
        world.look(0, LATER);
        world.talk(0, 1);
        world.talk(1, 0);
    }
    assert!(!world.is_open(0));
    let closing = world.shops[0].state.closing.clone().expect("it is closed");
    assert_eq!(closing.unconfirmed(&others(0)), [Region::new("c")]);
    world.settle(0);
    assert!(world.is_open(0) && world.life(0) == life);
}

#[test]
fn what_never_stopped_is_opened_by_one_peer_and_its_copies_are_void() {
    let mut world = World::new();
    let life = world.life(0);
    world.close(0);
    let copy = world.shops[0].clone();
    world.open(0);
    world.look(0, LATER);
    assert!(!world.is_open(0), "a copy might still go on");
    world.talk(0, 1);
    world.talk(1, 0);
    world.look(0, LATER);
    assert!(world.is_open(0) && world.life(0) == life);
    world.decide(0).unwrap();
    world.restart(0, copy);
    world.settle(0);
    assert_ne!(world.life(0), life);
}

#[test]
fn what_is_open_is_closed_again_under_another_nonce() {
    let mut world = World::new();
    world.close(0);
    world.open(0);
    world.settle(0);
    let first = world.shops[0].state.closing.clone().map(|c| c.nonce);
    world.close(0);
    let copy = world.shops[0].clone();
    assert_ne!(world.shops[0].state.closing.clone().map(|c| c.nonce), first);
    let life = world.life(0);
    world.restart(0, copy);
    world.settle(0);
    assert!(world.is_open(0) && world.life(0) == life);
}

#[test]
fn two_regions_are_not_closed_at_once() {
    let mut world = World::new();
    world.begin(0, LATER);
    world.begin(1, LATER);
    for _ in 0..3 {
        world.all_talk();
        world.look(0, LATER);
        world.look(1, LATER);
    }
    assert!(world.is_open(0) && world.is_open(1));
    assert_eq!(
        world.shops[0].state.closing_peers(&others(0)),
        [Region::new("b")]
    );
    world.look(1, LATER.plus(TELL_MS + 1));
    world.all_talk();
    world.look(0, LATER);
    world.seal(0);
    assert_eq!(world.stage(0), Some(Stage::Closed));
    world.begin(1, LATER);
    world.all_talk();
    world.look(1, LATER);
    assert!(world.is_open(1), "a closed region notes nothing");
}

#[test]
fn a_store_that_is_not_open_yet_notes_nothing_that_it_might_lose() {
    let mut world = World::new();
    world.close(1);
    let copy = world.shops[1].clone();
    world.restart(1, copy);
    world.look(1, LATER);
    assert!(matches!(world.stage(1), Some(Stage::Opening { .. })));
    world.begin(0, LATER);
    world.talk(0, 1);
    assert!(world.shops[1].state.kept.is_empty());
    world.settle(1);
    world.talk(0, 1);
    assert!(!world.shops[1].state.kept.is_empty());
}

#[test]
fn a_copy_whose_life_is_known_to_have_ended_is_a_loss() {
    let mut world = World::new();
    let old = world.shops[0].clone();
    world.close(0);
    let copy = world.shops[0].clone();
    world.restart(0, old);
    world.settle(0);
    let second = world.life(0);
    world.restart(0, copy);
    // Peers don't listen to a life that is over; what they say themselves is enough.
    world.look(0, LATER);
    world.talk(1, 0);
    world.look(0, LATER);
    assert!(world.is_open(0));
    assert!(world.life(0) != second && world.shops[0].state.standing == Standing::Later);
}

#[derive(Clone, Debug)]
enum Step {
    Talk { from: usize, to: usize },
    Send { from: usize },
    Arrive { message: usize, to: usize },
    Decide { region: usize },
    Begin { region: usize },
    Open { region: usize },
    Look { region: usize },
    Late { region: usize },
    Seal { region: usize },
    Copy { region: usize },
    Restart { region: usize },
    RollBack { copy: usize },
}

fn a_step() -> impl Strategy<Value = Step> {
    let region = || prop_oneof![3 => Just(0usize), 1 => 1..3usize];
    prop_oneof![
        12 => (0..3usize, 0..3usize).prop_map(|(from, to)| Step::Talk { from, to }),
        2 => (0..3usize).prop_map(|from| Step::Send { from }),
        2 => (0..64usize, 0..3usize).prop_map(|(message, to)| Step::Arrive { message, to }),
        4 => region().prop_map(|region| Step::Decide { region }),
        3 => region().prop_map(|region| Step::Begin { region }),
        2 => region().prop_map(|region| Step::Open { region }),
        8 => region().prop_map(|region| Step::Look { region }),
        1 => region().prop_map(|region| Step::Late { region }),
        6 => region().prop_map(|region| Step::Seal { region }),
        3 => region().prop_map(|region| Step::Copy { region }),
        2 => region().prop_map(|region| Step::Restart { region }),
        2 => (0..16usize).prop_map(|copy| Step::RollBack { copy }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// In any order of closings, restarts from any copy, lost peers and messages late or doubled: a life goes on only
    /// from a copy that has all that was decided in it.
    #[test]
    fn no_life_goes_on_from_a_copy_that_lacks_a_decision(steps in prop::collection::vec(a_step(), 0..200)) {
        let mut world = World::new();
        let mut sent: Vec<LifeTable> = Vec::new();
        let mut copies: Vec<(usize, Shop)> = Vec::new();
        for step in steps {
            match step {
                Step::Talk { from, to } if from != to => world.talk(from, to),
                Step::Send { from } => sent.push(world.shops[from].state.table()),
                Step::Arrive { message, to } if message < sent.len() => {
                    let table = sent[message].clone();
                    world.deliver(&table, to);
                }
                Step::Decide { region } => {
                    let decided = world.decide(region);
                    prop_assert!(decided.is_ok(), "{decided:?}");
                }
                Step::Begin { region } => world.begin(region, LATER),
                Step::Open { region } => world.open(region),
                Step::Look { region } => world.look(region, LATER),
                Step::Late { region } => world.look(region, LATER.plus(TELL_MS + 1)),
                Step::Seal { region } => world.seal(region),
                Step::Copy { region } => copies.push((region, world.shops[region].clone())),
                Step::Restart { region } => {
                    let copy = world.shops[region].clone();
                    world.restart(region, copy);
                }
                Step::RollBack { copy } if copy < copies.len() => {
                    let (region, copy) = copies[copy].clone();
                    world.restart(region, copy);
                }
                _ => {}
            }
        }
    }
}
