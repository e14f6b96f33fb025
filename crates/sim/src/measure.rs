//! Figures of stated runs: how much of what a perfect limiter would have admitted was admitted, how soon shares follow
//! demand, how much they move while nothing changes.

use crate::perfect::{Other, Verdict, verdict};
use crate::{Asked, Record, Setup};
use apportion_core::{Algorithm, Limits, Policy, PolicySet, Region};
use std::ops::Range;

/// Simulated store clocks begin here.
pub const BEGINNING: u64 = 1_700_000_000_000;
/// Rates of admission are looked at over so long.
const SMOOTH_MS: u64 = 500;
const STAYS_MS: u64 = 5_000;
const BIN_MS: u64 = 50;

/// The policy that was stated, and what it comes to.
#[derive(Debug, Clone)]
pub struct Ground {
    pub algorithm: Algorithm,
    pub limits: Limits,
    /// Base shares, by region, as parts of one.
    pub parts: Vec<f64>,
}

impl Ground {
    /// # Panics
    /// Where nothing is stated, or the policy isn't among those of the setup.
    pub fn of(setup: &Setup) -> Self {
        let set = PolicySet::parse(&setup.policies, "simulated").expect("the policies are valid");
        let stated = setup.stated.as_ref().expect("something is stated");
        let policy = set.policy(&stated.policy).expect("the policy is there");
        let parts = set.regions[..setup.regions].iter();
        Self {
            algorithm: policy.algorithm,
            limits: policy.limits,
            parts: parts.map(|region| part(policy, region)).collect(),
        }
    }

    pub fn admits(&self, other: Other, asked: &[Asked]) -> Vec<bool> {
        other.admits(asked, self.algorithm, self.limits, &self.parts, BEGINNING)
    }

    pub fn verdict(&self, asked: &[Asked], admitted: &[bool], within: Range<u64>) -> Verdict {
        verdict(
            asked,
            admitted,
            self.algorithm,
            self.limits,
            BEGINNING,
            within,
        )
    }
}

fn part(policy: &Policy, region: &Region) -> f64 {
    policy.base_ppb(region) as f64 / 1e9
}

pub fn admitted(record: &Record) -> Vec<bool> {
    record.asked.iter().map(|a| a.admitted).collect()
}

/// Units refused that a perfect limiter, having admitted what was admitted so far, had room for; and units asked for.
pub fn false_refusals(ground: &Ground, record: &Record, within: Range<u64>) -> (u64, u64) {
    let mut perfect = crate::perfect::Perfect::new(ground.algorithm, ground.limits, 1.0);
    let (mut wrong, mut asked) = (0, 0);
    for a in &record.asked {
        let at = BEGINNING + a.at_ms;
        let had_room = perfect.left(at) >= a.units as f64;
        if a.admitted {
            perfect.debit(at, a.units as f64);
        }
        if within.contains(&a.at_ms) {
            asked += a.units;
            wrong += if !a.admitted && had_room { a.units } else { 0 };
        }
    }
    (wrong, asked)
}

/// By how much shares moved between two moments, as a part of the limit each minute: half of the sum of all changes, since
/// what one region gains another loses.
pub fn churn_per_minute(record: &Record, within: Range<u64>) -> f64 {
    let seen: Vec<_> = record
        .weighed
        .iter()
        .filter(|w| within.contains(&w.at_ms))
        .collect();
    let moved: u64 = seen
        .windows(2)
        .flat_map(|pair| pair[0].shares_ppb.iter().zip(&pair[1].shares_ppb))
        .map(|(a, b)| a.abs_diff(*b))
        .sum();
    let minutes = (within.end - within.start) as f64 / 60_000.0;
    moved as f64 / 2e9 / minutes
}

/// What runs admit together after some moment, against what a perfect limiter would.
#[derive(Debug, Clone)]
pub struct Settling {
    window: Range<u64>,
    ours: Vec<u64>,
    perfect: Vec<u64>,
}

impl Settling {
    /// Shorter windows tell nothing.
    pub const LEAST_MS: u64 = STAYS_MS;

    pub fn new(window: Range<u64>) -> Self {
        let bins = ((window.end - window.start) / BIN_MS) as usize;
        Self {
            window,
            ours: vec![0; bins],
            perfect: vec![0; bins],
        }
    }

    /// Adds a run; `possible`: which of what was asked a perfect limiter admits.
    pub fn add(&mut self, asked: &[Asked], possible: &[bool]) {
        for (a, possible) in asked.iter().zip(possible) {
            if !self.window.contains(&a.at_ms) {
                continue;
            }
            let bin = ((a.at_ms - self.window.start) / BIN_MS) as usize;
            let Some(sum) = self.ours.get_mut(bin) else {
                continue;
            };
            *sum += if a.admitted { a.units } else { 0 };
            self.perfect[bin] += if *possible { a.units } else { 0 };
        }
    }

    /// How long after the beginning of the window runs have come to `part` of what is possible: what they admit together
    /// in half a second is that part of what a perfect limiter would, and so is what they admit in the five seconds from
    /// then on. `None` where they never do.
    pub fn settled_ms(&self, part: f64) -> Option<u64> {
        let bins = self.ours.len();
        let is_enough = |from: usize, ms: u64| {
            let until = (from + (ms / BIN_MS) as usize).min(bins);
            let sum = |of: &[u64]| of[from..until].iter().sum::<u64>() as f64;
            sum(&self.ours) >= sum(&self.perfect) * part
        };
        let last = bins.checked_sub((STAYS_MS / BIN_MS) as usize)?;
        let settled = (0..=last).find(|&bin| is_enough(bin, SMOOTH_MS) && is_enough(bin, STAYS_MS));
        settled.map(|bin| bin as u64 * BIN_MS)
    }
}

/// [`Settling`] of runs that are all there.
pub fn settles_ms(runs: &[(Vec<Asked>, Vec<bool>)], window: Range<u64>, part: f64) -> Option<u64> {
    let mut settling = Settling::new(window);
    for (asked, possible) in runs {
        settling.add(asked, possible);
    }
    settling.settled_ms(part)
}
