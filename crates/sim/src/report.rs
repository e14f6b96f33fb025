//! What came of a scenario, summed up over its runs: beside what one perfect limiter for all regions would have done, and
//! what people would have without Apportion.

#[cfg(test)]
mod tests;
mod timeline;

pub use timeline::{Lower, Timeline};

use crate::measure::{Ground, Settling, churn_per_minute, false_refusals};
use crate::perfect::Other;
use crate::scenario::{LEAD_IN_MS, Scenario};
use crate::{Asked, Outcome, Record, Setup, Violation, run};
use apportion_core::Period;
use serde::Serialize;
use std::thread;

/// Units are sums over all runs. Times are milliseconds from the beginning of the traffic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub policy: String,
    pub algorithm: &'static str,
    pub limit: u64,
    /// `None` where the algorithm has none.
    pub burst: Option<u64>,
    /// Length of the period that the limit is for; `None` for those of the calendar that vary.
    pub per_ms: Option<u64>,
    pub duration_ms: u64,
    pub first_seed: u64,
    pub runs: u64,
    pub regions: Vec<OfRegion>,
    pub apportion: Figures,
    pub perfect: Figures,
    pub static_shares: Figures,
    pub central_store: Central,
    pub events: Vec<Happening>,
    /// By how much shares moved, as a part of the limit; `None` for fixed windows, whose rights aren't lent but given.
    pub shares_moved_per_minute: Option<f64>,
    /// Messages between regions, and their bytes without what gRPC and HTTP/2 put around them.
    pub sync_messages: u64,
    pub sync_bytes: u64,
    #[serde(skip)]
    pub timeline: Timeline,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfRegion {
    pub region: String,
    pub asked: u64,
    pub admitted: u64,
    pub refused: u64,
}

/// How a way to limit compares with one perfect limiter for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    pub admitted: u64,
    /// Of what was admitted, what a perfect limiter would have had to refuse.
    pub beyond_limit: u64,
    /// What a perfect limiter would have admitted and this one didn't.
    pub stranded: u64,
    /// Refused though a perfect limiter, having admitted the same so far, had room.
    pub refused_wrongly: u64,
}

/// One store for all regions, where most is asked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Central {
    pub region: String,
    #[serde(flatten)]
    pub figures: Figures,
    /// Asked where a cut kept the store out of reach.
    pub out_of_reach: u64,
    /// What the way to the store adds to a request, on average.
    pub added_latency_ms: f64,
}

/// Something that changed or failed during the runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Happening {
    pub at_ms: u64,
    pub what: String,
    /// Until the next one, where it is looked at how soon as much is admitted again as is possible.
    pub window_ms: Option<u64>,
    /// When 95% of what a perfect limiter admits was admitted, and stayed so. `None` also where the window is too short.
    pub settled_ms: Option<u64>,
}

/// Admissions have settled at this part of what is possible.
pub const SETTLED: f64 = 0.95;
/// Shorter windows say nothing about settling.
pub const LEAST_WINDOW_MS: u64 = Settling::LEAST_MS;

/// Runs a scenario from each of `seeds` seeds, from `first_seed` on; `progress` hears how many runs are done.
///
/// # Errors
/// The first broken promise.
pub fn simulate(
    scenario: &Scenario,
    first_seed: u64,
    seeds: u64,
    mut progress: impl FnMut(u64),
) -> Result<Report, Violation> {
    let setup = scenario.setup();
    let mut sums = Sums::new(scenario, &setup);
    let cores = thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut done = 0;
    while done < seeds {
        // As many at a time as there are cores: a run's record is large.
        let some = (done..seeds).take(cores as usize);
        let outcomes = thread::scope(|scope| {
            let setup = &setup;
            let start = |i| scope.spawn(move || both(setup, first_seed + i));
            let threads: Vec<_> = some.map(start).collect();
            let join = |t: thread::ScopedJoinHandle<'_, _>| t.join().expect("runs don't panic");
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        for outcome in outcomes {
            let (lead_in, outcome) = outcome?;
            sums.add(scenario, &lead_in.record, &outcome.record);
            done += 1;
        }
        progress(done);
    }
    Ok(sums.report(scenario, first_seed, seeds))
}

/// The lead-in alone, which is the same in both, and the whole.
fn both(setup: &Setup, seed: u64) -> Result<(Outcome, Outcome), Violation> {
    let lead_in = Setup {
        duration_ms: LEAD_IN_MS - 1,
        ..setup.clone()
    };
    Ok((run(&lead_in, seed)?, run(setup, seed)?))
}

/// What is kept of the runs so far.
struct Sums {
    ground: Ground,
    regions: Vec<(u64, u64)>,
    ours: Figures,
    perfect: u64,
    fixed: Figures,
    central: Figures,
    central_at: usize,
    out_of_reach: u64,
    /// Requests, and those of them that another region than the central store's had to ask for.
    requests: (u64, u64),
    happenings: Vec<(Happening, Option<Settling>)>,
    churn: f64,
    messages: u64,
    bytes: u64,
    timeline: Timeline,
}

// === impl Sums ===

impl Sums {
    fn new(scenario: &Scenario, setup: &Setup) -> Self {
        let ground = Ground::of(setup);
        let regions = scenario.regions.len();
        Self {
            regions: vec![(0, 0); regions],
            ours: Figures::default(),
            perfect: 0,
            fixed: Figures::default(),
            central: Figures::default(),
            central_at: busiest(scenario),
            out_of_reach: 0,
            requests: (0, 0),
            happenings: happenings(scenario),
            churn: 0.0,
            messages: 0,
            bytes: 0,
            timeline: Timeline::new(scenario),
            ground,
        }
    }

    fn add(&mut self, scenario: &Scenario, lead_in: &Record, record: &Record) {
        let asked = &record.asked;
        let perfect = self.ground.admits(Other::Central, asked);
        let possible = units_of(asked, &perfect);
        self.perfect += possible;
        for a in asked {
            let sums = &mut self.regions[a.region];
            sums.0 += a.units;
            sums.1 += if a.admitted { a.units } else { 0 };
        }
        let all = LEAD_IN_MS..LEAD_IN_MS + scenario.duration_ms + 1;
        let figures = |asked: &[Asked]| {
            let admitted: Vec<bool> = asked.iter().map(|a| a.admitted).collect();
            let verdict = self.ground.verdict(asked, &admitted, all.clone());
            let record = Record {
                asked: asked.to_vec(),
                ..Record::default()
            };
            Figures {
                admitted: verdict.admitted,
                beyond_limit: verdict.over,
                stranded: possible.saturating_sub(verdict.admitted - verdict.over),
                refused_wrongly: false_refusals(&self.ground, &record, all.clone()).0,
            }
        };
        let ours = figures(asked);
        let stops = |a: &Asked| {
            let at_ms = a.at_ms - LEAD_IN_MS;
            scenario.troubles.iter().any(|t| t.stops(a.region, at_ms))
        };
        let fixed = figures(&self.decided(Other::Static, asked, |a| !stops(a)));
        let (store, troubles) = (self.central_at, &scenario.troubles);
        let is_cut = |a: &Asked| {
            let at_ms = a.at_ms - LEAD_IN_MS;
            let cuts = |from, to| troubles.iter().any(|t| t.cuts(from, to, at_ms));
            cuts(a.region, store) || cuts(store, a.region)
        };
        let reaches = |a: &Asked| !stops(a) && !is_cut(a);
        let central = figures(&self.decided(Other::Central, asked, reaches));
        self.out_of_reach += asked
            .iter()
            .filter(|a| is_cut(a))
            .map(|a| a.units)
            .sum::<u64>();
        self.requests.0 += asked.len() as u64;
        self.requests.1 += asked.iter().filter(|a| a.region != store).count() as u64;
        self.ours.add(ours);
        self.fixed.add(fixed);
        self.central.add(central);
        for (_, settling) in &mut self.happenings {
            if let Some(settling) = settling {
                settling.add(asked, &perfect);
            }
        }
        self.churn += churn_per_minute(record, all);
        self.messages += record.messages - lead_in.messages;
        self.bytes += record.bytes - lead_in.bytes;
        self.timeline.add(record, &perfect, &self.ground);
    }

    /// The requests as another limiter decides them; those that don't reach it are not admitted, and not counted by it.
    fn decided(
        &self,
        other: Other,
        asked: &[Asked],
        reaches: impl Fn(&Asked) -> bool,
    ) -> Vec<Asked> {
        let reaching: Vec<Asked> = asked.iter().filter(|a| reaches(a)).copied().collect();
        let mut admits = self.ground.admits(other, &reaching).into_iter();
        let decide = |a: &Asked| Asked {
            admitted: reaches(a) && admits.next().unwrap_or(false),
            ..*a
        };
        asked.iter().map(decide).collect()
    }

    fn report(self, scenario: &Scenario, first_seed: u64, runs: u64) -> Report {
        let policy = &scenario.policy;
        let region = |(i, (asked, admitted)): (usize, &(u64, u64))| OfRegion {
            region: scenario.regions[i].to_string(),
            asked: *asked,
            admitted: *admitted,
            refused: asked - admitted,
        };
        let share = self.requests.1 as f64 / self.requests.0.max(1) as f64;
        let settled = |(happening, settling): (Happening, Option<Settling>)| Happening {
            settled_ms: settling.and_then(|settling| settling.settled_ms(SETTLED)),
            ..happening
        };
        Report {
            policy: policy.name.clone(),
            algorithm: policy.algorithm.name(),
            limit: policy.limits.limit,
            burst: policy.algorithm.is_bucket().then_some(policy.limits.burst),
            per_ms: policy.algorithm.period().and_then(fixed_ms),
            duration_ms: scenario.duration_ms,
            first_seed,
            runs,
            regions: self.regions.iter().enumerate().map(region).collect(),
            apportion: self.ours,
            perfect: Figures {
                admitted: self.perfect,
                ..Figures::default()
            },
            static_shares: self.fixed,
            central_store: Central {
                region: scenario.regions[self.central_at].to_string(),
                figures: self.central,
                out_of_reach: self.out_of_reach,
                added_latency_ms: 2.0 * scenario.latency_ms as f64 * share,
            },
            events: self.happenings.into_iter().map(settled).collect(),
            shares_moved_per_minute: (self.timeline.lower == Lower::Shares)
                .then(|| self.churn / runs.max(1) as f64),
            sync_messages: self.messages,
            sync_bytes: self.bytes,
            timeline: self.timeline.mean_of(runs),
        }
    }
}

// === impl Figures ===

impl Figures {
    fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.beyond_limit += other.beyond_limit;
        self.stranded += other.stranded;
        self.refused_wrongly += other.refused_wrongly;
    }
}

fn fixed_ms(period: Period) -> Option<u64> {
    let ms = period.longest_ms();
    (ms == period.shortest_ms()).then_some(ms)
}

fn units_of(asked: &[Asked], admitted: &[bool]) -> u64 {
    let units = asked.iter().zip(admitted);
    units
        .map(|(a, admitted)| if *admitted { a.units } else { 0 })
        .sum()
}

/// Where most is asked; of several, the first.
fn busiest(scenario: &Scenario) -> usize {
    let mut units = vec![0.0; scenario.regions.len()];
    for flow in &scenario.traffic {
        let ms = (flow.until_ms - flow.from_ms) as f64;
        units[flow.region] += flow.per_second * ms * flow.cost as f64;
    }
    let most = units.iter().copied().fold(0.0, f64::max);
    units.iter().position(|u| *u == most).unwrap_or(0)
}

/// All that happens, in its order; with what comes after it, where that says how soon shares follow.
fn happenings(scenario: &Scenario) -> Vec<(Happening, Option<Settling>)> {
    let mut all: Vec<(u64, bool, String)> = Vec::new();
    for at_ms in traffic_changes(scenario) {
        all.push((at_ms, true, traffic_change(scenario, at_ms)));
    }
    for trouble in &scenario.troubles {
        let lasts = trouble.until_ms > trouble.at_ms;
        all.push((trouble.at_ms, !lasts, trouble.begins.clone()));
        if lasts && trouble.until_ms < scenario.duration_ms {
            all.push((trouble.until_ms, true, trouble.ends.clone()));
        }
    }
    all.sort_by_key(|(at_ms, _, _)| *at_ms);
    let times: Vec<u64> = all.iter().map(|(at_ms, _, _)| *at_ms).collect();
    let happening = |(at_ms, is_looked_at, what)| {
        let next = times.iter().copied().find(|t| *t > at_ms);
        let end = next.unwrap_or(scenario.duration_ms);
        let settling = Settling::new(LEAD_IN_MS + at_ms..LEAD_IN_MS + end);
        let happening = Happening {
            at_ms,
            what,
            window_ms: Some(end - at_ms).filter(|_| is_looked_at),
            settled_ms: None,
        };
        (happening, Some(settling).filter(|_| is_looked_at))
    };
    all.into_iter().map(happening).collect()
}

fn traffic_changes(scenario: &Scenario) -> Vec<u64> {
    let ends = scenario.traffic.iter().map(|flow| flow.until_ms);
    let begins = scenario.traffic.iter().map(|flow| flow.from_ms);
    let mut times: Vec<u64> = ends.chain(begins).collect();
    times.retain(|at_ms| *at_ms < scenario.duration_ms);
    times.sort_unstable();
    times.dedup();
    let changes = |at_ms: &u64| {
        (0..scenario.regions.len()).any(|region| {
            let (before, after) = rates_at(scenario, region, *at_ms);
            before != after
        })
    };
    times.retain(changes);
    times
}

/// Units a second asked in a region just before a moment, and from then on.
fn rates_at(scenario: &Scenario, region: usize, at_ms: u64) -> (f64, f64) {
    let flows = scenario.traffic.iter().filter(|flow| flow.region == region);
    flows.fold((0.0, 0.0), |(before, after), flow| {
        let rate = flow.per_second * flow.cost as f64;
        let was = at_ms > 0 && (flow.from_ms..flow.until_ms).contains(&(at_ms - 1));
        let is = (flow.from_ms..flow.until_ms).contains(&at_ms);
        let add = |sum: f64, applies| if applies { sum + rate } else { sum };
        (add(before, was), add(after, is))
    })
}

fn traffic_change(scenario: &Scenario, at_ms: u64) -> String {
    let show = |rate: f64| {
        let text = format!("{rate:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let of_region = |(i, region)| {
        let (before, after) = rates_at(scenario, i, at_ms);
        let (was, is) = (show(before), show(after));
        (before != after).then(|| match at_ms {
            0 => format!("{region} {is}/s"),
            _ => format!("{region} {was}/s to {is}/s"),
        })
    };
    let changes = scenario.regions.iter().enumerate().filter_map(of_region);
    format!("traffic: {}", changes.collect::<Vec<_>>().join(", "))
}
