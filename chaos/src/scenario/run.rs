//! Plays a scenario on real processes.

use super::{Fault, Flow, Promise, Rates, Scenario};
use crate::cluster::{Cluster, ClusterSpec};
use crate::history::{History, Tally};
use crate::proxy::Direction;
use crate::time::{keep_clear_of_window_end, wait_until};
use crate::traffic::{Traffic, ask_on, drive};
use crate::{Error, StoreKind};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use serde::Serialize;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// From the last heal to the last unit used, and to equal usage everywhere.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
const ASK_ON_PAUSE: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_secs(86_400);
const WORKERS: usize = 16;
/// The part of what could be admitted that counts as having followed.
const SETTLED: f64 = 0.95;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub scenario: &'static str,
    pub seed: u64,
    pub store: &'static str,
    pub passed: bool,
    /// What was broken, in words.
    pub violations: Vec<String>,
    pub flows: Vec<FlowReport>,
    pub events: Vec<Event>,
    pub seconds: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct FlowReport {
    pub policy: &'static str,
    /// What callers were told they may have.
    pub admitted: u64,
    pub admitted_by_region: BTreeMap<String, u64>,
    /// What may have been charged unheard.
    pub in_doubt: u64,
    /// As each region tells it in the end.
    pub usage: BTreeMap<String, u64>,
    /// How soon shares followed each turn of a bucket's traffic.
    pub turns: Vec<Turn>,
    pub requests: BTreeMap<String, Tally>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    pub at_seconds: f64,
    /// From so long after it on, 95% of what could be admitted was: in half a second, and in the three from then on.
    /// `None`: never.
    pub settled_after_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Event {
    pub at_seconds: f64,
    pub what: String,
}

/// Errors are those of the harness; a broken promise is in the report. Progress goes to `say`.
pub fn run(
    scenario: &'static Scenario,
    store: StoreKind,
    seed: u64,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Report, Error> {
    keep_clear_of_window_end(DAY, scenario.lasts + SETTLE_LIMIT * 2);
    let nodes = match store {
        // Each node has its own.
        StoreKind::Memory => 1,
        StoreKind::Redis => scenario.nodes_per_region,
    };
    let spec = ClusterSpec::new(store, scenario.policies)
        .nodes_per_region(nodes)
        .probe(scenario.probe);
    let mut cluster = Cluster::start(&spec)?;
    cluster.wait_met()?;
    say("the regions have met");

    let began = Instant::now();
    let histories: Vec<History> = scenario.flows.iter().map(|_| History::new()).collect();
    let mut events = Vec::new();
    thread::scope(|scope| {
        for (flow, history) in scenario.flows.iter().zip(&histories) {
            let (api, traffic) = (cluster.api().clone(), flow.traffic(scenario.lasts));
            scope.spawn(move || drive(&api, history, &traffic));
        }
        let mut rng = StdRng::seed_from_u64(seed);
        for (at, fault) in scenario.faults {
            thread::sleep((began + *at).duration_since(Instant::now()));
            let what = fault.strike(&cluster, &mut rng);
            let admitted: Vec<u64> = histories.iter().map(History::admitted).collect();
            say(&format!(
                "{:>3} s  {what}; admitted: {admitted:?}",
                at.as_secs()
            ));
            events.push(Event {
                at_seconds: began.elapsed().as_secs_f64(),
                what,
            });
        }
    });
    cluster.heal_all();
    say("traffic is over, all is healed");

    let mut violations = Vec::new();
    let mut flows = Vec::new();
    for (flow, history) in scenario.flows.iter().zip(&histories) {
        let broken = flow.settle(&cluster, history);
        violations.extend(broken.iter().map(|what| format!("{}: {what}", flow.policy)));
        let report = flow.report(&cluster, history);
        say(&format!(
            "{}: {} admitted {:?}; {}",
            flow.policy,
            report.admitted,
            report.admitted_by_region,
            history.tally()
        ));
        flows.push(report);
    }
    violations.extend(cluster.check_healthy().err().map(|e| e.to_string()));
    Ok(Report {
        scenario: scenario.name,
        seed,
        store: match store {
            StoreKind::Memory => "memory",
            StoreKind::Redis => "redis",
        },
        passed: violations.is_empty(),
        violations,
        flows,
        events,
        seconds: began.elapsed().as_secs_f64(),
    })
}

// === impl Flow ===

impl Flow {
    fn traffic(&self, lasts: Duration) -> Vec<Traffic> {
        let begins = std::iter::once((Duration::ZERO, self.per_second));
        let begins: Vec<_> = begins.chain(self.turns.iter().copied()).collect();
        let ends = begins.iter().skip(1).map(|(at, _)| *at);
        let ends: Vec<Duration> = ends.chain([lasts]).collect();
        let mut traffic = Vec::new();
        for ((from, rates), until) in begins.into_iter().zip(ends) {
            let over = until.saturating_sub(from);
            let seconds = usize::try_from(over.as_secs()).unwrap_or(usize::MAX);
            traffic.extend(rates.iter().map(|(region, rate)| {
                Traffic::new(region, self.attributes, rate * seconds, over)
                    .after(from)
                    .workers(WORKERS)
            }));
        }
        traffic
    }

    /// What could be admitted of these rates each second, where the bucket is empty.
    fn settled(&self, history: &History) -> Vec<Turn> {
        let Promise::Bucket(bucket) = self.promise else {
            return Vec::new();
        };
        let turn = |(at, rates): &(Duration, Rates)| {
            let asked: usize = rates.iter().map(|(_, rate)| rate).sum();
            let possible = (bucket.limit as f64 * 1_000.0 / bucket.per_ms as f64).min(asked as f64);
            let settled = history.settles(*at, possible * SETTLED);
            Turn {
                at_seconds: at.as_secs_f64(),
                settled_after_seconds: settled.map(|after| after.as_secs_f64()),
            }
        };
        self.turns.iter().map(turn).collect()
    }

    /// What must hold at the end; the words of what doesn't.
    fn settle(&self, cluster: &Cluster, history: &History) -> Vec<String> {
        let mut broken = Vec::new();
        let usage = |region: &str| {
            let usage = cluster.usage(region, self.policy, self.key).ok()?;
            Some((usage.admitted(), usage.admitted_by_region()))
        };
        let regions = cluster.api().regions();
        if let Promise::Window { limit } = self.promise {
            // Units in doubt may have been charged, so the product's own count says when all are used.
            let used_up = |_: &History| usage(&regions[0]).is_some_and(|(sum, _)| sum >= limit);
            ask_on(
                cluster.api(),
                history,
                self.attributes,
                ASK_ON_PAUSE,
                SETTLE_LIMIT,
                used_up,
            );
            if !used_up(history) {
                broken.push(format!(
                    "all was healed, yet no more than {} of {limit} could be used",
                    history.admitted()
                ));
            }
        }

        let mut told: Vec<_> = Vec::new();
        let agreed = wait_until(SETTLE_LIMIT, "equal usage in every region", || {
            told = regions.iter().map(|region| usage(region)).collect();
            told.iter()
                .all(|usage| usage.is_some() && *usage == told[0])
        });
        if agreed.is_err() {
            broken.push(format!("the regions tell different usage: {told:?}"));
        }
        let (low, high) = (history.admitted(), history.admitted() + history.in_doubt());
        for (sum, _) in told.iter().flatten() {
            if !(low..=high).contains(sum) {
                broken.push(format!("usage is {sum}, but {low} to {high} were admitted"));
            }
        }

        let promised = match self.promise {
            Promise::Window { limit } => history.check_limit(limit),
            Promise::Bucket(bucket) => history.check_bucket(bucket),
        };
        broken.extend(promised.err().map(|violation| violation.to_string()));
        broken
    }

    fn report(&self, cluster: &Cluster, history: &History) -> FlowReport {
        let told = cluster.api().regions().into_iter().filter_map(|region| {
            let usage = cluster.usage(&region, self.policy, self.key).ok()?;
            Some((region, usage.admitted()))
        });
        FlowReport {
            policy: self.policy,
            admitted: history.admitted(),
            admitted_by_region: history.admitted_by_region(),
            in_doubt: history.in_doubt(),
            usage: told.collect(),
            turns: self.settled(history),
            requests: history.tally_by_region(),
        }
    }
}

// === impl Fault ===

impl Fault {
    /// Hands back what it did, in words.
    fn strike(&self, cluster: &Cluster, rng: &mut StdRng) -> String {
        match self {
            Self::DelayAll(delay) => {
                cluster.delay_all(*delay);
                format!("every link is delayed by {delay:?}")
            }
            Self::CutAll => {
                cluster.cut_all();
                "every link is cut".to_owned()
            }
            Self::HealAll => {
                cluster.heal_all();
                "every link is healed".to_owned()
            }
            Self::CutSome(count) => cut_some(cluster, rng, *count),
        }
    }
}

/// Cuts `count` links drawn at random, each in both directions or in one.
pub fn cut_some(cluster: &Cluster, rng: &mut impl Rng, count: usize) -> String {
    let mut words = Vec::new();
    for ((from, to), link) in cluster.links().choose_multiple(rng, count) {
        let directions = [
            Direction::Both,
            Direction::ToUpstream,
            Direction::FromUpstream,
        ];
        let direction = *directions.choose(rng).unwrap_or(&Direction::Both);
        link.cut(direction);
        words.push(match direction {
            Direction::Both => format!("{from}<->{to}"),
            Direction::ToUpstream => format!("{from}->{to}"),
            Direction::FromUpstream => format!("{from}<-{to}"),
        });
    }
    format!("cut: {}", words.join(" "))
}
