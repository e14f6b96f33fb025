//! What a node remembers of a key under trade: how much is asked of it, and what its peers asked. Estimates only:
//! a node that forgets them loses nothing but a moment.

use apportion_core::demand::Demand;
use apportion_core::schedule::MICRO;
use apportion_core::{Limits, Region};
use std::collections::{BTreeMap, VecDeque};

/// Milliseconds on the node's own monotonic clock.
pub type Mono = u64;

const SAMPLES_MAX: usize = 64;
/// Demand of the last moments is measured over at least so long.
const FAST_MS: u64 = 450;
/// A refusal counts as present for so long.
const REFUSING_MS: u64 = 1_500;
/// The first asks of a key are at least so far apart; fruitless ones ever farther.
const ASK_GAP_MS: u64 = 100;

#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// Attempts counted by the store, with when that was read.
    samples: VecDeque<(Mono, u64)>,
    /// What the samples count beyond the store's present counter, which begins anew with each window.
    offset: u64,
    raw: u64,
    slow_ms: u64,
    refused_at: Option<Mono>,
    /// What a request was last seen to go by, where that depends on the request.
    pub(crate) limits: Option<Limits>,
    pub(crate) touched_at: Mono,
    ask_after: Mono,
    gap_ms: u64,
    /// What each peer wanted when it last asked.
    asked: BTreeMap<Region, (u64, Mono)>,
    /// What each peer's last answer was.
    answers: BTreeMap<Region, Answered>,
}

/// A peer's answer to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Brought,
    /// Nothing to spare.
    Nothing,
    /// Nothing left at all.
    UsedUp,
}

impl Track {
    /// `slow_ms`: the time in which the budget admits several requests.
    pub(crate) fn new(now: Mono, slow_ms: u64) -> Self {
        Self {
            samples: VecDeque::new(),
            offset: 0,
            raw: 0,
            slow_ms,
            refused_at: None,
            limits: None,
            touched_at: now,
            ask_after: now,
            gap_ms: ASK_GAP_MS,
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Notes the store's counter. One that went back has begun anew.
    pub(crate) fn sample(&mut self, now: Mono, raw: u64) {
        if raw < self.raw {
            self.offset += self.raw;
        }
        self.raw = raw;
        let attempts = self.offset + raw;
        if self.samples.back().is_some_and(|(at, _)| *at == now) {
            self.samples.pop_back();
        }
        if self
            .samples
            .back()
            .is_none_or(|(_, last)| *last != attempts)
        {
            self.touched_at = now;
        }
        self.samples.push_back((now, attempts));
        let old = |samples: &VecDeque<(Mono, u64)>, ms: u64| {
            samples.get(1).is_some_and(|(at, _)| at + ms < now)
        };
        while self.samples.len() > SAMPLES_MAX || old(&self.samples, self.slow_ms) {
            self.samples.pop_front();
        }
    }

    pub(crate) fn refused(&mut self, now: Mono) {
        self.refused_at = Some(now);
        self.touched_at = now;
    }

    pub(crate) fn is_refusing(&self, now: Mono) -> bool {
        self.refused_at.is_some_and(|at| at + REFUSING_MS >= now)
    }

    /// `None` before there are two samples far enough apart.
    pub(crate) fn demand(&self) -> Option<Demand> {
        let (last_at, last) = *self.samples.back()?;
        let rate = |from: &(Mono, u64)| {
            let units = u128::from(last - from.1) * u128::from(MICRO) * 1_000;
            u64::try_from(units / u128::from((last_at - from.0).max(1))).unwrap_or(u64::MAX)
        };
        let fast = self
            .samples
            .iter()
            .rev()
            .find(|(at, _)| at + FAST_MS <= last_at)?;
        let slow = self.samples.front()?;
        Some(Demand {
            fast: rate(fast),
            slow: rate(slow),
        })
    }

    /// What the store's counter said last.
    pub(crate) fn attempts(&self) -> u64 {
        self.raw
    }

    /// Whether it is time to ask again.
    pub(crate) fn may_ask(&self, now: Mono) -> bool {
        self.ask_after <= now
    }

    /// Notes an ask; the next may follow after a gap that grows up to `interval_ms` while asking brings nothing.
    pub(crate) fn asking(&mut self, now: Mono, interval_ms: u64) {
        let fruitless =
            !self.answers.is_empty() && !self.answers.values().any(|a| *a == Answered::Brought);
        self.gap_ms = if fruitless {
            (self.gap_ms * 2).min(interval_ms)
        } else {
            ASK_GAP_MS
        };
        self.ask_after = now + self.gap_ms;
        // What was brought was brought for the ask before; a peer that falls silent now brings nothing.
        self.answers.retain(|_, a| *a != Answered::Brought);
    }

    pub(crate) fn answered(&mut self, by: &Region, answer: Answered, now: Mono) {
        self.answers.insert(by.clone(), answer);
        if answer == Answered::Brought {
            self.gap_ms = ASK_GAP_MS;
            self.ask_after = self.ask_after.min(now + ASK_GAP_MS);
        }
    }

    /// Every one of `peers` has answered, and none of them brought anything.
    pub(crate) fn is_dry(&self, peers: &[Region]) -> bool {
        peers.iter().all(|peer| {
            self.answers
                .get(peer)
                .is_some_and(|a| *a != Answered::Brought)
        })
    }

    /// Every one of `peers` has said that it has nothing left.
    pub(crate) fn is_used_up(&self, peers: &[Region]) -> bool {
        peers
            .iter()
            .all(|peer| self.answers.get(peer) == Some(&Answered::UsedUp))
    }

    pub(crate) fn note_ask(&mut self, by: &Region, want: u64, now: Mono) {
        self.asked.insert(by.clone(), (want, now));
        self.touched_at = now;
    }

    /// What peers wanted within the last `ms`.
    pub(crate) fn wants(&self, now: Mono, ms: u64) -> impl Iterator<Item = (&Region, u64)> {
        self.asked
            .iter()
            .filter(move |(_, (_, at))| at + ms >= now)
            .map(|(region, (want, _))| (region, *want))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_attempts_over_time_fast_and_slow() {
        let mut track = Track::new(0, 2_000);
        assert_eq!(track.demand(), None);
        for i in 0..=8u64 {
            track.sample(i * 250, i * 5);
        }
        assert_eq!(
            track.demand(),
            Some(Demand {
                fast: 20 * MICRO,
                slow: 20 * MICRO
            })
        );
        for i in 9..=12u64 {
            track.sample(i * 250, 40);
        }
        let demand = track.demand().expect("there are samples");
        assert_eq!(demand.fast, 0, "it fell silent");
        assert!(demand.slow > 0, "but not for long");
    }

    #[test]
    fn fruitless_asks_are_ever_farther_apart() {
        let peers = [Region::new("a")];
        let mut track = Track::new(0, 2_000);
        track.asking(0, 2_000);
        assert!(!track.may_ask(50) && track.may_ask(100));
        track.answered(&peers[0], Answered::Nothing, 100);
        assert!(track.is_dry(&peers));
        track.asking(100, 2_000);
        assert!(!track.may_ask(250) && track.may_ask(300));
        track.answered(&peers[0], Answered::Brought, 300);
        assert!(!track.is_dry(&peers));
        track.asking(300, 2_000);
        assert!(track.may_ask(400));
    }
}
