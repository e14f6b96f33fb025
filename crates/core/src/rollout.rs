//! Roll-out of a changed policies file, region by region, so that the sum holds in between.
//!
//! A region goes by the smallest limits and base of all revisions that it hasn't left behind, so what is lowered is lower
//! at once. It leaves older revisions behind, policy by policy, once every region that loses by the newer one is known to
//! go by it. So a region that is out of reach holds up only what it would have to give. Nobody needs to agree on an order
//! or a moment.
//!
//! Pure, and part of a region's state. The store sees none of it: it is told what is in force with each call.

mod budget;
#[cfg(test)]
mod tests;

pub use budget::Budget;

use crate::allotment::Timing;
use crate::fence::{GIVEN_AHEAD_MS, SKEW_MS};
use crate::ids::{Life, Region, StoreMs};
use crate::period::Period;
use crate::planted::{self, Bug};
use crate::policy::{Algorithm, Limits, Policy, Tolerance};
use crate::schedule::PPB;
use budget::{Loss, less};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Revisions that can be under way at one time in a region.
pub const REVISIONS_MAX: usize = 16;
/// For how long a peer has gone by a revision is remembered in steps of this, so that not every message is news.
const KEPT_STEP_MS: u64 = 5_000;
/// An older share is forgotten so long after a bucket has surely filled under the newer one.
const SLACK_MS: u64 = 60_000;

/// A region's side of all roll-outs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rollout {
    /// Those that this region goes by, oldest first: the smallest of them all counts.
    pub revisions: Vec<Revision>,
    /// Which revisions a policy has left behind, by its name@version.
    pub fronts: BTreeMap<String, Front>,
    /// Windows of which no region has more by a smaller limit, whichever revision it goes by: the newest counts at once,
    /// by name@version.
    #[serde(default)]
    pub in_line: BTreeSet<String>,
    /// What the peers said, as far as it matters still.
    pub heard: BTreeMap<Region, Said>,
    /// This life can't know what an earlier one confirmed: it has no base of a policy until every peer goes by the newest
    /// revision of it alone.
    pub unsure: bool,
    /// While it is unsure: the policies that it has a base of.
    pub begun: BTreeSet<String>,
    /// This region has never gone by any other revision.
    pub original: bool,
    /// Of windows this life has a base only of those that begin when its peers went by the newest revision already, whose
    /// clocks said this.
    pub windows_from: StoreMs,
    /// Regions whose stores are off for good, by an operator's word.
    pub retired: BTreeMap<Region, Retired>,
}

/// One state of the policies file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Revision {
    pub number: u64,
    /// Stands also for those from this number on, which said nothing else that still counts.
    pub stands_from: u64,
    pub digest: u64,
    /// Since when no node of this region goes by an older one alone.
    pub adopted_at: Option<StoreMs>,
    /// Some policy has less of a share here than by an older revision that this region went by.
    pub loses: bool,
    /// By name@version.
    pub budgets: BTreeMap<String, Budget>,
}

/// How far a policy has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Front {
    /// The oldest revision that still counts.
    pub number: u64,
    /// A rate was raised then: before, its share was at most `before_ppb` of what the limits are now. Unused keys are full
    /// at that.
    pub raised: Option<(StoreMs, u64)>,
}

/// A peer's word.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    /// Number and digest of each revision that it goes by.
    pub list: Vec<(u64, u64)>,
    /// Hashes of policies that older ones of these count for.
    pub behind: BTreeSet<u64>,
    pub original: bool,
    /// The revisions that it has confirmed, by number.
    pub kept: BTreeMap<u64, Kept>,
}

/// A peer goes by a revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kept {
    pub digest: u64,
    pub loses: bool,
    /// For at least so long, by its own clock.
    pub held_ms: u64,
    /// Its own clock when it began to.
    pub since: StoreMs,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Retired {
    /// It has no base by this revision or an older one.
    pub number: u64,
    pub lives: BTreeSet<Life>,
    /// Our clock when we heard of it.
    pub at: StoreMs,
}

/// What every message says of its sender's revisions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    pub revisions: Vec<ToldRevision>,
    /// Hashes of the policies that more than the newest of these count for.
    pub behind: BTreeSet<u64>,
    pub original: bool,
    pub retired: Vec<ToldRetired>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToldRevision {
    pub number: u64,
    pub digest: u64,
    /// The sender has less of something by it than by an older one.
    pub loses: bool,
    /// Since when it counts in the whole region, by the sender's clock, and for how long.
    pub kept: Option<(StoreMs, u64)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToldRetired {
    pub region: Region,
    pub number: u64,
    pub lives: BTreeSet<Life>,
}

/// What a region loses by a revision, and the newest one that it has it by.
#[derive(Clone, Copy, Debug)]
struct Lost {
    newest: u64,
    known: Loss,
}

/// Why a file can't be gone by in this region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A node with this newer revision has been here.
    Behind(u64),
    /// The same number stands for another content here.
    OtherContent,
    /// Too many revisions are under way.
    TooMany,
}

/// Where and when a region looks at its roll-outs.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    pub region: &'a Region,
    pub peers: &'a [Region],
    /// Those of the newest revision.
    pub policies: &'a [Arc<Policy>],
    pub timing: Timing,
    pub epoch_began: StoreMs,
    pub now: StoreMs,
    /// Windows that ended before it are closed.
    pub high_water: StoreMs,
    /// The life is its store's first.
    pub is_first: bool,
    /// It isn't known yet whether it is.
    pub is_asking: bool,
}

// === impl Rollout ===

impl Rollout {
    pub fn new(unsure: bool) -> Self {
        Self {
            unsure,
            original: true,
            ..Self::default()
        }
    }

    /// A life that can't know what the one before it confirmed.
    #[must_use]
    pub fn reborn(self) -> Self {
        Self {
            unsure: true,
            begun: BTreeSet::new(),
            heard: BTreeMap::new(),
            ..self
        }
    }

    pub fn newest(&self) -> Option<&Revision> {
        self.revisions.last()
    }

    /// A node brings its file: the region goes by it from now on, beside what it went by before.
    ///
    /// # Errors
    /// Where it can't.
    pub fn bring(
        &self,
        number: u64,
        digest: u64,
        region: &Region,
        policies: &[Arc<Policy>],
        budget: impl Fn(&Policy) -> Budget,
    ) -> Result<Self, Refusal> {
        match self.newest() {
            Some(newest) if newest.number > number => return Err(Refusal::Behind(newest.number)),
            Some(newest) if newest.number == number && newest.digest != digest => {
                return Err(Refusal::OtherContent);
            }
            Some(newest) if newest.number == number => return Ok(self.clone()),
            _ => {}
        }
        let room = self.with_room().ok_or(Refusal::TooMany)?;
        let budgets: BTreeMap<String, Budget> =
            dealt(policies).map(|p| (p.id(), budget(p))).collect();
        let loses = dealt(policies).any(|policy| {
            let (id, is_window) = (policy.id(), is_window(policy));
            let before = self.revisions.iter().filter_map(|r| r.budgets.get(&id));
            let losses = before.map(|old| old.loss(&budgets[&id], region, is_window));
            losses.max() == Some(Loss::Share)
        });
        let mut next = room;
        next.original &= next.revisions.is_empty();
        next.revisions.push(Revision {
            number,
            stands_from: number,
            digest,
            adopted_at: None,
            loses,
            budgets,
        });
        next.find_windows_in_line(policies);
        Ok(next)
    }

    /// With room for one more revision: one that says the same as the next, of whatever it still counts for, is left to it.
    fn with_room(&self) -> Option<Self> {
        let mut room = self.clone();
        if room.revisions.len() < REVISIONS_MAX {
            return Some(room);
        }
        let says_the_same = |pair: &[Revision]| {
            let [revision, next] = pair else { return false };
            let ids = revision.budgets.keys().chain(next.budgets.keys());
            let is_left = |id: &String| {
                let front = room.fronts.get(id);
                front.is_some_and(|front| front.number > revision.number)
            };
            ids.filter(|id| !is_left(id))
                .all(|id| revision.budgets.get(id) == next.budgets.get(id))
        };
        let at = room.revisions.windows(2).position(says_the_same)?;
        let gone = room.revisions.remove(at);
        room.revisions[at].stands_from = gone.stands_from;
        Some(room)
    }

    /// A revision that was left out here may be gone by elsewhere, and nobody here knows whether it is in line.
    fn find_windows_in_line(&mut self, policies: &[Arc<Policy>]) {
        let windows = dealt(policies).filter(|policy| is_window(policy));
        let in_line = windows.map(|policy| policy.id()).filter(|id| {
            let list: Vec<(u64, &Budget)> = self.in_force(id).collect();
            let [(from, _), .., (to, _)] = list[..] else {
                return false;
            };
            let mut pairs = list
                .iter()
                .enumerate()
                .flat_map(|(i, (_, a))| list[i + 1..].iter().map(move |(_, b)| (a, b)));
            !self.skips(from, to) && pairs.all(|(a, b)| a.is_in_line_with(b))
        });
        self.in_line = in_line.collect();
    }

    /// No node of this region goes by less than the newest revision any more, whose number is `number`.
    #[must_use]
    pub fn adopted(mut self, number: u64, at: StoreMs) -> Self {
        if let Some(newest) = self.revisions.last_mut()
            && newest.number == number
            && newest.adopted_at.is_none()
        {
            newest.adopted_at = Some(at);
        }
        self
    }

    /// What the peers are told.
    pub fn told(&self, anchor: StoreMs, epoch_began: StoreMs) -> Told {
        let told = |revision: &Revision| ToldRevision {
            number: revision.number,
            digest: revision.digest,
            loses: revision.loses,
            kept: revision
                .adopted_at
                .map(|at| (at, anchor.since(at.max(epoch_began)))),
        };
        let retired = |(region, retired): (&Region, &Retired)| ToldRetired {
            region: region.clone(),
            number: retired.number,
            lives: retired.lives.clone(),
        };
        let ids = self
            .newest()
            .into_iter()
            .flat_map(|newest| newest.budgets.keys());
        let behind = ids.filter(|id| self.in_force(id).count() > 1);
        Told {
            revisions: self.revisions.iter().map(told).collect(),
            behind: behind.map(|id| hash_of(id)).collect(),
            original: self.original,
            retired: self.retired.iter().map(retired).collect(),
        }
    }

    /// Takes in what a peer said. `knows_us`: it has this life of ours on record, so that it ignores what an earlier one said.
    #[must_use]
    pub fn hear(mut self, from: &Region, told: &Told, knows_us: bool) -> Self {
        // Once nothing is under way it doesn't matter who goes by what.
        if !self.unsure && self.revisions.len() <= 1 {
            self.heard.remove(from);
            return self;
        }
        let ours: BTreeSet<u64> = self.revisions.iter().map(|r| r.number).collect();
        let said = self.heard.entry(from.clone()).or_default();
        if knows_us {
            said.list = told
                .revisions
                .iter()
                .map(|r| (r.number, r.digest))
                .collect();
            said.behind.clone_from(&told.behind);
            said.original = told.original;
        }
        said.kept.retain(|number, _| ours.contains(number));
        for revision in told.revisions.iter().filter(|r| ours.contains(&r.number)) {
            let Some((since, held_ms)) = revision.kept else {
                continue;
            };
            let held_ms = held_ms - held_ms % KEPT_STEP_MS;
            let kept = said.kept.entry(revision.number).or_insert(Kept {
                digest: revision.digest,
                loses: revision.loses,
                held_ms,
                since,
            });
            if kept.digest == revision.digest {
                kept.held_ms = kept.held_ms.max(held_ms);
                kept.since = kept.since.min(since);
                kept.loses |= revision.loses;
            }
        }
        self
    }

    /// The operator's word that a region's store is off for good, by whoever it comes.
    #[must_use]
    pub fn retire(
        mut self,
        region: &Region,
        number: u64,
        lives: &BTreeSet<Life>,
        at: StoreMs,
    ) -> Self {
        let retired = self.retired.entry(region.clone()).or_insert(Retired {
            number: 0,
            lives: BTreeSet::new(),
            at,
        });
        let is_news = number > retired.number || !lives.is_subset(&retired.lives);
        if is_news {
            retired.number = retired.number.max(number);
            retired.lives.extend(lives);
            retired.at = at;
        }
        self
    }

    /// Whether no revision since has named the region again.
    pub fn is_retired(&self, region: &Region) -> bool {
        let newest = self.newest().map_or(0, |r| r.number);
        self.retired.get(region).is_some_and(|r| r.number >= newest)
    }

    /// All regions that any of these revisions deals a share to.
    pub fn regions(&self) -> BTreeSet<&Region> {
        let budgets = self.revisions.iter().flat_map(|r| r.budgets.values());
        budgets.flat_map(Budget::regions).collect()
    }

    /// Whether rules and terms made under `other` are those made under this.
    pub fn deals_like(&self, other: &Self) -> bool {
        let numbers = |of: &Self| -> Vec<(u64, u64)> {
            of.revisions.iter().map(|r| (r.number, r.digest)).collect()
        };
        self.unsure == other.unsure
            && self.begun == other.begun
            && self.fronts == other.fronts
            && self.in_line == other.in_line
            && self.windows_from == other.windows_from
            && self.retired == other.retired
            && numbers(self) == numbers(other)
    }

    // --- what is in force ---

    /// A region's base share of a rate or a sliding window, in parts per billion.
    pub fn base_ppb(&self, policy: &Policy, region: &Region) -> u64 {
        if self.is_plain() {
            return policy.base_ppb(region);
        }
        let id = policy.id();
        let base = |(number, budget): (u64, &Budget)| match self.has_base(&id, region, number) {
            true => budget.base_ppb(region),
            false => 0,
        };
        let least = self.in_force(&id).map(base).min();
        least.unwrap_or_else(|| self.alone(policy.base_ppb(region)))
    }

    /// A region's base of a window, in units, for whoever goes by `limits` in the newest revision.
    pub fn base_units(&self, policy: &Policy, limits: Limits, region: &Region) -> u64 {
        let newest = policy.base_units(limits.limit, region);
        if self.is_plain() {
            return newest;
        }
        let id = policy.id();
        let Some(now) = self.newest().and_then(|r| r.budgets.get(&id)) else {
            return self.alone(newest);
        };
        let base = |(number, budget): (u64, &Budget)| match self.has_base(&id, region, number) {
            true => budget.base_units(budget.was(now, limits).limit, region),
            false => 0,
        };
        let all = self.in_force(&id).map(base);
        if self.in_line.contains(&id) {
            return all.last().unwrap_or(0);
        }
        all.min().unwrap_or(0)
    }

    /// The strictest of all.
    pub fn tolerance(&self, policy: &Policy) -> Tolerance {
        if self.is_plain() {
            return policy.tolerance;
        }
        let id = policy.id();
        let all = self.in_force(&id).map(|(_, budget)| budget.tolerance());
        all.fold(policy.tolerance, Tolerance::min)
    }

    /// A region's part of the overdraft of a rate or a sliding window, in parts per billion of the budget.
    pub fn overdraft_ppb(&self, policy: &Policy, region: &Region) -> u64 {
        if self.is_plain() {
            return policy.tolerance.overdraft_ppb(&policy.weights, region);
        }
        let id = policy.id();
        let part = |(number, budget): (u64, &Budget)| match self.has_base(&id, region, number) {
            true => budget.overdraft_ppb(region),
            false => 0,
        };
        self.in_force(&id).map(part).min().unwrap_or(0)
    }

    /// The same of a window, in units, for whoever goes by `limits` in the newest revision.
    pub fn overdraft_units(&self, policy: &Policy, limits: Limits, region: &Region) -> u64 {
        if self.is_plain() {
            return policy
                .tolerance
                .overdraft_units(limits.limit, &policy.weights, region);
        }
        let id = policy.id();
        let Some(now) = self.newest().and_then(|r| r.budgets.get(&id)) else {
            return 0;
        };
        let part = |(number, budget): (u64, &Budget)| match self.has_base(&id, region, number) {
            true => budget.overdraft_units(budget.was(now, limits).limit, region),
            false => 0,
        };
        self.in_force(&id).map(part).min().unwrap_or(0)
    }

    /// What whoever goes by `limits` in the newest revision has: the smallest.
    pub fn limits(&self, policy: &Policy, limits: Limits) -> Limits {
        if self.revisions.len() <= 1 {
            return limits;
        }
        let id = policy.id();
        if self.in_line.contains(&id) {
            return limits;
        }
        let Some(now) = self.newest().and_then(|r| r.budgets.get(&id)) else {
            return limits;
        };
        let all = self
            .in_force(&id)
            .map(|(_, budget)| budget.was(now, limits));
        all.fold(limits, less)
    }

    /// The first moment at which a window may begin that has a base, as far as roll-outs go.
    pub fn windows_from(&self, period: Period) -> StoreMs {
        match self.windows_from {
            StoreMs(0) => StoreMs(0),
            since => period.bounds(first_label(period, since)).0,
        }
    }

    /// Since when a rate has more than the part of its limits that stands beside it, or a larger overdraft.
    pub fn raised(&self, policy: &Policy) -> Option<(StoreMs, u64)> {
        if self.fronts.is_empty() {
            return None;
        }
        self.fronts.get(&policy.id())?.raised
    }

    /// One revision, and nothing beside it that matters.
    fn is_plain(&self) -> bool {
        self.revisions.len() <= 1 && !self.unsure && self.retired.is_empty()
    }

    /// The base of a policy that no revision on record speaks of.
    fn alone(&self, base: u64) -> u64 {
        if self.unsure { 0 } else { base }
    }

    fn has_base(&self, id: &str, region: &Region, number: u64) -> bool {
        (!self.unsure || self.begun.contains(id) || planted::is_on(Bug::UnsureHasBase))
            && self.retired.get(region).is_none_or(|r| r.number < number)
    }

    fn in_force<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (u64, &'a Budget)> {
        let newest = self.newest().map_or(0, |newest| newest.number);
        let from = match planted::is_on(Bug::NewestRevisionCounts) {
            true => newest,
            false => self.fronts.get(id).map_or(0, |front| front.number),
        };
        self.revisions
            .iter()
            .filter(move |r| r.number >= from)
            .filter_map(move |r| Some((r.number, r.budgets.get(id)?)))
    }

    // --- going on ---

    /// Leaves behind whatever can be left behind by now.
    #[must_use]
    pub fn advance(mut self, now: &Now<'_>) -> Self {
        if self.revisions.len() > 1 {
            for policy in dealt(now.policies) {
                self.advance_policy(policy, now);
            }
        }
        self.prune(now);
        // Whether what it has begins full depends on that.
        if self.unsure && !now.is_asking {
            self.begin(now);
        }
        self.forget_raises(now);
        self.find_windows_in_line(now.policies);
        self
    }

    /// Regions that some policy waits for.
    pub fn waits_for(&self, now: &Now<'_>) -> BTreeSet<Region> {
        let mut missing = BTreeSet::new();
        for policy in dealt(now.policies) {
            let id = policy.id();
            if self.unsure && !self.begun.contains(&id) {
                let behind = |peer: &&Region| !self.goes_by_the_newest(peer, &id);
                missing.extend(now.peers.iter().filter(behind).cloned());
            }
            let list: Vec<_> = self.in_force(&id).collect();
            if list.len() > 1 && !self.in_line.contains(&id) {
                missing.extend(self.missing(policy, &list, now));
            }
        }
        missing
    }

    fn advance_policy(&mut self, policy: &Policy, now: &Now<'_>) {
        let id = policy.id();
        loop {
            let list: Vec<_> = self.in_force(&id).collect();
            let next = (2..=list.len())
                .find(|n| self.missing(policy, &list[..*n], now).is_empty())
                .map(|n| (list[n - 1].0, self.raise(policy, &list, n, now)));
            let Some((number, raised)) = next else { return };
            self.fronts.insert(id.clone(), Front { number, raised });
        }
    }

    /// Whose confirmation of the last revision of the list is missing before the others can be left behind.
    fn missing(&self, policy: &Policy, list: &[(u64, &Budget)], now: &Now<'_>) -> Vec<Region> {
        let Some(((to, budget), before)) = list.split_last() else {
            return Vec::new();
        };
        let is_window = is_window(policy);
        let regions: BTreeSet<&Region> = list.iter().flat_map(|(_, b)| b.regions()).collect();
        let from = before.first().map_or(*to, |(number, _)| *number);
        // A revision that was skipped here may be gone by elsewhere, and nobody here knows what it says.
        let skipped = self.skips(from, *to);
        let confirms = |region: &Region| {
            let losing = before
                .iter()
                .map(|(number, old)| (*number, old.loss(budget, region, is_window)));
            let losing: Vec<_> = losing.filter(|(_, loss)| *loss > Loss::Nothing).collect();
            let newest_lost = losing.iter().map(|(number, _)| *number).max();
            let known = losing.iter().map(|(_, loss)| *loss).max();
            let lost = Lost {
                newest: newest_lost.unwrap_or(0),
                known: known.unwrap_or(Loss::Nothing),
            };
            let lost = if skipped {
                Lost {
                    newest: *to - 1,
                    ..lost
                }
            } else {
                lost
            };
            (lost.known == Loss::Nothing && !skipped)
                || self.confirms(policy, region, *to, lost, now)
        };
        let missing = regions.into_iter().filter(|region| !confirms(region));
        missing.cloned().collect()
    }

    fn skips(&self, from: u64, to: u64) -> bool {
        let between = |r: &&Revision| (from..=to).contains(&r.number);
        let stands_for = |r: &Revision| r.number - r.stands_from.max(from) + 1;
        let known: u64 = self.revisions.iter().filter(between).map(stands_for).sum();
        known != to - from + 1
    }

    /// Whether nothing that `region` had by an older revision is used any more.
    fn confirms(
        &self,
        policy: &Policy,
        region: &Region,
        number: u64,
        lost: Lost,
        now: &Now<'_>,
    ) -> bool {
        let held_of = |at: StoreMs| now.now.since(at.max(now.epoch_began));
        let ours = self.revisions.iter().find(|r| r.number == number);
        let kept = if let Some(retired) = self.retired.get(region)
            && retired.number >= lost.newest
        {
            // Its clock may have been ahead of ours.
            Some((retired.at.plus(SKEW_MS), held_of(retired.at), true))
        } else if region == now.region {
            ours.and_then(|r| r.adopted_at.map(|at| (at, held_of(at), r.loses)))
        } else {
            let said = self.heard.get(region);
            said.and_then(|said| said.kept.get(&number))
                .filter(|kept| ours.is_some_and(|r| r.digest == kept.digest))
                .map(|kept| (kept.since, kept.held_ms, kept.loses))
        };
        let Some((since, held_ms, loses)) = kept else {
            return false;
        };
        // What it lost of a revision that isn't known here only it can say.
        let is_share = lost.known == Loss::Share || (lost.newest + 1 == number && loses);
        match policy.algorithm {
            _ if !is_share => true,
            Algorithm::FixedWindow { .. } if planted::is_on(Bug::OpenWindowDealtAnew) => true,
            Algorithm::FixedWindow { period } => {
                now.high_water >= period.bounds(first_label(period, since)).0
            }
            _ if planted::is_on(Bug::LostIsFreeAtOnce) => true,
            algorithm => held_ms >= now.timing.reclaim_ms(algorithm.counts_ms()),
        }
    }

    /// The step of a rate's share that leaving behind all before `list[n - 1]` is.
    fn raise(
        &self,
        policy: &Policy,
        list: &[(u64, &Budget)],
        n: usize,
        now: &Now<'_>,
    ) -> Option<(StoreMs, u64)> {
        if !policy.algorithm.is_bucket() {
            return None;
        }
        let id = policy.id();
        let base = |(number, budget): &(u64, &Budget)| match self.has_base(&id, now.region, *number)
        {
            true => budget.base_ppb(now.region),
            false => 0,
        };
        let (left, kept) = list.split_at(n - 1);
        let (_, to) = kept.first()?;
        let part = left.iter().map(|(_, old)| old.least_part_ppb(to)).min()?;
        let of = |ppb: u64| {
            let ppb = u128::from(ppb) * u128::from(part) / u128::from(PPB);
            u64::try_from(ppb).unwrap_or(u64::MAX)
        };
        let mut before = of(left.iter().map(base).min()?);
        if let Some((_, earlier)) = self.fronts.get(&id).and_then(|front| front.raised) {
            before = before.min(of(earlier));
        }
        let after = kept.iter().map(base).min()?;
        let overdraft = |list: &[(u64, &Budget)]| {
            let parts = list
                .iter()
                .map(|(_, budget)| budget.overdraft_ppb(now.region));
            parts.min()
        };
        let is_raised = before < after || overdraft(left) < overdraft(kept);
        is_raised.then_some((now.now.max(now.high_water), before.min(after)))
    }

    /// Drops the revisions that every policy has left behind.
    fn prune(&mut self, now: &Now<'_>) {
        let newest = self.newest().map_or(0, |r| r.number);
        let oldest = |policy: &Arc<Policy>| self.in_force(&policy.id()).map(|(n, _)| n).min();
        let needed = dealt(now.policies).filter_map(oldest).min();
        let needed = needed.unwrap_or(newest);
        self.revisions.retain(|r| r.number >= needed);
        let oldest = self.revisions.first().map_or(0, |r| r.number);
        let ids: BTreeSet<String> = now.policies.iter().map(|p| p.id()).collect();
        self.fronts.retain(|id, front| {
            ids.contains(id) && (front.number > oldest || front.raised.is_some())
        });
        if !self.unsure && self.revisions.len() <= 1 {
            self.heard.clear();
        }
    }

    /// Whether a peer has said that nothing but our newest revision counts for a policy there.
    fn goes_by_the_newest(&self, peer: &Region, id: &str) -> bool {
        let Some(newest) = self.newest() else {
            return false;
        };
        let said = self.heard.get(peer).is_some_and(|said| {
            let is_kept = said.original || said.kept.contains_key(&newest.number);
            let is_newest = said.list.last() == Some(&(newest.number, newest.digest));
            is_newest && is_kept && !said.behind.contains(&hash_of(id))
        });
        said || self.is_retired(peer)
    }

    /// Begins to use the base of each policy that every region goes by the newest revision of.
    fn begin(&mut self, now: &Now<'_>) {
        let Some(number) = self.newest().map(|newest| newest.number) else {
            return;
        };
        let all = |id: &String| {
            now.peers
                .iter()
                .all(|peer| self.goes_by_the_newest(peer, id))
        };
        let ids = dealt(now.policies).map(|policy| policy.id());
        let new = ids.filter(|id| !self.begun.contains(id)).filter(all);
        let new: BTreeSet<String> = new.collect();
        let is_original = |peer: &Region| self.heard.get(peer).is_none_or(|said| said.original);
        let at_the_beginning = now.is_first && self.original && now.peers.iter().all(is_original);
        if !at_the_beginning && !new.is_empty() {
            let since = |said: &Said| said.kept.get(&number).map(|kept| kept.since);
            let since = self.heard.values().filter_map(since).max();
            self.windows_from = since.unwrap_or_default();
        }
        for policy in dealt(now.policies).filter(|policy| new.contains(&policy.id())) {
            let from = now.now.max(now.high_water);
            let raised = policy.algorithm.is_bucket() && !at_the_beginning;
            let raised = raised.then_some((from, 0));
            self.fronts.insert(policy.id(), Front { number, raised });
        }
        self.begun.extend(new);
        if dealt(now.policies).all(|policy| self.begun.contains(&policy.id())) {
            self.unsure = false;
            self.begun.clear();
            self.prune(now);
        }
    }

    /// An older share matters until a bucket has filled under the newer one.
    fn forget_raises(&mut self, now: &Now<'_>) {
        let over: Vec<String> = now
            .policies
            .iter()
            .filter_map(|policy| {
                let id = policy.id();
                let (since, _) = self.fronts.get(&id)?.raised?;
                let per_ms = policy.algorithm.period()?.longest_ms();
                let fill = self
                    .in_force(&id)
                    .map(|(_, budget)| budget.fill_ms(per_ms))
                    .max()?;
                (now.now >= since.plus(fill).plus(SLACK_MS)).then_some(id)
            })
            .collect();
        for id in over {
            if let Some(front) = self.fronts.get_mut(&id) {
                front.raised = None;
            }
        }
    }
}

/// Policies whose budget is dealt to regions.
fn dealt(policies: &[Arc<Policy>]) -> impl Iterator<Item = &Arc<Policy>> {
    policies
        .iter()
        .filter(|policy| !matches!(policy.algorithm, Algorithm::Concurrency { .. }))
}

fn hash_of(id: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(id.as_bytes())
}

fn is_window(policy: &Policy) -> bool {
    matches!(policy.algorithm, Algorithm::FixedWindow { .. })
}

/// The first window of which nothing was used, or given ahead, by a region whose clock said `since`.
fn first_label(period: Period, since: StoreMs) -> u64 {
    period.label(since.plus(GIVEN_AHEAD_MS)).saturating_add(1)
}
