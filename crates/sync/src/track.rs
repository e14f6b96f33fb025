//! What a node remembers of a key under trade: how much is asked of it, and what its peers asked. Estimates only:
//! a node that forgets them loses nothing but a moment.

use apportion_core::allotment::LoanAsk;
use apportion_core::demand::{self, Sample};
use apportion_core::{Limits, Region, StoreMs};
use std::collections::{BTreeMap, VecDeque};

/// Milliseconds on the node's own monotonic clock.
pub type Mono = u64;

/// Demand is measured over the time since it last changed, and over at most so long.
const MEASURED_MS: u64 = 20_000;
/// Samples closer than this are one.
const SAMPLE_GAP_MS: u64 = 100;
const SAMPLES_MAX: usize = 256;
/// A reading that is older than another by more than this is of a clock that has stepped back.
const STEP_MS: u64 = 5_000;
/// A refusal counts as present for so long.
const REFUSING_MS: u64 = 1_500;
/// The first asks of a key are at least so far apart; fruitless ones ever farther.
const ASK_GAP_MS: u64 = 100;
/// What a peer said of its demand is believed for so long.
const HEARD_MS: u64 = 10_000;

#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// Attempts counted by the store, with when that was read, since demand last changed.
    samples: VecDeque<Sample>,
    /// What the samples count beyond the store's present counter, which begins anew with each window.
    offset: u64,
    raw: u64,
    /// The store's clock at the last sample: readings may arrive out of order.
    read_at: StoreMs,
    refused_at: Option<Mono>,
    /// What a request was last seen to go by, where that depends on the request.
    pub(crate) limits: Option<Limits>,
    pub(crate) touched_at: Mono,
    ask_after: Mono,
    gap_ms: u64,
    /// Demands of peers, in parts per billion of the budget, and when they were told.
    heard: BTreeMap<Region, (u64, Mono)>,
    /// What each peer asked for last.
    asked: BTreeMap<Region, Open>,
    /// What each peer's last answer was, while asking goes on, and of which window.
    answers: BTreeMap<Region, Answered>,
    answers_of: Option<u64>,
}

/// A peer's ask of a share, open until it gets what it wants or asks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) ask: LoanAsk,
    pub(crate) refusing: bool,
    pub(crate) at: Mono,
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
    pub(crate) fn new(now: Mono) -> Self {
        Self {
            samples: VecDeque::new(),
            offset: 0,
            raw: 0,
            read_at: StoreMs(0),
            refused_at: None,
            limits: None,
            touched_at: now,
            ask_after: now,
            gap_ms: ASK_GAP_MS,
            heard: BTreeMap::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            answers_of: None,
        }
    }

    /// Notes the store's counter, as read at `read_at`. One that went back has begun anew.
    pub(crate) fn sample(&mut self, now: Mono, read_at: StoreMs, raw: u64) {
        let is_older = read_at < self.read_at || (read_at == self.read_at && raw < self.raw);
        if is_older && self.read_at.since(read_at) < STEP_MS {
            return;
        }
        self.read_at = read_at;
        if raw < self.raw {
            self.offset += self.raw;
        }
        self.raw = raw;
        let sample = Sample {
            at_ms: now,
            units: self.offset + raw,
        };
        if self.samples.back().is_none_or(|s| s.units != sample.units) {
            self.touched_at = now;
        }
        let before = self.samples.len().checked_sub(2);
        let before = before.and_then(|i| self.samples.get(i));
        let is_close = before.is_some_and(|s| s.at_ms + SAMPLE_GAP_MS > now);
        if is_close || self.samples.back().is_some_and(|s| s.at_ms == now) {
            self.samples.pop_back();
        }
        self.samples.push_back(sample);
        let changed = demand::changed_at(self.samples.make_contiguous());
        self.samples.drain(..changed.unwrap_or(0));
        let is_old = |samples: &VecDeque<Sample>| {
            samples.get(1).is_some_and(|s| s.at_ms + MEASURED_MS < now)
        };
        while self.samples.len() > SAMPLES_MAX || is_old(&self.samples) {
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

    /// Units asked for in each second, in micro-units. `None` before there are two samples far enough apart.
    pub(crate) fn measured(&self) -> Option<u64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let is_enough = first.at_ms + SAMPLE_GAP_MS <= last.at_ms;
        is_enough.then(|| demand::per_second(*first, *last))
    }

    /// What the store's counter said last.
    pub(crate) fn attempts(&self) -> u64 {
        self.raw
    }

    /// Whether it is time to ask again.
    pub(crate) fn may_ask(&self, now: Mono) -> bool {
        self.ask_after <= now
    }

    /// What was answered before asking ceased for `pause_ms`, or of another window, says nothing of now.
    pub(crate) fn forget_answers(&mut self, now: Mono, pause_ms: Mono, label: Option<u64>) {
        if self.answers_of != label || self.ask_after + pause_ms < now {
            self.answers.clear();
            self.answers_of = label;
            self.ask_soon(now);
        }
    }

    fn ask_soon(&mut self, now: Mono) {
        self.gap_ms = ASK_GAP_MS;
        self.ask_after = self.ask_after.min(now);
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

    /// Notes what a peer says of its demand, in parts per billion of the budget. Where it needs much less than it did, it
    /// is worth asking again.
    pub(crate) fn hear(&mut self, peer: &Region, demand_ppb: u64, now: Mono) {
        let before = self.heard.insert(peer.clone(), (demand_ppb, now));
        let much_less = |before: u64| demand_ppb < before / 4 * 3;
        if before.is_some_and(|(before, _)| much_less(before)) {
            self.ask_soon(now);
        }
    }

    /// What a peer said of its demand, unless that is too long ago.
    pub(crate) fn heard(&self, peer: &Region, now: Mono) -> Option<u64> {
        let (demand_ppb, at) = self.heard.get(peer)?;
        (at + HEARD_MS >= now).then_some(*demand_ppb)
    }

    pub(crate) fn note_ask(&mut self, ask: LoanAsk, refusing: bool, now: Mono) {
        let at = now;
        let region = ask.by.region.clone();
        self.asked.insert(region, Open { ask, refusing, at });
        self.touched_at = now;
    }

    /// A peer has what it wanted, or nothing more can be done about it.
    pub(crate) fn close_ask(&mut self, by: &Region) {
        self.asked.remove(by);
    }

    /// Asks within the last `ms` that nobody has answered to the full.
    pub(crate) fn open_asks(&self, now: Mono, ms: u64) -> impl Iterator<Item = &Open> {
        self.asked.values().filter(move |open| open.at + ms >= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_core::schedule::MICRO;

    #[test]
    fn demand_is_what_it_is_since_it_changed() {
        let mut track = Track::new(0);
        assert_eq!(track.measured(), None);
        for i in 0..=8u64 {
            track.sample(i * 250, StoreMs(i * 250), i * 25);
        }
        assert_eq!(track.measured(), Some(100 * MICRO));
        track.sample(2_500, StoreMs(2_500), 200);
        assert_eq!(track.measured(), Some(0));
    }

    #[test]
    fn readings_that_arrive_out_of_order_are_no_new_beginning() {
        let mut track = Track::new(0);
        for i in 0..=8u64 {
            track.sample(i * 250, StoreMs(10_000 + i * 250), 1_000 + i * 25);
        }
        track.sample(2_001, StoreMs(11_990), 1_190);
        track.sample(2_002, StoreMs(12_000), 1_199);
        assert_eq!(track.measured(), Some(100 * MICRO));
    }

    #[test]
    fn many_readings_are_as_good_as_few() {
        let mut track = Track::new(0);
        for ms in 0..=4_000u64 {
            track.sample(ms, StoreMs(ms), ms / 10);
        }
        assert_eq!(track.measured(), Some(100 * MICRO));
        assert!(track.samples.len() <= 82, "{}", track.samples.len());
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let mut track = Track::new(0);
        for i in 0..=8u64 {
            track.sample(i * 250, StoreMs(i * 250), (i * 30) % 100);
        }
        assert!(
            track
                .measured()
                .is_some_and(|per_second| per_second > 80 * MICRO)
        );
    }

    #[test]
    fn fruitless_asks_are_ever_farther_apart() {
        let peers = [Region::new("a")];
        let mut track = Track::new(0);
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

    /// Up to the longest gap.
    fn asked_in_vain(label: Option<u64>) -> Track {
        let mut track = Track::new(0);
        track.forget_answers(0, 4_000, label);
        for i in 1..=6u64 {
            track.asking(i * 2_000, 2_000);
            track.answered(&Region::new("a"), Answered::UsedUp, i * 2_000 + 150);
        }
        assert!(!track.may_ask(13_900) && track.is_used_up(&[Region::new("a")]));
        track
    }

    #[test]
    fn whoever_asks_again_after_a_while_asks_quickly() {
        let mut track = asked_in_vain(None);
        track.forget_answers(15_000, 4_000, None);
        assert!(track.is_used_up(&[Region::new("a")]), "it goes on asking");
        track.forget_answers(30_000, 4_000, None);
        assert!(!track.is_used_up(&[Region::new("a")]));
        track.asking(30_000, 2_000);
        assert!(track.may_ask(30_100));
    }

    #[test]
    fn what_was_answered_of_another_window_says_nothing_of_this_one() {
        let mut track = asked_in_vain(Some(7));
        track.forget_answers(12_200, 4_000, Some(7));
        assert!(!track.may_ask(12_200));
        track.forget_answers(12_200, 4_000, Some(8));
        assert!(track.may_ask(12_200) && !track.is_used_up(&[Region::new("a")]));
    }

    #[test]
    fn a_peer_that_needs_much_less_is_asked_at_once() {
        let mut track = asked_in_vain(None);
        track.hear(&Region::new("a"), 1_000, 12_200);
        track.hear(&Region::new("a"), 900, 12_250);
        assert!(!track.may_ask(12_250));
        track.hear(&Region::new("a"), 600, 12_300);
        assert!(track.may_ask(12_300));
    }
}
