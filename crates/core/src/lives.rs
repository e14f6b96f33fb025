//! Lives: what a region knows of its store's history, and what it may do in a life that others may have lost.
//!
//! One value a region, kept in its store as opaque bytes and swapped by compare-and-set. An empty store may be new or
//! lost; its peers know. Until they have said so a life is *asking*. It is the *first* if every peer names the same
//! present lives and nobody knows another life of the region; otherwise it is a *later* one, and behaves as after a loss.

mod closing;

pub use closing::{Answer, Closing, Kept, Nonce, Stage, TELL_MS, Word, mark_of};

use crate::allotment::{LentAll, Timing};
use crate::fence::{Fence, Missing, SKEW_MS, Span};
use crate::ids::{Actor, Epoch, Life, Record, Region, StoreMs};
use crate::planted::{self, Bug};
use crate::rollout::{Rollout, Told, ToldRetired};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const FORM: u8 = 2;
/// Lives of one region that are remembered. A store that was lost so often has other troubles.
const LIVES_MAX: usize = 256;

/// What a life may be taken for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// Nobody has said yet whether this life is the first. What each peer answered so far.
    Asking(BTreeMap<Region, Heard>),
    /// Nothing was lost: full base, full buckets.
    First,
    /// Another life came before.
    Later,
}

/// The present lives that a region has heard of, its own not included.
pub type Heard = BTreeMap<Region, Life>;

/// What a region keeps of its own and its peers' lives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionState {
    pub region: Region,
    pub life: Life,
    /// What the store said of itself when the life began: a store that says otherwise is in another life.
    pub fingerprint: String,
    pub began_at: StoreMs,
    pub standing: Standing,
    pub epoch: Epoch,
    pub epoch_began: StoreMs,
    /// The newest moment of store time that a node has checked against its own clock.
    pub anchor: StoreMs,
    /// When a node last went on from the anchor of another that was gone.
    pub taken_over_at: StoreMs,
    /// The newest revision of the policies that a node brought.
    pub revision: u64,
    /// The latest moment that was ever an anchor: windows that ended before it are closed.
    pub high_water: StoreMs,
    /// Each peer's present life, as last heard.
    pub present: Heard,
    /// When each peer's present life began, on that peer's clock.
    pub began: BTreeMap<Region, StoreMs>,
    /// Every life that was ever heard of, by region, this one's own included.
    pub known: BTreeMap<Region, BTreeSet<Life>>,
    /// Lives that their own region says are over: what still arrives from them is ignored.
    pub ended: BTreeMap<Region, BTreeSet<Life>>,
    /// By name@version, the digest of what a version of the policy can't change: as it was when the store first saw it.
    pub policies: BTreeMap<String, u64>,
    /// For how long another process may take itself for this store after a fail-over; 0: it has no replicas.
    pub overlap_ms: u64,
    /// Until then the process that this one took over from may still decide, so this one doesn't.
    pub silent_until: StoreMs,
    /// The last closing of this life.
    pub closing: Option<Closing>,
    /// What is kept of each peer's last closing.
    pub kept: BTreeMap<Region, Kept>,
    /// Written after all else, so that a state from before roll-outs can be read.
    #[serde(skip)]
    pub rollout: Rollout,
}

/// What every message says of its sender's lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifeTable {
    pub sender: Actor,
    pub epoch: Epoch,
    /// When the sender's life began, on its own clock.
    pub began_at: StoreMs,
    pub present: Heard,
    pub known: BTreeMap<Region, BTreeSet<Life>>,
    /// The sender's own lives that are over.
    pub ended: BTreeSet<Life>,
    /// On the sender's own closing.
    pub word: Option<Word>,
    /// What the sender keeps of others' closings.
    pub kept: BTreeMap<Region, Kept>,
    pub rollout: Told,
}

/// How an empty store is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnEmpty {
    Ask,
    Lost,
    New,
    /// New before this moment of the store's clock; later, ask.
    NewUntil(StoreMs),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a region's state of form {0:?} can't be read by this version")]
pub struct UnknownForm(Option<u8>);

impl RegionState {
    /// A store without a state: new, or lost.
    pub fn on_empty(
        region: &Region,
        life: Life,
        fingerprint: &str,
        now: StoreMs,
        how: OnEmpty,
        peers: &[Region],
    ) -> Self {
        let standing = match how {
            OnEmpty::New => Standing::First,
            OnEmpty::Lost => Standing::Later,
            OnEmpty::Ask if peers.is_empty() => Standing::First,
            OnEmpty::NewUntil(moment) if now < moment => Standing::First,
            OnEmpty::Ask | OnEmpty::NewUntil(_) => Standing::Asking(BTreeMap::new()),
        };
        Self {
            region: region.clone(),
            life,
            fingerprint: fingerprint.into(),
            began_at: now,
            epoch: Epoch(1),
            epoch_began: now,
            anchor: now,
            taken_over_at: StoreMs(0),
            revision: 0,
            high_water: now,
            present: Heard::new(),
            began: BTreeMap::new(),
            known: BTreeMap::from([(region.clone(), BTreeSet::from([life]))]),
            ended: BTreeMap::new(),
            policies: BTreeMap::new(),
            overlap_ms: 0,
            silent_until: StoreMs(0),
            closing: None,
            kept: BTreeMap::new(),
            // A store that is declared new has nothing to ask for.
            rollout: Rollout::new(standing != Standing::First),
            standing,
        }
    }

    /// The store has a state, but isn't the one that it was written by: restarted, or another machine. Whatever it
    /// forgot can't be known.
    #[must_use]
    pub fn reborn(mut self, life: Life, fingerprint: &str, now: StoreMs) -> Self {
        self.ended
            .entry(self.region.clone())
            .or_default()
            .insert(self.life);
        // A life that nobody has on record has admitted nothing, and nobody will have its successor on record either
        // before that has asked.
        let is_traceless = !self.may_admit();
        let own = self.known.entry(self.region.clone()).or_default();
        if is_traceless {
            own.clear();
        }
        own.insert(life);
        Self {
            life,
            fingerprint: fingerprint.into(),
            began_at: now,
            standing: if is_traceless {
                Standing::Asking(BTreeMap::new())
            } else {
                Standing::Later
            },
            epoch: Epoch(1),
            epoch_began: now,
            anchor: now,
            high_water: self.high_water,
            closing: None,
            // This copy may be older than what peers were told here.
            kept: BTreeMap::new(),
            rollout: self.rollout.reborn(),
            ..self
        }
    }

    /// A life that begins on a store with replicas decides nothing until the overlap is over.
    #[must_use]
    pub fn silent_for(self, overlap_ms: u64, now: StoreMs) -> Self {
        Self {
            overlap_ms,
            silent_until: match overlap_ms {
                0 => StoreMs(0),
                _ => now.plus(overlap_ms),
            },
            ..self
        }
    }

    /// Whether a store that says `fingerprint` of itself is the one that this life is of.
    ///
    /// A process that gets its first replica takes another name for its history. One that was promoted since keeps the
    /// name of the history before: `promoted`.
    pub fn is_of(&self, fingerprint: &str, promoted: bool) -> bool {
        let run = |fingerprint: &str| fingerprint.split_once(':').map(|(run, _)| run.to_owned());
        let same_run = run(fingerprint).is_some() && run(fingerprint) == run(&self.fingerprint);
        self.fingerprint == fingerprint || (same_run && !promoted)
    }

    /// A new epoch: the clock stepped, or nobody vouched for it.
    #[must_use]
    pub fn next_epoch(self, now: StoreMs) -> Self {
        let was_silent = self.anchor < self.silent_until;
        Self {
            silent_until: match was_silent {
                true => now.plus(self.overlap_ms),
                false => StoreMs(0),
            },
            epoch: Epoch(self.epoch.0 + 1),
            epoch_began: now,
            anchor: now,
            high_water: self.high_water.max(now),
            ..self
        }
    }

    /// A node has compared the store's clock with its own since the last anchor, and vouches for `now`.
    #[must_use]
    pub fn anchored(self, now: StoreMs) -> Self {
        Self {
            anchor: now,
            high_water: self.high_water.max(now),
            ..self
        }
    }

    pub fn actor(&self) -> Actor {
        Actor {
            region: self.region.clone(),
            life: self.life,
        }
    }

    pub fn record(&self, revision: u64) -> Record {
        Record {
            life: self.life,
            epoch: self.epoch,
            revision,
        }
    }

    /// What this region tells its peers.
    pub fn table(&self) -> LifeTable {
        LifeTable {
            sender: self.actor(),
            epoch: self.epoch,
            began_at: self.began_at,
            present: self.present.clone(),
            known: self.known.clone(),
            ended: self.ended.get(&self.region).cloned().unwrap_or_default(),
            word: self.closing.as_ref().and_then(Closing::word),
            kept: self.kept.clone(),
            rollout: self.rollout.told(self.anchor, self.epoch_began),
        }
    }

    /// Takes in what a peer says of the lives. `None` where the message is of a life that is over, or from a region
    /// that isn't a peer, and is to be ignored as a whole.
    #[must_use]
    pub fn hear(&self, table: &LifeTable, peers: &[Region]) -> Option<Self> {
        let from = &table.sender.region;
        if !peers.contains(from) || self.is_over(&table.sender) {
            return None;
        }
        let mut next = self.clone();
        let ours = |known: &BTreeMap<Region, BTreeSet<Life>>| {
            known.get(&self.region).cloned().unwrap_or_default()
        };
        let (said, own) = (ours(&table.known), ours(&self.known));
        next.take_word(
            from,
            table.sender.life,
            table.word,
            said.contains(&self.life),
        );
        let kept = table.kept.get(&self.region).copied();
        next.take_answer(from, kept, !said.is_subset(&own));
        let ended = next.ended.entry(from.clone()).or_default();
        ended.extend(table.ended.iter().filter(|l| **l != table.sender.life));
        next.present.insert(from.clone(), table.sender.life);
        next.began.insert(from.clone(), table.began_at);
        let told = table
            .known
            .iter()
            .filter(|(region, _)| peers.contains(region) || **region == self.region);
        for (region, lives) in told {
            let known = next.known.entry(region.clone()).or_default();
            known.extend(lives.iter().take(LIVES_MAX.saturating_sub(known.len())));
        }
        next.known
            .entry(from.clone())
            .or_default()
            .insert(table.sender.life);
        let own = next.known.get(&self.region).cloned().unwrap_or_default();
        let over = own.into_iter().filter(|l| *l != self.life);
        next.ended
            .entry(self.region.clone())
            .or_default()
            .extend(over);
        let knows_us = table.present.get(&self.region) == Some(&self.life);
        next.rollout = next.rollout.hear(from, &table.rollout, knows_us);
        // One that goes may be in no file any more, and still be waited for.
        let shares = |next: &Self, region: &Region| next.rollout.regions().contains(region);
        for told in &table.rollout.retired {
            let region = &told.region;
            if *region == self.region || peers.contains(region) || shares(&next, region) {
                let lives = next.retired_lives(told);
                next = next.retire(region, told.number, &lives);
            }
        }
        if let Standing::Asking(answers) = &mut next.standing {
            answers.insert(from.clone(), table.present.clone());
            next.standing = next.judge(peers);
        }
        Some(next)
    }

    /// Whoever was told by an operator may not have known which lives there were: when the word is news, those that are known
    /// here are over, too. A life that begins later isn't.
    fn retired_lives(&self, told: &ToldRetired) -> BTreeSet<Life> {
        let before = self.rollout.retired.get(&told.region);
        let is_news = before.is_none_or(|before| before.number < told.number);
        let known = self.known.get(&told.region).filter(|_| is_news);
        let known = known.into_iter().flatten();
        told.lives.iter().chain(known).copied().collect()
    }

    /// Of a region that no revision deals anything to, nor is a peer, no life is present: whoever has its slots passes
    /// them on.
    pub fn forget_strangers(&mut self, peers: &[Region]) {
        let sharing = self.rollout.regions();
        let gone = |region: &&Region| !peers.contains(region) && !sharing.contains(region);
        let gone: Vec<Region> = self.present.keys().filter(gone).cloned().collect();
        for region in gone {
            self.present.remove(&region);
            self.began.remove(&region);
        }
    }

    /// Takes down that a region's store is off for good: these lives of it are over, and it has no base by revision
    /// `number` or an older one.
    #[must_use]
    pub fn retire(mut self, region: &Region, number: u64, lives: &BTreeSet<Life>) -> Self {
        let lives: BTreeSet<Life> = lives.iter().take(LIVES_MAX).copied().collect();
        self.rollout = self.rollout.retire(region, number, &lives, self.anchor);
        if self
            .present
            .get(region)
            .is_some_and(|life| lives.contains(life))
        {
            self.present.remove(region);
            self.began.remove(region);
        }
        let known = self.known.entry(region.clone()).or_default();
        known.extend(lives.iter().take(LIVES_MAX.saturating_sub(known.len())));
        self.ended.entry(region.clone()).or_default().extend(lives);
        self
    }

    /// Whether an operator said that this very life is over.
    pub fn is_retired(&self) -> bool {
        let retired = self.rollout.retired.get(&self.region);
        retired.is_some_and(|retired| retired.lives.contains(&self.life))
    }

    fn judge(&self, peers: &[Region]) -> Standing {
        let Standing::Asking(answers) = &self.standing else {
            return self.standing.clone();
        };
        if self
            .known
            .get(&self.region)
            .is_some_and(|lives| lives.len() > 1)
        {
            return Standing::Later;
        }
        let actual = |region: &Region| {
            if *region == self.region {
                Some(self.life)
            } else {
                self.present.get(region).copied()
            }
        };
        let peers: Vec<&Region> = peers
            .iter()
            .filter(|peer| !self.rollout.is_retired(peer))
            .collect();
        let agrees = |peer: &Region| {
            let others = peers.iter().copied().chain([&self.region]);
            let others = others.filter(|r| *r != peer);
            answers.get(peer).is_some_and(|heard| {
                others
                    .into_iter()
                    .all(|r| actual(r).is_some() && heard.get(r).copied() == actual(r))
            })
        };
        if peers.iter().copied().all(agrees) {
            Standing::First
        } else {
            self.standing.clone()
        }
    }

    pub fn is_over(&self, actor: &Actor) -> bool {
        self.ended
            .get(&actor.region)
            .is_some_and(|lives| lives.contains(&actor.life))
    }

    /// Whether `actor` is the present life of its region, ours included, as far as is known here.
    pub fn is_present(&self, actor: &Actor) -> bool {
        if actor.region == self.region {
            actor.life == self.life
        } else {
            self.present.get(&actor.region) == Some(&actor.life)
        }
    }

    /// Names the present lives of all peers, as last heard: another name whenever one of them is another.
    pub fn present_digest(&self) -> u64 {
        let names: Vec<String> = self
            .present
            .iter()
            .map(|(region, life)| format!("{region}={life}"))
            .collect();
        xxhash_rust::xxh3::xxh3_64(names.join(",").as_bytes())
    }

    /// Whether this life may admit anything. A life that nobody else knows of might be lost without a trace, and its
    /// successor be taken for the first.
    pub fn may_admit(&self) -> bool {
        if planted::is_on(Bug::AskingUsesBase) {
            return true;
        }
        match &self.standing {
            Standing::Asking(answers) => answers
                .values()
                .any(|heard| heard.get(&self.region) == Some(&self.life)),
            Standing::First | Standing::Later => true,
        }
    }

    /// Until when all that may be lent counts as lent: what an older epoch, or a lost life, lent isn't known here.
    ///
    /// `counts_ms`: how long what was admitted on a loan goes on counting.
    pub fn lent_all(&self, timing: Timing, counts_ms: u64) -> Option<LentAll> {
        let forgets = planted::is_on(Bug::LentForgotten);
        let untouched = self.standing == Standing::First && (self.epoch == Epoch(1) || forgets);
        let reclaim_ms = match planted::is_on(Bug::LentAllShort) {
            true => timing.term_ms / 4,
            false => timing.reclaim_ms(counts_ms),
        };
        (!untouched).then(|| LentAll {
            until: self.epoch_began.plus(reclaim_ms),
        })
    }

    /// The first moment at which a window may begin that has a base. A lost life may have spent the window that it
    /// was in, by its own clock, and may have given away rights of the next one.
    pub fn base_from(&self, per_ms: u64) -> StoreMs {
        match self.standing {
            Standing::First => StoreMs(0),
            Standing::Asking(_) if planted::is_on(Bug::AskingUsesBase) => StoreMs(0),
            Standing::Asking(_) => StoreMs::MAX,
            Standing::Later if planted::is_on(Bug::NextWindowNotCovered) => self.began_at.plus(1),
            Standing::Later => self.began_at.plus(SKEW_MS).plus(per_ms).plus(1),
        }
    }

    /// The fence of a node that trusts the store's clock within `span`.
    pub fn fence(&self, revision: u64, span: Span) -> Fence {
        let untouched = self.standing == Standing::First && self.epoch == Epoch(1);
        Fence {
            record: self.record(revision),
            span,
            epoch_began: self.epoch_began,
            missing: if untouched || planted::is_on(Bug::MissingIsFull) {
                Missing::Full
            } else {
                Missing::EmptyAt(self.epoch_began)
            },
            closed_before: match planted::is_on(Bug::SealedWindowReopened) {
                true => StoreMs(0),
                false => self.high_water,
            },
            replicated: self.overlap_ms > 0,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        bytes.extend(postcard::to_stdvec(self).expect("a region's state is plain data"));
        bytes.extend(postcard::to_stdvec(&self.rollout).expect("a roll-out is plain data"));
        bytes
    }

    /// # Errors
    /// Where the bytes were written by something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, UnknownForm> {
        match bytes.split_first() {
            Some((&FORM, rest)) => Self::read(rest).ok_or(UnknownForm(Some(FORM))),
            other => Err(UnknownForm(other.map(|(form, _)| *form))),
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (state, rest): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
        let rollout = match rest {
            [] => Rollout::default(),
            rest => postcard::from_bytes(rest).ok()?,
        };
        Some(Self { rollout, ..state })
    }
}

#[cfg(test)]
mod tests;
