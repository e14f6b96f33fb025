//! The limiters that regions are measured against: one perfect limiter for all, and what else people build. Written apart
//! from the product's own meters, so that one checks the other.

use crate::Asked;
use apportion_core::{Algorithm, Limits, Period, StoreMs};
use std::collections::VecDeque;

/// One exact limiter that hears of everything at once. It may be one region's, with a part of the budget.
#[derive(Debug, Clone)]
pub struct Perfect {
    rule: Rule,
    limit: f64,
}

#[derive(Debug, Clone)]
enum Rule {
    Window {
        period: Period,
        used: (u64, f64),
    },
    /// Moments and units of the last period; of cells, the moment is that of the cell.
    Log {
        per_ms: u64,
        cell_ms: u64,
        entries: VecDeque<(u64, f64)>,
    },
    Classic {
        per_ms: u64,
        cells: VecDeque<(u64, f64)>,
    },
    Bucket {
        per_ms: u64,
        burst: f64,
        tokens: f64,
        at_ms: u64,
    },
}

/// Below this a double is only rounding.
const HAIR: f64 = 1e-6;

impl Perfect {
    /// With `part` of the budget.
    ///
    /// # Panics
    /// For concurrency, which isn't shared.
    pub fn new(algorithm: Algorithm, limits: Limits, part: f64) -> Self {
        let rule = match algorithm {
            Algorithm::FixedWindow { period } => Rule::Window {
                period,
                used: (0, 0.0),
            },
            Algorithm::SlidingLog { per_ms } => Rule::Log {
                per_ms,
                cell_ms: 1,
                entries: VecDeque::new(),
            },
            Algorithm::SlidingWindow { per_ms, buckets: 1 } => Rule::Classic {
                per_ms,
                cells: VecDeque::new(),
            },
            Algorithm::SlidingWindow { per_ms, buckets } => Rule::Log {
                per_ms,
                cell_ms: per_ms / u64::from(buckets),
                entries: VecDeque::new(),
            },
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => Rule::Bucket {
                per_ms,
                burst: limits.burst as f64 * part,
                tokens: limits.burst as f64 * part,
                at_ms: 0,
            },
            Algorithm::Concurrency { .. } => panic!("slots aren't shared"),
        };
        Self {
            rule,
            limit: limits.limit as f64 * part,
        }
    }

    /// Decides a request at a moment; moments don't go back.
    pub fn admit(&mut self, at_ms: u64, units: u64) -> bool {
        let units = units as f64;
        let left = self.left(at_ms);
        let admits = units <= left + HAIR;
        if admits {
            self.debit(at_ms, units);
        }
        admits
    }

    /// What could be admitted at a moment.
    pub fn left(&mut self, at: u64) -> f64 {
        let limit = self.limit;
        match &mut self.rule {
            Rule::Window { period, used } => {
                let label = period.label(StoreMs(at));
                if label != used.0 {
                    *used = (label, 0.0);
                }
                limit - used.1
            }
            Rule::Log {
                per_ms,
                cell_ms,
                entries,
            } => {
                // A cell counts until all of it is out of the window.
                while entries
                    .front()
                    .is_some_and(|(of, _)| of + *cell_ms - 1 + *per_ms <= at)
                {
                    entries.pop_front();
                }
                limit - entries.iter().map(|(_, units)| units).sum::<f64>()
            }
            Rule::Classic { per_ms, cells } => {
                let (label, elapsed) = (at / *per_ms, at % *per_ms);
                while cells.front().is_some_and(|(of, _)| of + 1 < label) {
                    cells.pop_front();
                }
                let rest = (*per_ms - elapsed) as f64 / *per_ms as f64;
                let counted = cells.iter().map(
                    |(of, units)| {
                        if *of == label { *units } else { units * rest }
                    },
                );
                limit - counted.sum::<f64>()
            }
            Rule::Bucket {
                per_ms,
                burst,
                tokens,
                at_ms,
            } => {
                let gained = limit * at.saturating_sub(*at_ms) as f64 / *per_ms as f64;
                *tokens = (*tokens + gained).min(*burst);
                *at_ms = (*at_ms).max(at);
                *tokens
            }
        }
    }

    /// Counts what was admitted, here or elsewhere; may go beyond the limit.
    pub fn debit(&mut self, at: u64, units: f64) {
        self.left(at);
        match &mut self.rule {
            Rule::Window { used, .. } => used.1 += units,
            Rule::Log {
                cell_ms, entries, ..
            } => entries.push_back((at - at % *cell_ms, units)),
            Rule::Classic { per_ms, cells } => match cells.back_mut() {
                Some((of, sum)) if *of == at / *per_ms => *sum += units,
                _ => cells.push_back((at / *per_ms, units)),
            },
            Rule::Bucket { tokens, .. } => *tokens -= units,
        }
    }
}

/// What some way to limit makes of the requests of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Verdict {
    pub asked: u64,
    pub admitted: u64,
    /// Of what was admitted, what a perfect limiter would have had to refuse.
    pub over: u64,
}

/// How regions limit that aren't Apportion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Other {
    /// One store for all regions.
    Central,
    /// Each region has its part for ever.
    Static,
    /// Each region admits as long as what it knows of all usage allows it, and tells its own every so often.
    Gossip { interval_ms: u64, delay_ms: u64 },
}

impl Other {
    /// Which of `asked` are admitted. `parts`: each region's part of the budget; moments are counted from `start`.
    pub fn admits(
        self,
        asked: &[Asked],
        algorithm: Algorithm,
        limits: Limits,
        parts: &[f64],
        start: u64,
    ) -> Vec<bool> {
        let whole = || Perfect::new(algorithm, limits, 1.0);
        match self {
            Self::Central => {
                let mut one = whole();
                let admit = |a: &Asked| one.admit(start + a.at_ms, a.units);
                asked.iter().map(admit).collect()
            }
            Self::Static => {
                let each = parts
                    .iter()
                    .map(|part| Perfect::new(algorithm, limits, *part));
                let mut each: Vec<Perfect> = each.collect();
                let admit = |a: &Asked| each[a.region].admit(start + a.at_ms, a.units);
                asked.iter().map(admit).collect()
            }
            Self::Gossip {
                interval_ms,
                delay_ms,
            } => {
                let mut each: Vec<Perfect> = parts.iter().map(|_| whole()).collect();
                let mut untold = vec![0u64; parts.len()];
                let mut on_the_way: VecDeque<(u64, usize, u64)> = VecDeque::new();
                let mut next_round = interval_ms;
                let mut admitted = Vec::with_capacity(asked.len());
                for a in asked {
                    while next_round <= a.at_ms {
                        for (region, units) in untold.iter_mut().enumerate() {
                            let told = (next_round + delay_ms, region, std::mem::take(units));
                            on_the_way.push_back(told);
                        }
                        next_round += interval_ms;
                    }
                    while let Some((at, from, units)) =
                        on_the_way.pop_front_if(|(at, _, _)| *at <= a.at_ms)
                    {
                        let others = each.iter_mut().enumerate().filter(|(i, _)| *i != from);
                        others.for_each(|(_, limiter)| limiter.debit(start + at, units as f64));
                    }
                    let admits = each[a.region].admit(start + a.at_ms, a.units);
                    if admits {
                        untold[a.region] += a.units;
                    }
                    admitted.push(admits);
                }
                admitted
            }
        }
    }
}

/// Sums up what was admitted between two moments, and what of it a perfect limiter that had admitted all that before
/// would have had to refuse.
pub fn verdict(
    asked: &[Asked],
    admitted: &[bool],
    algorithm: Algorithm,
    limits: Limits,
    start: u64,
    within: std::ops::Range<u64>,
) -> Verdict {
    let mut perfect = Perfect::new(algorithm, limits, 1.0);
    let mut verdict = Verdict::default();
    for (a, admitted) in asked.iter().zip(admitted) {
        let fits = !admitted || perfect.admit(start + a.at_ms, a.units);
        if !within.contains(&a.at_ms) {
            continue;
        }
        verdict.asked += a.units;
        if *admitted {
            verdict.admitted += a.units;
            verdict.over += if fits { 0 } else { a.units };
        }
    }
    verdict
}
