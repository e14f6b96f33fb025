//! A planned restart of a store: how a life goes on under another fingerprint.
//!
//! A region that closes first draws a nonce and tells it to every peer; then it stops all decisions, and only then
//! writes that it is closed. So a copy of the store that says *closed* has everything that was ever decided in this
//! life. A store that comes back with such a copy asks its peers to strike the nonce off, each for one fingerprint and
//! once. Where all had it and struck it off for this one, nobody else can go on from that copy, and the life goes on.
//!
//! Everything that is told is absolute, and said until the answer shows that it is on record: loss, delay, doubling and
//! reordering do no harm, and each step can be interrupted and taken again.

use super::RegionState;
use crate::ids::{Life, Region, StoreMs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// For how long peers are told before a closing that not all of them have confirmed is given up.
pub const TELL_MS: u64 = 5_000;

/// Names one closing of one life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Nonce {
    /// Counts the closings of a life, so that what is late is known to be.
    pub number: u32,
    pub random: u64,
}

/// A region's own closing, the last one of its life.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Closing {
    pub nonce: Nonce,
    pub stage: Stage,
    /// What each peer was last heard to have on record of it.
    pub answers: BTreeMap<Region, Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stage {
    /// The region decides as ever; peers are told the nonce, until this moment.
    Telling { until: StoreMs },
    /// No node may decide any more, but not all partitions know it yet.
    Stopping,
    /// Nothing is decided from here on: the last word of a store before it is stopped.
    Closed,
    /// Peers are asked to strike the nonce off for the store with this mark.
    Opening { by: u64 },
    /// Over, one way or the other. Peers that still have the nonce are told to strike it off.
    Open { by: u64 },
}

/// What a peer says that it has on record of a closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    Told,
    /// `told`: it had been told the nonce before.
    StruckOff {
        by: u64,
        told: bool,
    },
    /// It knows more of this region than the store that asks: the life went on, or ended, elsewhere.
    Outdated,
}

/// A region's word on its own closing, in every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    pub nonce: Nonce,
    /// `None`: remember it. Otherwise: strike it off, for the store with this mark.
    pub strike_by: Option<u64>,
}

/// What a region keeps of a peer's last closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kept {
    pub life: Life,
    pub nonce: Nonce,
    /// It was told before it was struck off.
    pub told: bool,
    pub struck_by: Option<u64>,
}

/// What becomes of a store that asked to have its nonce struck off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    GoesOn,
    Lost,
}

/// A store's fingerprint as peers keep it.
pub fn mark_of(fingerprint: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(fingerprint.as_bytes())
}

// === impl Closing ===

impl Closing {
    pub fn word(&self) -> Option<Word> {
        let strike_by = match self.stage {
            Stage::Telling { .. } => None,
            Stage::Opening { by } | Stage::Open { by } => Some(by),
            Stage::Stopping | Stage::Closed => return None,
        };
        Some(Word {
            nonce: self.nonce,
            strike_by,
        })
    }

    /// Peers that haven't confirmed yet what they are told.
    pub fn unconfirmed(&self, peers: &[Region]) -> Vec<Region> {
        let confirmed = |peer: &&Region| match (self.stage, self.answers.get(peer)) {
            (Stage::Telling { .. }, answer) => answer == Some(&Answer::Told),
            (Stage::Opening { .. }, answer) => matches!(answer, Some(Answer::StruckOff { .. })),
            (Stage::Stopping | Stage::Closed | Stage::Open { .. }, _) => true,
        };
        peers.iter().filter(|p| !confirmed(p)).cloned().collect()
    }

    /// `same`: the store never stopped. Then one peer that struck it off is enough: no copy can have all of them.
    fn verdict(&self, by: u64, same: bool, peers: &[Region]) -> Verdict {
        let answers: Vec<Option<Answer>> = peers
            .iter()
            .map(|peer| self.answers.get(peer).copied())
            .collect();
        let elsewhere = |answer: &Option<Answer>| match answer {
            Some(Answer::Outdated) => true,
            Some(Answer::StruckOff { by: other, told }) => *other != by || !(same || *told),
            Some(Answer::Told) | None => false,
        };
        let struck = |answer: &Option<Answer>| matches!(answer, Some(Answer::StruckOff { .. }));
        if answers.iter().any(elsewhere) {
            return Verdict::Lost;
        }
        let goes_on = match same {
            true => answers.iter().any(struck),
            false => answers.iter().all(struck),
        };
        match goes_on && !peers.is_empty() {
            true => Verdict::GoesOn,
            false => Verdict::Wait,
        }
    }
}

// === impl RegionState ===

impl RegionState {
    /// Whether decisions are stopped: nodes have nothing to go by.
    pub fn is_shut(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| {
            matches!(
                closing.stage,
                Stage::Stopping | Stage::Closed | Stage::Opening { .. }
            )
        })
    }

    pub(super) fn stage(&self) -> Option<Stage> {
        self.closing.as_ref().map(|closing| closing.stage)
    }

    /// Whether a copy of this state says that nothing was decided after it.
    pub fn is_sealed(&self) -> bool {
        matches!(self.stage(), Some(Stage::Closed | Stage::Opening { .. }))
    }

    /// Peers that have closed, or are about to, as far as is known here. Two regions aren't closed at once: each needs
    /// the other to strike off its nonce.
    pub fn closing_peers(&self, peers: &[Region]) -> Vec<Region> {
        let closes = |peer: &&Region| {
            let kept = self.kept.get(peer);
            kept.is_some_and(|k| k.struck_by.is_none() && self.present.get(peer) == Some(&k.life))
        };
        peers.iter().filter(closes).cloned().collect()
    }

    /// Begins to close, unless that is under way or done.
    #[must_use]
    pub fn begin_closing(mut self, random: u64, now: StoreMs) -> Self {
        let number = match &self.closing {
            None => 1,
            Some(closing) => match closing.stage {
                Stage::Open { .. } => closing.nonce.number + 1,
                _ => return self,
            },
        };
        self.closing = Some(Closing {
            nonce: Nonce { number, random },
            stage: Stage::Telling {
                until: now.plus(TELL_MS),
            },
            answers: BTreeMap::new(),
        });
        self
    }

    /// Begins to open what is closed, on the store that says `fingerprint` of itself; gives up a closing that has not
    /// got as far.
    #[must_use]
    pub fn begin_opening(mut self, fingerprint: &str) -> Self {
        let by = mark_of(fingerprint);
        if let Some(closing) = &mut self.closing {
            closing.stage = match closing.stage {
                Stage::Telling { .. } => Stage::Open { by },
                Stage::Closed => Stage::Opening { by },
                other => other,
            };
        }
        self
    }

    /// Every partition knows that decisions are stopped.
    #[must_use]
    pub fn closed(mut self) -> Self {
        if let Some(closing) = &mut self.closing
            && closing.stage == Stage::Stopping
        {
            closing.stage = Stage::Closed;
            closing.answers.clear();
        }
        self
    }

    /// The next step of a closing on the store that says `fingerprint` of itself; `None` where this copy's life can't
    /// go on, and counts as lost.
    #[must_use]
    pub fn advance_closing(
        mut self,
        fingerprint: &str,
        now: StoreMs,
        peers: &[Region],
    ) -> Option<Self> {
        let by = mark_of(fingerprint);
        let blocked = !self.closing_peers(peers).is_empty();
        let Some(closing) = &mut self.closing else {
            return Some(self);
        };
        match closing.stage {
            Stage::Telling { until } => {
                let in_time = now <= until && until <= now.plus(TELL_MS);
                if !in_time {
                    closing.stage = Stage::Open { by };
                } else if closing.unconfirmed(peers).is_empty() && !blocked {
                    closing.stage = Stage::Stopping;
                    return Some(self.next_epoch(now));
                }
            }
            Stage::Closed if self.fingerprint != fingerprint => {
                closing.stage = Stage::Opening { by };
            }
            Stage::Opening { .. } => {
                closing.stage = Stage::Opening { by };
                match closing.verdict(by, self.fingerprint == fingerprint, peers) {
                    Verdict::Wait => {}
                    Verdict::Lost => return None,
                    Verdict::GoesOn => {
                        closing.stage = Stage::Open { by };
                        self.fingerprint = fingerprint.into();
                        return Some(self.next_epoch(now));
                    }
                }
            }
            Stage::Stopping | Stage::Closed | Stage::Open { .. } => {}
        }
        Some(self)
    }

    /// Takes in `from`'s word on its own closing. A region that is shut doesn't: what it notes then may not be in the
    /// copy that it comes back with.
    pub(super) fn take_word(
        &mut self,
        from: &Region,
        life: Life,
        word: Option<Word>,
        knows_us: bool,
    ) {
        if self.is_shut() {
            return;
        }
        if self.kept.get(from).is_some_and(|kept| kept.life != life) {
            self.kept.remove(from);
        }
        let Some(Word { nonce, strike_by }) = word else {
            return;
        };
        let before = self.kept.get(from).copied();
        if before.is_some_and(|kept| kept.nonce.number > nonce.number) {
            return;
        }
        let before = before.filter(|kept| kept.nonce.number == nonce.number);
        let kept = match (strike_by, before) {
            (None, Some(before)) => before,
            // Said to this life of this region: a word that was meant for an earlier one may be long out of date.
            (None, None) if knows_us => Kept {
                life,
                nonce,
                told: true,
                struck_by: None,
            },
            (None, None) => return,
            (Some(by), before) => Kept {
                life,
                nonce,
                told: before.is_some_and(|kept| kept.told && kept.nonce == nonce),
                struck_by: before.and_then(|kept| kept.struck_by).or(Some(by)),
            },
        };
        self.kept.insert(from.clone(), kept);
    }

    /// Takes in what `from` has on record of our closing.
    pub(super) fn take_answer(&mut self, from: &Region, kept: Option<Kept>, knows_more: bool) {
        let life = self.life;
        let Some(closing) = &mut self.closing else {
            return;
        };
        if !matches!(closing.stage, Stage::Telling { .. } | Stage::Opening { .. }) {
            return;
        }
        let kept = kept.filter(|kept| kept.life == life);
        let newer = kept.is_some_and(|kept| kept.nonce.number > closing.nonce.number);
        let opens = matches!(closing.stage, Stage::Opening { .. });
        if opens && (knows_more || newer) {
            closing.answers.insert(from.clone(), Answer::Outdated);
            return;
        }
        if let Some(kept) = kept.filter(|kept| kept.nonce == closing.nonce) {
            let answer = match kept.struck_by {
                None => Answer::Told,
                Some(by) => Answer::StruckOff {
                    by,
                    told: kept.told,
                },
            };
            closing.answers.insert(from.clone(), answer);
        }
    }
}

#[cfg(test)]
mod tests;
