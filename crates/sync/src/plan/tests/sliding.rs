//! Sliding windows under random trade: two or three regions with real meters and real plans, a network that loses,
//! doubles and delays, plans that are carried out late, epochs and lost stores. However it goes, no more is admitted
//! than one perfect window would have.

use super::*;
use apportion_core::meter::Rule;
use apportion_store::{Charge, Decide, Memory, Mode, Op, Reply, StoreError};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const LIMIT: u64 = 12;
const WINDOW_MS: u64 = 300_000;
const MONO: Mono = 150_000;
const STEPS: usize = 500;
const PACES: [&[u64]; 4] = [
    &[0, 0, 0, 0, 0, 0, 1_000, 9_000, 40_000],
    &[0, 0, 0, 0, 0, 0, 0, 0, 9_000, 290_000, 250_000],
    &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3_000, 36_000, 299_000],
    &[0, 0, 0, 1_000, 2_000],
];
const POLICIES: &str = r#"
regions = ["a", "b", "c"]
[[policy]]
name = "log"
key = ["tenant"]
algorithm = "sliding-log"
limit = 12
per = "300s"
[[policy]]
name = "cells"
key = ["tenant"]
algorithm = "sliding-window"
limit = 12
per = "300s"
buckets = 6
[[policy]]
name = "classic"
key = ["tenant"]
algorithm = "sliding-window"
limit = 12
per = "300s"
buckets = 1
weights = { a = 2, b = 1, c = 1 }
"#;

struct Shop {
    memory: Memory,
    state: RegionState,
    state_version: u64,
}

/// A plan that isn't carried out yet.
struct Pending {
    shop: usize,
    plan: Plan,
    said: (Actor, Epoch),
}

#[derive(Clone)]
struct Sent {
    to: usize,
    from: (Actor, Epoch),
    trade: Trade,
}

struct Play {
    rng: SmallRng,
    now: StoreMs,
    policies: PolicySet,
    policy: Arc<Policy>,
    id: MeterId,
    shops: Vec<Shop>,
    pending: Vec<Pending>,
    net: Vec<Sent>,
    admitted: Vec<(StoreMs, u64)>,
    lives: u64,
    /// Milliseconds between two steps, any of these.
    pace: &'static [u64],
    /// Nobody asks for admission for a while.
    quiet: bool,
    /// 1: there are epochs; 2: stores are lost, too.
    unruly: u32,
    /// What was admitted on borrowed share, so that a play isn't idle.
    beyond_base: u64,
}

impl Play {
    fn new(name: &str, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let policies = PolicySet::parse(POLICIES, "test").expect("the policies are valid");
        let policy = Arc::clone(policies.policy(name).expect("the policy is there"));
        let attributes = Attributes::from([("tenant".to_owned(), "acme".to_owned())]);
        let key = Key::of(&policy, &attributes, &policies.subject_hash).expect("a plain subject");
        let now = StoreMs(1_800_000_000_000 + rng.random_range(0..WINDOW_MS));
        let count = rng.random_range(2..=3);
        let pace = PACES.choose(&mut rng).expect("there are choices");
        let unruly = *[0, 0, 1, 2].choose(&mut rng).expect("there are choices");
        let mut play = Self {
            rng,
            now,
            policy,
            id: MeterId { key, label: None },
            shops: Vec::new(),
            pending: Vec::new(),
            net: Vec::new(),
            admitted: Vec::new(),
            lives: 0,
            pace,
            quiet: false,
            unruly,
            beyond_base: 0,
            policies,
        };
        for i in 0..count {
            play.lives += 1;
            let (region, life) = (&play.policies.regions[i], Life::from_random(play.lives));
            let state = RegionState::on_empty(region, life, "s", now, OnEmpty::New, &[]);
            play.shops.push(open(state, now));
        }
        play
    }

    fn regime(&self, shop: usize) -> Regime {
        Regime {
            state: Arc::new(self.shops[shop].state.clone()),
            span: Span::after(self.now),
            revision: 1,
            timing: Timing { term_ms: 10_000 },
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if self.rng.random_ratio(1, 25) {
            self.quiet = !self.quiet;
        }
        let dt = *self.pace.choose(&mut self.rng).expect("there are choices");
        self.now = self.now.plus(dt);
        let shop = self.rng.random_range(0..self.shops.len());
        match self.rng.random_range(0..100) {
            0..20 => self.ask(shop),
            20..40 => self.survey(shop),
            40..75 if !self.quiet => {
                for _ in 0..*[1, 3, 12].choose(&mut self.rng).expect("there are choices") {
                    self.admit(shop)?;
                }
            }
            40..90 => self.deliver(),
            90..97 => self.carry_out(),
            97 if self.unruly >= 1 => {
                let next = self.shops[shop].state.clone().next_epoch(self.now);
                self.put(shop, next);
            }
            98 if self.unruly >= 2 && self.rng.random_ratio(1, 3) => {
                self.lives += 1;
                let life = Life::from_random(self.lives);
                let state = self.shops[shop].state.clone();
                self.shops[shop] = open(state.reborn(life, "s", self.now), self.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn put(&mut self, shop: usize, state: RegionState) {
        let shop = &mut self.shops[shop];
        let (expect, value) = (shop.state_version, state.to_bytes());
        let adopt = Op::Adopt {
            state_version: expect + 1,
            record: state.record(1),
        };
        for op in [Op::PutState { expect, value }, adopt] {
            shop.memory.apply(self.now, op).expect("the state is put");
        }
        (shop.state, shop.state_version) = (state, expect + 1);
    }

    fn admit(&mut self, shop: usize) -> Result<(), String> {
        let regime = self.regime(shop);
        let units = self.rng.random_range(1..=2);
        let rule = regime.rule(&self.policy, self.policy.limits);
        let held = self.rng.random_ratio(1, 10);
        let decide = Decide {
            fence: regime.fence(),
            partition: self.id.key.partition(),
            id: self.rng.random_range(0..1 << 53),
            mode: if held {
                Mode::Hold { ttl_ms: 5_000 }
            } else {
                Mode::Charge
            },
            charges: vec![charge(&self.id.key, rule, units)],
            remember: None,
        };
        let reply = self.shops[shop].memory.apply(self.now, Op::Decide(decide));
        let Ok(Reply::Decided(decided)) = reply else {
            return Err(format!("{reply:?}"));
        };
        if decided.admitted {
            let base = self.policy.base_ppb(&self.shops[shop].state.region);
            let of = decided.answers[0].reading.of();
            self.beyond_base += u64::from(of > LIMIT * base / PPB + 1);
            self.admitted.push((self.now, units));
            self.check()?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let sum = |from: u64, until: u64| -> u64 {
            let inside = self
                .admitted
                .iter()
                .filter(|(at, _)| at.0 >= from && at.0 < until);
            inside.map(|(_, units)| units).sum()
        };
        if let Algorithm::SlidingWindow { buckets: 1, .. } = self.policy.algorithm {
            let cell = self.now.0 / WINDOW_MS * WINDOW_MS;
            let present = sum(cell, cell + WINDOW_MS);
            let previous = sum(cell - WINDOW_MS, cell);
            let counted = previous * (WINDOW_MS - (self.now.0 - cell)) + present * WINDOW_MS;
            if counted > LIMIT * WINDOW_MS {
                return Err(format!("{previous} before and {present} now of {LIMIT}"));
            }
            return Ok(());
        }
        let trailing = sum(self.now.0 - WINDOW_MS + 1, self.now.0 + 1);
        if trailing > LIMIT {
            return Err(format!("{trailing} of {LIMIT} in a window"));
        }
        Ok(())
    }

    /// Somebody asks somebody for anything, as a node of any opinion would.
    fn ask(&mut self, shop: usize) {
        let to = self.rng.random_range(0..self.shops.len());
        if to == shop {
            return;
        }
        let ask = Ask {
            id: self.id.clone(),
            asked_at: self.now,
            want: self.rng.random_range(0..=PPB),
            keep: self
                .rng
                .random_ratio(1, 4)
                .then(|| self.rng.random_range(0..=PPB)),
            refusing: self.rng.random(),
            last_resort: false,
            limits: None,
        };
        let trade = Trade {
            asks: vec![ask],
            ..Trade::default()
        };
        let state = &self.shops[shop].state;
        let from = (state.actor(), state.epoch);
        self.send(Sent { to, from, trade });
    }

    fn survey(&mut self, shop: usize) {
        let occasions = [Occasion::Tick, Occasion::Urgent, Occasion::Round];
        let occasion = *occasions.choose(&mut self.rng).expect("there are choices");
        self.plan(shop, |scene, track, snapshot| {
            survey(scene, track, snapshot, occasion)
        });
    }

    fn plan(&mut self, shop: usize, plan: impl FnOnce(&Scene<'_>, &mut Track, &Snapshot) -> Plan) {
        let regime = self.regime(shop);
        let fence = regime.fence();
        let read = Op::Read {
            fence,
            partition: self.id.key.partition(),
            ids: vec![self.id.clone()],
        };
        let reply = self.shops[shop].memory.apply(self.now, read);
        let Ok(Reply::Snapshots { snapshots, .. }) = reply else {
            panic!("a reading was answered by {reply:?}");
        };
        // As measured: anything, or nothing.
        let mut track = Track::new(0);
        if self.rng.random_ratio(3, 4) {
            track.sample(0, StoreMs(0), 0);
            let some = self.rng.random_range(0..6);
            track.sample(
                MONO,
                StoreMs(MONO),
                if self.rng.random() { 0 } else { some },
            );
        }
        if self.rng.random() {
            track.refused(MONO);
        }
        let us = self.shops[shop].state.region.clone();
        let regions = self.shops.iter().map(|s| s.state.region.clone());
        let peers: Vec<Region> = regions.filter(|r| *r != us).collect();
        let scene = Scene {
            regime: &regime,
            fence: &fence,
            policy: &self.policy,
            hash: &self.policies.subject_hash,
            id: &self.id,
            peers: &peers,
            actors: &BTreeMap::new(),
            interval_ms: 2_000,
            now: self.now,
            mono: MONO,
        };
        let plan = plan(&scene, &mut track, &snapshots[0]);
        let said = (regime.actor(), regime.state.epoch);
        self.pending.push(Pending { shop, plan, said });
        // Mostly a plan is carried out at once.
        if self.rng.random_ratio(2, 3) {
            let last = self.pending.len() - 1;
            self.carry_out_at(last);
        }
    }

    fn carry_out(&mut self) {
        if !self.pending.is_empty() {
            let index = self.rng.random_range(0..self.pending.len());
            self.carry_out_at(index);
        }
    }

    fn carry_out_at(&mut self, index: usize) {
        let Pending { shop, plan, said } = self.pending.swap_remove(index);
        if let Some(swap) = plan.swap {
            match self.shops[shop].memory.apply(self.now, Op::Swap(swap)) {
                Ok(_) => {}
                Err(
                    StoreError::Conflict
                    | StoreError::Guard
                    | StoreError::OutOfSpan
                    | StoreError::Fenced(_)
                    | StoreError::LookAgain,
                ) => return,
                Err(error) => panic!("a swap was answered by {error:?}"),
            }
        }
        for (region, trade) in plan.tell {
            let to = self.shops.iter().position(|s| s.state.region == region);
            let to = to.expect("it is a peer");
            let from = said.clone();
            self.send(Sent { to, from, trade });
        }
    }

    /// Most arrives at once.
    fn send(&mut self, sent: Sent) {
        self.net.push(sent);
        if self.rng.random_ratio(2, 3) {
            self.deliver_at(self.net.len() - 1);
        }
    }

    fn deliver(&mut self) {
        if !self.net.is_empty() {
            let index = self.rng.random_range(0..self.net.len());
            self.deliver_at(index);
        }
    }

    fn deliver_at(&mut self, index: usize) {
        let sent = self.net[index].clone();
        // Some come again, and some never.
        if self.rng.random_ratio(85, 100) {
            self.net.swap_remove(index);
        }
        if self.rng.random_ratio(9, 10) {
            let (from, epoch) = sent.from;
            self.plan(sent.to, |scene, track, snapshot| {
                answer(scene, track, snapshot, &from, epoch, &sent.trade)
            });
        }
    }
}

fn open(state: RegionState, now: StoreMs) -> Shop {
    let mut memory = Memory::new("s");
    let ops = [
        Op::PutState {
            expect: 0,
            value: state.to_bytes(),
        },
        Op::Adopt {
            state_version: 1,
            record: state.record(1),
        },
        Op::Attach {
            life: state.life,
            fingerprint: "s".into(),
        },
    ];
    for op in ops {
        memory.apply(now, op).expect("the store is empty");
    }
    Shop {
        memory,
        state,
        state_version: 1,
    }
}

fn charge(key: &Key, rule: Rule, units: u64) -> Charge {
    Charge {
        key: key.clone(),
        rule: Arc::new(rule),
        cost: units,
        units,
        reserve_ppm: 0,
        denied: 0,
        usage_ms: None,
        shadow: false,
        newcomers_max: None,
        member: None,
    }
}

/// How many seeds: `PLAYS`, from `PLAYS_FROM` on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, default| {
        let said = std::env::var(name).ok().and_then(|v| v.parse().ok());
        said.unwrap_or(default)
    };
    let from = number("PLAYS_FROM", 1);
    from..from + number("PLAYS", 100)
}

fn hold(name: &str) {
    let (mut broken, mut beyond_base) = (Vec::new(), 0);
    for seed in seeds() {
        let mut play = Play::new(name, seed);
        let outcome = (0..STEPS).try_for_each(|_| play.step());
        broken.extend(outcome.err().map(|what| format!("seed {seed}: {what}")));
        beyond_base += play.beyond_base;
    }
    assert!(
        broken.is_empty(),
        "{} broken:\n{}",
        broken.len(),
        broken.join("\n")
    );
    assert!(
        beyond_base > 0,
        "nothing was ever admitted on borrowed share"
    );
}

#[test]
fn a_log_shared_by_regions_never_admits_more_than_its_limit_in_any_window() {
    hold("log");
}

#[test]
fn cells_shared_by_regions_never_admit_more_than_their_limit_in_any_window() {
    hold("cells");
}

#[test]
fn a_classic_counter_shared_by_regions_keeps_to_its_own_rule_exactly() {
    hold("classic");
}
