//! Random histories of a region's store: operations at moments, with what the embedded store answers to them.
//!
//! Later operations are drawn from earlier answers, so that costs, versions and holds lie at the edges.

mod partition;
mod region;

use apportion_core::fence::{Fence, Missing, Span};
use apportion_core::meter::{
    MEMBER_IDLE_MS, Member, Part, Reading, Rule, Slack, State, Terms, reserve,
};
use apportion_core::schedule::{EXACT, MICRO, PPB, Shares, Step};
use apportion_core::tally::Told;
use apportion_core::usage::{Counts, Slot, period_start};
use apportion_core::{
    Actor, Algorithm, Epoch, Key, Life, Limits, Partition, Period, Record, Region, StoreMs,
};
use apportion_store::*;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
const LOG_LIMITS: [u64; 6] = [1, 3, 10, 100, 1_000, 10_000];
const BUCKETS: [u32; 7] = [1, 1, 1, 2, 3, 6, 60];
const RESERVES_PPM: [u32; 8] = [0, 0, 0, 0, 1, 100_000, 500_001, 1_000_000];
const POLICIES: [(&str, Kind); 10] = [
    ("api@1", Kind::Bucket),
    ("burst@2", Kind::Bucket),
    ("gcra@1", Kind::Bucket),
    ("day@1", Kind::Window),
    ("month@7", Kind::Window),
    ("log@1", Kind::Log),
    ("log@2", Kind::Log),
    ("slide@1", Kind::Counter),
    ("slide@2", Kind::Counter),
    ("slots@1", Kind::Slots),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bucket,
    Window,
    Log,
    Counter,
    Slots,
}

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
    rules: BTreeMap<Key, Arc<Rule>>,
    /// Of the keys that ever had a counter.
    cells: BTreeMap<Key, Algorithm>,
    next_id: u64,
    ids: BTreeSet<MeterId>,
    periods: BTreeSet<(Key, StoreMs)>,
    holds: Vec<EndHolds>,
    merged: Vec<UsageSlot>,
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
            cells: BTreeMap::new(),
            next_id: 1,
            ids: BTreeSet::new(),
            periods: BTreeSet::new(),
            holds: vec![],
            merged: vec![],
            feed_seq: 0,
            tick: None,
            rng,
        };
        world.epoch_began = world.now.minus(world.below(100_000));
        for subject in SUBJECTS {
            for (policy, kind) in POLICIES {
                let key = Key::parse(&format!("{policy}:{subject}")).unwrap();
                let rule = world.rule(kind);
                world.put_rule(key, rule);
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

    /// The name of each meter in Redis, and until when it is kept.
    pub(crate) fn deadlines(&self) -> Vec<(String, String, Option<StoreMs>)> {
        let each = self.ids.iter().map(|id| {
            let tag = format!("ap{{{:02x}}}", id.key.partition().0);
            let label = id.label.map_or(String::new(), |label| format!("#{label}"));
            let name = format!("{tag}{}{}{label}", self.record.life, id.key);
            (tag, name, self.memory.deadline(id))
        });
        each.collect()
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

    fn shares(&mut self, steps: u64) -> Shares {
        let mut froms: Vec<StoreMs> = (1..steps).map(|_| self.moment()).collect();
        froms.push(StoreMs(0));
        froms.sort_unstable();
        Shares::new(froms.into_iter().map(|from| {
            let ppb = self.pick(&SHARES_PPB);
            Step { from, ppb }
        }))
    }

    fn algorithm(&mut self, kind: Kind) -> Algorithm {
        let per_ms = self.pick(&PERS_MS);
        match kind {
            Kind::Bucket if self.chance(30) => Algorithm::Gcra { per_ms },
            Kind::Bucket => Algorithm::TokenBucket { per_ms },
            Kind::Window => Algorithm::FixedWindow {
                period: match self.below(4) {
                    0 => Period::Month,
                    1 => Period::WEEK,
                    2 => Period::every(per_ms),
                    _ => Period::Every {
                        per_ms,
                        offset_ms: self.below(per_ms),
                    },
                },
            },
            Kind::Log => Algorithm::SlidingLog { per_ms },
            Kind::Counter => Algorithm::SlidingWindow {
                per_ms,
                buckets: self.pick(&BUCKETS),
            },
            Kind::Slots => Algorithm::Concurrency {
                slot_ttl_ms: self.pick(&[1, 100, 3_000, 60_000, 86_400_000]),
            },
        }
    }

    fn limits(&mut self, algorithm: Algorithm) -> Limits {
        let limit = match algorithm {
            Algorithm::SlidingLog { .. } | Algorithm::Concurrency { .. } => self.pick(&LOG_LIMITS),
            Algorithm::SlidingWindow { per_ms, .. } => self.pick(&LIMITS).min(EXACT / per_ms),
            _ => self.pick(&LIMITS),
        };
        let burst = match self.below(4) {
            0 => limit,
            1 => self.pick(&LIMITS),
            2 => 1 + self.below(20),
            _ => MOST_UNITS,
        };
        Limits { limit, burst }
    }

    fn rule(&mut self, kind: Kind) -> Rule {
        let algorithm = self.algorithm(kind);
        let part = match kind {
            _ if self.chance(3) => Part::Nothing,
            Kind::Window => Part::Base {
                units: match self.below(4) {
                    0 => self.pick(&LIMITS),
                    1 => 0,
                    _ => self.below(20),
                },
                from: match (self.below(6), algorithm) {
                    (0, Algorithm::FixedWindow { period }) if self.chance(50) => {
                        period.bounds(period.label(self.now)).0
                    }
                    (0, _) => self.moment(),
                    (1, _) => StoreMs::MAX,
                    _ => StoreMs(0),
                },
            },
            Kind::Slots => Part::Whole,
            Kind::Bucket | Kind::Log | Kind::Counter => {
                let steps = if self.chance(80) { 1 } else { 3 };
                Part::Shares(self.shares(steps))
            }
        };
        let slack = match (kind, self.below(6)) {
            (Kind::Slots, _) => Slack::Nothing,
            (_, 0 | 1) => Slack::Over(self.overdraft(kind)),
            (_, 2) => Slack::Known,
            _ => Slack::Nothing,
        };
        let rule = Rule {
            algorithm,
            limits: self.limits(algorithm),
            by_plan: self.chance(30),
            fill_ms: match self.below(3) {
                0 => self.below(100_000),
                _ => 0,
            },
            part,
            slack,
        };
        match rule.slack {
            // As regions have it, and as it could be.
            Slack::Known if self.chance(80) => rule.known(),
            _ => rule,
        }
    }

    fn overdraft(&mut self, kind: Kind) -> Part {
        match kind {
            _ if self.chance(5) => Part::Nothing,
            Kind::Window => Part::Base {
                units: self.below(8),
                from: match self.chance(10) {
                    true => self.moment(),
                    false => StoreMs(0),
                },
            },
            _ => Part::Shares(self.shares(1)),
        }
    }

    /// The key's rule, or the same under another plan.
    fn rule_of(&mut self, key: &Key) -> Arc<Rule> {
        let rule = Arc::clone(&self.rules[key]);
        if !rule.by_plan || self.chance(70) {
            return rule;
        }
        let limits = self.limits(rule.algorithm);
        let other = Arc::new(Rule {
            limits,
            ..(*rule).clone()
        });
        if self.chance(50) {
            self.rules.insert(key.clone(), Arc::clone(&other));
        }
        other
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
            0 => match self.algorithm(Kind::Window) {
                Algorithm::FixedWindow { .. } if self.chance(50) => {
                    let periods = self.rules.values().filter_map(|r| match r.algorithm {
                        Algorithm::FixedWindow { period } => Some(period),
                        _ => None,
                    });
                    let ends: Vec<StoreMs> =
                        periods.map(|p| p.bounds(p.label(self.now)).1).collect();
                    self.pick(&ends)
                }
                _ => self.moment(),
            },
            1 => self.now,
            _ => StoreMs(0),
        };
        Fence {
            record,
            span,
            epoch_began: self.epoch_began,
            missing,
            closed_before,
            replicated: self.chance(20),
        }
    }

    /// A cost at one of the edges of what `reading` leaves, with a reserve.
    fn cost(&mut self, reading: &Reading, reserve_ppm: u32) -> u64 {
        let kept = reserve(reading.of(), reserve_ppm);
        let available = match self.chance(80) {
            true => reading.available().saturating_sub(kept),
            false => reading.of(),
        };
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
                Reading::Window { .. } | Reading::Units { .. } => self.below(5),
            },
        }
        .min(1 << 53)
    }
}
