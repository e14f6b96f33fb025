//! Random histories of a region's store: operations at moments, with what the embedded store answers to them.
//!
//! Later operations are drawn from earlier answers, so that costs, versions and holds lie at the edges.

use apportion_core::fence::{Fence, Missing, Span};
use apportion_core::meter::{Meter, Reading, Rule, Terms, label_at};
use apportion_core::schedule::{MICRO, PPB, Rate, Schedule, Step};
use apportion_core::usage::{Counts, Slot, period_start};
use apportion_core::{Actor, Epoch, Key, Life, Partition, Record, Region, StoreMs};
use apportion_store::*;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const YEAR_MS: u64 = 365 * 86_400_000;
/// The largest count of units whose micro-units Lua can hold.
const MOST_UNITS: u64 = 9_007_199_254;
const LIMITS: [u64; 8] = [1, 3, 10, 100, 12_345, 1_000_000, MOST_UNITS - 1, MOST_UNITS];
const PERS_MS: [u64; 9] = [
    1,
    7,
    1_000,
    60_000,
    999_983,
    3_600_000,
    86_400_000,
    YEAR_MS,
    366 * 86_400_000,
];
const SHARES_PPB: [u64; 8] = [PPB, PPB, PPB / 2, PPB / 3, 999_999_937, 20_000_000, 1, 0];
const USAGE_MS: [u64; 3] = [1_000, 60_000, 86_400_000];
const SUBJECTS: [&str; 2] = ["acme", "zeta"];
const POLICIES: [&str; 4] = ["api@1", "burst@2", "day@1", "quota@7"];

/// One operation, when it was run, and what the embedded store answered.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) now: StoreMs,
    pub(crate) op: Op,
    pub(crate) reply: Result<Reply, StoreError>,
}

pub(crate) struct World {
    rng: SmallRng,
    memory: Memory,
    fingerprint: String,
    pub(crate) events: Vec<Event>,
    now: StoreMs,
    record: Record,
    epoch_began: StoreMs,
    state_version: u64,
    rules: BTreeMap<Key, Rule>,
    ids: BTreeSet<MeterId>,
    periods: BTreeSet<(Key, StoreMs)>,
    holds: Vec<EndHolds>,
    feed_seq: u64,
    /// How far the clock has to go for the last refusal to be an admission.
    tick: Option<u64>,
}

impl World {
    pub(crate) fn new(mut rng: SmallRng, fingerprint: &str) -> Self {
        let record = Record {
            life: Life::from_random(rng.random()),
            epoch: Epoch(rng.random_range(0..3)),
            revision: rng.random_range(0..u64::MAX),
        };
        let mut world = Self {
            memory: Memory::new(fingerprint),
            fingerprint: fingerprint.into(),
            events: vec![],
            now: StoreMs(1_700_000_000_000 + rng.random_range(0..10 * YEAR_MS)),
            record,
            epoch_began: StoreMs(0),
            state_version: 0,
            rules: BTreeMap::new(),
            ids: BTreeSet::new(),
            periods: BTreeSet::new(),
            holds: vec![],
            feed_seq: 0,
            tick: None,
            rng,
        };
        world.epoch_began = world.now.minus(world.below(100_000));
        for subject in SUBJECTS {
            for policy in POLICIES {
                let key = Key::parse(&format!("{policy}:{subject}")).unwrap();
                let rule = world.rule(policy.starts_with(['d', 'q']));
                world.rules.insert(key, rule);
            }
        }
        world.begin();
        world
    }

    /// Runs about `ops` operations, and then looks at everything.
    pub(crate) fn run(&mut self, ops: usize) {
        let until = self.events.len() + ops;
        while self.events.len() < until {
            self.step();
        }
        self.look_at_everything();
    }

    fn apply(&mut self, op: Op) -> Result<Reply, StoreError> {
        let reply = self.memory.apply(self.now, op.clone());
        self.events.push(Event {
            now: self.now,
            op,
            reply: reply.clone(),
        });
        reply
    }

    // === choices ===

    fn below(&mut self, end: u64) -> u64 {
        self.rng.random_range(0..end.max(1))
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.rng).unwrap()
    }

    /// A moment at or about now.
    fn moment(&mut self) -> StoreMs {
        let away = match self.below(4) {
            0 => 0,
            1 => 1,
            2 => self.below(5_000),
            _ => self.below(200_000),
        };
        match self.chance(50) {
            true => self.now.plus(away),
            false => self.now.minus(away),
        }
    }

    fn subject(&mut self) -> Vec<Key> {
        let subject = self.pick(&SUBJECTS);
        let of = |key: &&Key| key.as_str().ends_with(subject);
        self.rules.keys().filter(of).cloned().collect()
    }

    /// Some keys are drawn more often than others, so that things happen to them.
    fn key(&mut self) -> Key {
        let mut keys: Vec<Key> = self.rules.keys().cloned().collect();
        if self.chance(50) {
            keys.truncate(3);
        }
        keys.choose(&mut self.rng).unwrap().clone()
    }

    fn partition(&mut self) -> Partition {
        self.key().partition()
    }

    fn schedule(&mut self, steps: u64) -> Schedule {
        let limit = self.pick(&LIMITS);
        let rate = Rate {
            limit,
            per_ms: self.pick(&PERS_MS),
            burst: match self.below(4) {
                0 => limit,
                1 => self.pick(&LIMITS),
                2 => 1 + self.below(20),
                _ => MOST_UNITS,
            },
        };
        let mut froms: Vec<StoreMs> = (1..steps).map(|_| self.moment()).collect();
        froms.push(StoreMs(0));
        froms.sort_unstable();
        Schedule::new(froms.into_iter().map(|from| {
            let flow = rate.share(self.pick(&SHARES_PPB));
            Step { from, flow }
        }))
    }

    fn rule(&mut self, window: bool) -> Rule {
        if window {
            let base_from = match self.below(6) {
                0 => self.moment(),
                1 => StoreMs::MAX,
                _ => StoreMs(0),
            };
            Rule::Window {
                per_ms: self.pick(&PERS_MS),
                base: match self.below(4) {
                    0 => self.pick(&LIMITS),
                    1 => 0,
                    _ => self.below(20),
                },
                base_from,
            }
        } else {
            let steps = if self.chance(80) { 1 } else { 3 };
            let schedule = self.schedule(steps);
            Rule::Bucket { schedule }
        }
    }

    fn fence(&mut self) -> Fence {
        let mut record = self.record;
        if self.chance(2) {
            match self.below(3) {
                0 => record.revision = record.revision.wrapping_add(1),
                1 => record.epoch.0 += 1,
                _ => record.life = Life::from_random(self.rng.random()),
            }
        }
        let span = match self.below(20) {
            0 => Span::never(),
            1 => Span::after(self.now.plus(1)),
            2 => Span::after(self.now.minus(5_001)),
            3 => Span::after(self.now),
            4 => Span::after(self.now.minus(5_000)),
            _ => Span::after(self.now.minus(1_000)),
        };
        let missing = match self.below(6) {
            0 => Missing::EmptyAt(self.moment()),
            1 => Missing::EmptyAt(self.epoch_began),
            _ => Missing::Full,
        };
        let closed_before = match self.below(8) {
            0 => self.moment(),
            1 => self.now,
            _ => StoreMs(0),
        };
        Fence {
            record,
            span,
            epoch_began: self.epoch_began,
            missing,
            closed_before,
        }
    }

    /// A cost at one of the edges of what `reading` leaves.
    fn cost(&mut self, reading: &Reading) -> u64 {
        let available = reading.available();
        match self.below(10) {
            0 => 0,
            1 => 1,
            2 => available,
            3 => available.saturating_add(1),
            4 => available.saturating_sub(1),
            5 => available / 2,
            6 => available / 10,
            7 => MICRO,
            _ => match reading {
                Reading::Bucket { .. } => self.below(5 * MICRO),
                Reading::Window { .. } => self.below(5),
            },
        }
        .min(1 << 53)
    }

    // === steps ===

    fn step(&mut self) {
        if self.chance(35) {
            self.pass_time();
        }
        match self.below(100) {
            0..40 => self.decide(),
            40..52 => self.end_holds(),
            52..66 => self.swap(),
            66..72 => self.read(),
            72..76 => self.feed(),
            76..79 => self.ack(),
            79..84 => self.merge(),
            84..87 => self.usage(),
            87..89 => self.traded(),
            89..93 => self.region(),
            93..95 => self.new_rule(),
            95 => self.fill_with_holds(),
            96 => self.new_epoch(),
            97 => self.begin_if(30),
            98 => self.attach(),
            _ => self.look_at_everything(),
        }
    }

    fn pass_time(&mut self) {
        let forward = match self.below(12) {
            0 | 1 => self.below(3),
            2 | 3 => self.below(100),
            4 | 5 => self.below(2_000),
            6 => self.below(10_000),
            7 => self.below(200_000),
            8 => match self.below(8) {
                0 => self.below(YEAR_MS),
                1 => self.below(2 * 86_400_000),
                _ => self.below(3_600_000),
            },
            9 | 10 => match self.tick.take() {
                Some(tick) if tick < 2 * YEAR_MS => (tick + self.below(3)).saturating_sub(1),
                _ => 1,
            },
            _ => {
                let back = match self.below(4) {
                    0 => self.below(100_000),
                    _ => self.below(3_000),
                };
                self.now = self.now.minus(back);
                return;
            }
        };
        self.now = self.now.plus(forward);
    }

    fn charges(&mut self, keys: &[Key], fence: Fence) -> Vec<Charge> {
        let mut charges: Vec<Charge> = Vec::new();
        for _ in 0..1 + self.below(4) {
            let key = keys.choose(&mut self.rng).unwrap().clone();
            if charges.iter().any(|c| c.key == key) && self.chance(90) {
                continue;
            }
            charges.push(Charge {
                rule: self.rules[&key].clone(),
                key,
                cost: 0,
                units: self.below(1_000),
                usage_ms: match self.chance(60) {
                    true => Some(self.pick(&USAGE_MS)),
                    false => None,
                },
                shadow: self.chance(10),
            });
        }
        let peeked = self.apply(Op::Decide(Decide {
            fence,
            partition: keys[0].partition(),
            mode: Mode::Peek,
            charges: charges.clone(),
        }));
        if let Ok(Reply::Decided(decided)) = peeked {
            for (charge, answer) in charges.iter_mut().zip(decided.answers) {
                charge.cost = self.cost(&answer.reading);
            }
        }
        charges
    }

    fn decide(&mut self) {
        let keys = self.subject();
        let fence = self.fence();
        let charges = self.charges(&keys, fence);
        let mode = match self.below(10) {
            0 => Mode::Peek,
            1..6 => Mode::Charge,
            _ => Mode::Hold {
                id: match self.below(4) {
                    0 => (1 << 53) - self.below(3),
                    _ => self.below(6),
                },
                ttl_ms: match self.below(4) {
                    0 => self.below(3),
                    _ => self.below(5_001),
                },
            },
        };
        self.run_decide(Decide {
            fence,
            partition: keys[0].partition(),
            mode,
            charges,
        });
    }

    fn run_decide(&mut self, decide: Decide) {
        for charge in &decide.charges {
            let label = match charge.rule {
                Rule::Window { per_ms, .. } => Some(label_at(self.now, per_ms)),
                Rule::Bucket { .. } => None,
            };
            let key = charge.key.clone();
            self.ids.insert(MeterId { key, label });
            if let Some(period_ms) = charge.usage_ms {
                let start = period_start(self.now, period_ms);
                self.periods.insert((charge.key.clone(), start));
            }
        }
        let reply = self.apply(Op::Decide(decide.clone()));
        let Ok(Reply::Decided(decided)) = reply else {
            return;
        };
        for (charge, answer) in decide.charges.iter().zip(&decided.answers) {
            if let Reading::Bucket {
                spendable, flow, ..
            } = answer.reading
                && !answer.fits
            {
                self.tick = flow.time_for(charge.cost - spendable.min(charge.cost));
            }
        }
        if let Mode::Hold { id, .. } = decide.mode
            && decided.admitted
        {
            self.holds.push(EndHolds {
                fence: decide.fence,
                partition: decide.partition,
                id,
                laid_at: self.now,
                release: false,
                charges: decide.charges,
            });
        }
    }

    fn fill_with_holds(&mut self) {
        let keys = self.subject();
        let fence = self.fence();
        let mut charges = self.charges(&keys, fence);
        for charge in &mut charges {
            charge.cost = charge.cost.min(2);
        }
        for id in 0..70 {
            self.run_decide(Decide {
                fence,
                partition: keys[0].partition(),
                mode: Mode::Hold { id, ttl_ms: 5_000 },
                charges: charges.clone(),
            });
        }
    }

    fn end_holds(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.holds.len());
        let mut end = match self.chance(70) {
            true => self.holds.swap_remove(at),
            false => self.holds[at].clone(),
        };
        end.fence = self.fence();
        end.release = self.chance(70);
        if self.chance(5) {
            end.laid_at = self.moment();
        }
        if self.chance(5) {
            end.id = self.below(6);
        }
        for charge in &end.charges {
            if let Some(period_ms) = charge.usage_ms {
                let start = period_start(end.laid_at, period_ms);
                self.periods.insert((charge.key.clone(), start));
            }
        }
        let _ = self.apply(Op::EndHolds(end));
    }

    fn swap(&mut self) {
        let key = self.key();
        let rule = self.rules[&key].clone();
        let label = match (&rule, self.below(20)) {
            (Rule::Window { per_ms, .. }, n) => {
                let label = label_at(self.now, *per_ms);
                match n {
                    0 => None,
                    1 => Some(label.saturating_sub(1)),
                    2..6 => Some(label + 1),
                    _ => Some(label),
                }
            }
            (Rule::Bucket { .. }, 0) => Some(self.below(3)),
            (Rule::Bucket { .. }, _) => None,
        };
        let id = MeterId { key, label };
        self.ids.insert(id.clone());
        let fence = self.fence();
        let read = self.apply(Op::Read {
            fence,
            partition: id.key.partition(),
            ids: vec![id.clone()],
        });
        let Ok(Reply::Snapshots { snapshots, .. }) = read else {
            return;
        };
        let traded = snapshots[0].traded.as_ref();
        let mut expect = traded.map_or(0, |t| t.version);
        let used = match &snapshots[0].meter {
            Some(Meter::Window(window)) => window.used,
            _ => 0,
        };
        if self.chance(10) {
            expect = self.below(4);
        }
        let of_window = matches!(rule, Rule::Window { .. }) != self.chance(2);
        let terms = match of_window {
            true => Terms::Window {
                delta: {
                    let base = label.map_or(0, |label| rule.window_base(label));
                    let exactly = used as i64 - base as i64;
                    match self.below(5) {
                        0 => exactly,
                        1 => exactly - 1,
                        2 => -(base as i64) - 1,
                        _ => exactly + self.below(20) as i64,
                    }
                },
            },
            false => {
                let steps = 1 + self.below(8);
                let schedule = self.schedule(steps);
                let least = schedule.least_cap();
                Terms::Bucket {
                    epoch: match self.chance(90) {
                        true => self.record.epoch,
                        false => Epoch(self.below(4) as u32),
                    },
                    own_cap: match self.chance(50) {
                        true => least,
                        false => self.below(least + 1),
                    },
                    schedule,
                }
            }
        };
        let allotment = (0..self.below(40)).map(|_| self.rng.random()).collect();
        let keep_until = match self.below(10) {
            0 => self.now.minus(self.below(10_000)),
            1 | 2 => self.now.plus(self.below(1_000)),
            _ => self.now.plus(self.below(100_000_000)),
        };
        let _ = self.apply(Op::Swap(Swap {
            fence,
            id,
            rule,
            expect,
            terms,
            allotment,
            keep_until,
        }));
    }

    fn read(&mut self) {
        let partition = self.partition();
        let fence = self.fence();
        let of = |id: &&MeterId| id.key.partition() == partition;
        let ids = self.ids.iter().filter(of).cloned().collect();
        let _ = self.apply(Op::Read {
            fence,
            partition,
            ids,
        });
    }

    fn reader(&mut self) -> String {
        self.pick(&["eu", "us"]).into()
    }

    fn feed(&mut self) {
        let op = Op::Feed {
            fence: self.fence(),
            partition: self.partition(),
            reader: self.reader(),
            limit: self.pick(&[0, 1, 2, 5, 300]),
        };
        if let Ok(Reply::Feed(page)) = self.apply(op) {
            self.feed_seq = page.seq;
        }
    }

    fn ack(&mut self) {
        let op = Op::Ack {
            fence: self.fence(),
            partition: self.partition(),
            reader: self.reader(),
            seq: match self.chance(80) {
                true => self.feed_seq,
                false => self.below(self.feed_seq + 3),
            },
        };
        let _ = self.apply(op);
    }

    fn merge(&mut self) {
        let fence = self.fence();
        let keys = self.subject();
        let mut slots = vec![];
        for _ in 0..1 + self.below(4) {
            let key = keys.choose(&mut self.rng).unwrap().clone();
            let period_ms = self.pick(&USAGE_MS);
            let period = period_start(self.moment(), period_ms);
            self.periods.insert((key.clone(), period));
            let mut count = || match self.below(10) {
                0..4 => 0,
                4 => 1 << 53,
                _ => self.below(10_000),
            };
            let counts = Counts {
                admitted: count(),
                refunded: count(),
                refused: count(),
            };
            let actor = self.actor();
            let keep_until = match self.below(8) {
                0 => self.now.minus(self.below(100)),
                1..4 => self.now.plus(self.below(5_000)),
                _ => self.now.plus(self.below(5_000_000)),
            };
            slots.push(UsageSlot {
                key,
                period,
                keep_until,
                slot: Slot { actor, counts },
            });
        }
        let partition = keys[0].partition();
        let _ = self.apply(Op::Merge {
            fence,
            partition,
            slots,
        });
    }

    fn actor(&mut self) -> Actor {
        Actor {
            region: Region::new(self.pick(&["eu-west", "us-east", "us"])),
            life: Life::from_random(self.pick(&[3, 0x00ff_0000_0000, 61])),
        }
    }

    fn usage(&mut self) {
        let fence = self.fence();
        let key = self.key();
        let of = |(k, _): &&(Key, StoreMs)| *k == key;
        let starts = self.periods.iter().filter(of).map(|(_, s)| *s).collect();
        let partition = key.partition();
        let _ = self.apply(Op::Usage {
            fence,
            partition,
            key,
            starts,
        });
    }

    fn traded(&mut self) {
        let op = Op::Traded {
            fence: self.fence(),
            partition: self.partition(),
            limit: self.pick(&[0, 1, 2, 5, 300]),
        };
        let _ = self.apply(op);
    }

    /// What isn't of a partition.
    fn region(&mut self) {
        let op = match self.below(6) {
            0 => Op::Look,
            1 => Op::PutState {
                expect: match self.chance(70) {
                    true => self.state_version,
                    false => self.below(4),
                },
                value: (0..self.below(50)).map(|_| self.rng.random()).collect(),
            },
            2 | 3 => Op::Lease {
                holder: match self.chance(80) {
                    true => self.below(3),
                    false => u64::MAX,
                },
                ttl_ms: self.below(3_000),
            },
            4 => Op::Mark {
                life: self.record.life,
                actor: self.actor(),
                through: self.moment(),
            },
            _ => Op::Marks {
                life: self.record.life,
            },
        };
        if let Ok(Reply::Put(version)) = self.apply(op) {
            self.state_version = version;
        }
    }

    fn new_rule(&mut self) {
        let key = self.key();
        let window = matches!(self.rules[&key], Rule::Window { .. }) != self.chance(3);
        let rule = self.rule(window);
        self.rules.insert(key, rule);
    }

    fn attach(&mut self) {
        let fingerprint = match self.chance(70) {
            true => self.fingerprint.clone(),
            false => "another".into(),
        };
        let life = self.record.life;
        let _ = self.apply(Op::Attach { life, fingerprint });
        if self.chance(80) {
            let fingerprint = self.fingerprint.clone();
            let _ = self.apply(Op::Attach { life, fingerprint });
        }
    }

    fn adopt(&mut self, record: Record) -> bool {
        let op = Op::PutState {
            expect: self.state_version,
            value: b"state".to_vec(),
        };
        if let Ok(Reply::Put(version)) = self.apply(op) {
            self.state_version = version;
        }
        let state_version = match self.chance(95) {
            true => self.state_version,
            false => self.below(3),
        };
        let op = Op::Adopt {
            state_version,
            record,
        };
        let adopted = self.apply(op) == Ok(Reply::Done);
        if adopted {
            self.record = record;
            self.epoch_began = self.now;
        }
        adopted
    }

    fn new_epoch(&mut self) {
        let record = Record {
            epoch: Epoch(self.record.epoch.0 + 1),
            ..self.record
        };
        self.adopt(record);
    }

    fn begin_if(&mut self, percent: u32) {
        if self.chance(percent) {
            self.record.life = Life::from_random(self.rng.random());
            self.begin();
        }
    }

    fn begin(&mut self) {
        let life = self.record.life;
        let fingerprint = self.fingerprint.clone();
        let _ = self.apply(Op::Attach { life, fingerprint });
        while !self.adopt(self.record) {}
    }

    fn look_at_everything(&mut self) {
        let mut fence = self.fence();
        fence.record = self.record;
        let partitions: BTreeSet<Partition> = self.rules.keys().map(Key::partition).collect();
        for partition in partitions {
            let of = |id: &&MeterId| id.key.partition() == partition;
            let ids = self.ids.iter().filter(of).cloned().collect();
            let reader = "nobody".to_string();
            let ops = [
                Op::Read {
                    fence,
                    partition,
                    ids,
                },
                Op::Feed {
                    fence,
                    partition,
                    reader,
                    limit: 10_000,
                },
                Op::Traded {
                    fence,
                    partition,
                    limit: 10_000,
                },
            ];
            for op in ops {
                let _ = self.apply(op);
            }
        }
        let keys: Vec<Key> = self.rules.keys().cloned().collect();
        for key in keys {
            let of = |(k, _): &&(Key, StoreMs)| *k == key;
            let starts = self.periods.iter().filter(of).map(|(_, s)| *s).collect();
            let partition = key.partition();
            let _ = self.apply(Op::Usage {
                fence,
                partition,
                key,
                starts,
            });
        }
        let life = self.record.life;
        let _ = self.apply(Op::Marks { life });
        let _ = self.apply(Op::Look);
    }
}
