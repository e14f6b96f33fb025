//! How a scenario's runs went, bin by bin: what the plot draws.

use crate::measure::{BEGINNING, Ground};
use crate::scenario::{LEAD_IN_MS, Scenario};
use crate::{Asked, Record};
use apportion_core::{Algorithm, Period, StoreMs};

/// Means over the runs, once they are taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    pub bin_ms: u64,
    pub duration_ms: u64,
    /// Units a second, by region and bin.
    pub admitted: Vec<Vec<f64>>,
    /// Of a perfect limiter for all.
    pub perfect: Vec<f64>,
    pub asked: Vec<f64>,
    /// By region and bin, as a part of the limit: what `lower` says.
    pub parts: Vec<Vec<f64>>,
    pub lower: Lower,
}

/// How the budget lies with the regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lower {
    /// The share in force.
    Shares,
    /// What has been used of the window.
    Used(Period),
}

const BIN_MS: u64 = 1_000;
const BINS_MAX: u64 = 400;

// === impl Timeline ===

impl Timeline {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let duration_ms = scenario.duration_ms;
        let bin_ms = duration_ms.div_ceil(BINS_MAX).div_ceil(BIN_MS) * BIN_MS;
        let bins = duration_ms.div_ceil(bin_ms) as usize;
        let by_region = vec![vec![0.0; bins]; scenario.regions.len()];
        let lower = match scenario.policy.algorithm {
            Algorithm::FixedWindow { period } => Lower::Used(period),
            _ => Lower::Shares,
        };
        Self {
            bin_ms,
            duration_ms,
            admitted: by_region.clone(),
            perfect: vec![0.0; bins],
            asked: vec![0.0; bins],
            parts: by_region,
            lower,
        }
    }

    pub fn bins(&self) -> usize {
        self.asked.len()
    }

    fn bin(&self, at_ms: u64) -> Option<usize> {
        let bin = at_ms.checked_sub(LEAD_IN_MS)? / self.bin_ms;
        usize::try_from(bin).ok().filter(|bin| *bin < self.bins())
    }

    pub(super) fn add(&mut self, record: &Record, perfect: &[bool], ground: &Ground) {
        for (a, possible) in record.asked.iter().zip(perfect) {
            let Some(bin) = self.bin(a.at_ms) else {
                continue;
            };
            // The last one may be shorter.
            let left_ms = self.duration_ms - bin as u64 * self.bin_ms;
            let rate = a.units as f64 * 1_000.0 / self.bin_ms.min(left_ms) as f64;
            self.asked[bin] += rate;
            self.perfect[bin] += if *possible { rate } else { 0.0 };
            self.admitted[a.region][bin] += if a.admitted { rate } else { 0.0 };
        }
        match self.lower {
            Lower::Shares => self.add_shares(record),
            Lower::Used(period) => self.add_used(&record.asked, period, ground.limits.limit),
        }
    }

    /// The mean of what was seen within a bin.
    fn add_shares(&mut self, record: &Record) {
        let mut seen = vec![0u32; self.bins()];
        for weighed in &record.weighed {
            if let Some(bin) = self.bin(weighed.at_ms) {
                seen[bin] += 1;
            }
        }
        for weighed in &record.weighed {
            let Some(bin) = self.bin(weighed.at_ms) else {
                continue;
            };
            for (part, ppb) in self.parts.iter_mut().zip(&weighed.shares_ppb) {
                part[bin] += *ppb as f64 / 1e9 / f64::from(seen[bin]);
            }
        }
    }

    /// What was used at the end of a bin, of the window that it is in then.
    fn add_used(&mut self, asked: &[Asked], period: Period, limit: u64) {
        let label = |at_ms| period.label(StoreMs(BEGINNING + at_ms));
        let mut used = vec![0u64; self.parts.len()];
        let mut current = label(LEAD_IN_MS);
        let mut asked = asked.iter().peekable();
        for bin in 0..self.bins() {
            let end_ms = LEAD_IN_MS + (bin as u64 + 1) * self.bin_ms;
            while let Some(a) = asked.next_if(|a| a.at_ms < end_ms) {
                if label(a.at_ms) != current {
                    current = label(a.at_ms);
                    used.fill(0);
                }
                used[a.region] += if a.admitted { a.units } else { 0 };
            }
            if label(end_ms - 1) != current {
                current = label(end_ms - 1);
                used.fill(0);
            }
            for (part, used) in self.parts.iter_mut().zip(&used) {
                part[bin] += *used as f64 / limit as f64;
            }
        }
    }

    pub(super) fn mean_of(mut self, runs: u64) -> Self {
        let by_region = self.admitted.iter_mut().chain(&mut self.parts);
        for value in by_region
            .chain([&mut self.perfect, &mut self.asked])
            .flatten()
        {
            *value /= runs.max(1) as f64;
        }
        self
    }
}
