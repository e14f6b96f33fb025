//! Regions that hear each other late, or never: what all of them admit stays within their tolerance.

use super::*;
use apportion_core::{Actor, Region};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const REGIONS: usize = 3;
const LIMIT: u64 = 30;
const BURST: u64 = 12;
const PER_MS: u64 = 10_000;
const OVER_PERCENT: u64 = 40;

/// Equal parts of all of it, and of what may be over.
fn rule(algorithm: Algorithm, slack: &str) -> Rule {
    let part = |whole: u64| match algorithm {
        Algorithm::FixedWindow { .. } => Part::Base {
            units: LIMIT * whole / 100 / REGIONS as u64,
            from: StoreMs(0),
        },
        _ => Part::Shares(Shares::constant(PPB * whole / 100 / REGIONS as u64)),
    };
    let rule = Rule {
        algorithm,
        limits: Limits {
            limit: LIMIT,
            burst: BURST,
        },
        by_plan: false,
        fill_ms: 4_001,
        part: part(100),
        slack: Slack::Nothing,
    };
    match slack {
        "over" => Rule {
            slack: Slack::Over(part(OVER_PERCENT)),
            ..rule
        },
        _ => rule.known(),
    }
}

fn algorithms() -> [Algorithm; 5] {
    let per_ms = PER_MS;
    [
        Algorithm::TokenBucket { per_ms },
        Algorithm::Gcra { per_ms },
        Algorithm::FixedWindow {
            period: Period::every(per_ms),
        },
        Algorithm::SlidingLog { per_ms },
        Algorithm::SlidingWindow { per_ms, buckets: 5 },
    ]
}

fn actor(region: usize) -> Actor {
    Actor {
        region: Region::new(["a", "b", "c"][region]),
        life: Life::from_random(region as u64),
    }
}

struct World {
    rule: Arc<Rule>,
    stores: Vec<Memory>,
    now: StoreMs,
    /// What was admitted: when, where, units.
    admitted: Vec<(u64, usize, u64)>,
    overdrawn: u64,
    holds: Vec<(usize, EndHolds)>,
}

impl World {
    fn new(rule: Rule) -> Self {
        Self {
            rule: Arc::new(rule),
            stores: (0..REGIONS).map(|_| begun()).collect(),
            now: NOW,
            admitted: Vec::new(),
            overdrawn: 0,
            holds: Vec::new(),
        }
    }

    fn ask(&mut self, region: usize, units: u64, mode: Mode, id: u64) -> bool {
        let charge = Charge {
            rule: Arc::clone(&self.rule),
            cost: units * self.rule.unit(),
            units,
            ..charge("api@1:acme")
        };
        let decide = Decide {
            id,
            ..decide_as(mode, vec![charge.clone()], None)
        };
        let reply = self.stores[region].apply(self.now, Op::Decide(decide.clone()));
        let Ok(Reply::Decided(decided)) = reply else {
            panic!("not decided");
        };
        if decided.admitted {
            self.admitted.push((self.now.0, region, units));
            self.overdrawn += decided.answers[0].overdrawn;
            if let Mode::Hold { .. } = mode {
                let end = EndHolds {
                    fence: decide.fence,
                    partition: decide.partition,
                    id,
                    laid_at: self.now,
                    release: true,
                    charges: vec![charge],
                };
                self.holds.push((region, end));
            }
        }
        decided.admitted
    }

    /// Puts back what is held, if it still is. Then it wasn't admitted after all.
    fn put_back(&mut self, which: usize) {
        let (region, end) = self.holds.swap_remove(which);
        let (at, units) = (end.laid_at.0, end.charges[0].units);
        let ended = self.stores[region].apply(self.now, Op::EndHolds(end));
        if ended == Ok(Reply::Ended(vec![true])) {
            let was = self.admitted.iter().position(|a| *a == (at, region, units));
            self.admitted.remove(was.expect("it was admitted"));
        }
    }

    /// `from` tells `to` all that it has to say. Returns what was beyond.
    fn tell(&mut self, from: usize, to: usize) -> u64 {
        let partition = charge("api@1:acme").key.partition();
        let feed = Op::Feed {
            fence: fence(),
            partition,
            reader: "x".into(),
            limit: 100,
        };
        let Ok(Reply::Feed(page)) = self.stores[from].apply(self.now, feed) else {
            panic!("no feed");
        };
        let cell_ms = self.rule.tally_cell_ms();
        let tallies = page.tallies.into_iter().filter(|t| t.actor.is_none());
        let heard = tallies.map(|entry| Heard {
            id: entry.id,
            rule: Arc::clone(&self.rule),
            actor: actor(from),
            told: entry.tally.told(self.now, cell_ms),
        });
        let hear = Op::Hear {
            fence: fence(),
            partition,
            heard: heard.collect(),
        };
        match self.stores[to].apply(self.now, hear) {
            Ok(Reply::Heard(beyond)) => beyond.iter().sum(),
            other => panic!("{other:?}"),
        }
    }

    /// Whether one perfect limiter of `percent` of the limit could have admitted the same.
    fn check(&self, percent: u64) {
        let over = |n: u64| n * percent / 100;
        let all = &self.admitted;
        let between = |from: u64, to: u64| -> u64 {
            let inside = all.iter().filter(|(at, ..)| (from..to).contains(at));
            inside.map(|(_, _, units)| units).sum()
        };
        for (i, (from, ..)) in all.iter().enumerate() {
            match self.rule.algorithm {
                Algorithm::FixedWindow { period } => {
                    let (start, end) = period.bounds(period.label(StoreMs(*from)));
                    assert!(between(start.0, end.0) <= over(LIMIT));
                }
                Algorithm::SlidingLog { per_ms } | Algorithm::SlidingWindow { per_ms, .. } => {
                    assert!(between(*from, from + per_ms) <= over(LIMIT));
                }
                _ => {
                    for (to, ..) in &all[i..] {
                        let flow = LIMIT as f64 * (to - from) as f64 / PER_MS as f64;
                        let most = (BURST as f64 + flow) * percent as f64 / 100.0;
                        assert!(between(*from, to + 1) as f64 <= most + 1e-6);
                    }
                }
            }
        }
    }
}

#[test]
fn all_regions_together_are_over_by_their_tolerance_at_most_and_use_it() {
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        for algorithm in algorithms() {
            let mut world = World::new(rule(algorithm, "over"));
            let deaf = rng.random_ratio(1, 2);
            for step in 0..400 {
                world.now = world.now.plus(rng.random_range(0..120));
                let region = rng.random_range(0..REGIONS);
                let mode = match rng.random_ratio(1, 5) {
                    true => Mode::Hold { ttl_ms: 900 },
                    false => Mode::Charge,
                };
                world.ask(region, rng.random_range(1..3), mode, step);
                if !world.holds.is_empty() && rng.random_ratio(1, 8) {
                    world.put_back(0);
                }
                if !deaf && rng.random_ratio(1, 6) {
                    world.tell(region, (region + rng.random_range(1..REGIONS)) % REGIONS);
                }
            }
            assert!(world.overdrawn > 0, "{algorithm:?}");
            world.check(100 + OVER_PERCENT);
        }
    }
}

#[test]
fn never_under_refuses_what_it_knows_to_be_used_up_and_nothing_else() {
    for algorithm in algorithms() {
        let all = if algorithm.is_bucket() { BURST } else { LIMIT };
        let mut world = World::new(rule(algorithm, "under"));
        for _ in 0..all - 2 {
            assert!(world.ask(0, 1, Mode::Charge, 0), "{algorithm:?}");
        }
        assert!(world.ask(1, 1, Mode::Charge, 0), "it hasn't heard");
        assert_eq!(world.tell(0, 1), 0, "{algorithm:?}");
        assert_eq!(world.tell(0, 1), 0, "what was said before counts once");
        assert!(world.ask(1, 1, Mode::Charge, 0));
        assert!(!world.ask(1, 1, Mode::Charge, 0), "{algorithm:?}");
        assert!(world.ask(0, 2, Mode::Charge, 0), "it hasn't heard");
        assert_eq!(world.tell(0, 1), 2, "what is beyond is measured");
        assert_eq!(world.tell(1, 0), 2);
        assert!(!world.ask(0, 1, Mode::Charge, 0));
    }
}

#[test]
fn what_is_held_is_told_once_it_is_kept() {
    let mut world = World::new(rule(algorithms()[2], "under"));
    let hold = Mode::Hold { ttl_ms: 900 };
    for id in [1, 2] {
        assert!(world.ask(0, LIMIT / 2, hold, id));
    }
    world.tell(0, 1);
    assert!(world.ask(1, 1, Mode::Charge, 0), "nothing was said yet");
    let (_, kept) = world.holds.swap_remove(0);
    let kept = EndHolds {
        release: false,
        ..kept
    };
    let ended = world.stores[0].apply(world.now, Op::EndHolds(kept));
    assert_eq!(ended, Ok(Reply::Ended(vec![true])));
    world.put_back(0);
    world.tell(0, 1);
    assert!(world.ask(1, LIMIT / 2 - 1, Mode::Charge, 0));
    assert!(!world.ask(1, 1, Mode::Charge, 0));
}
