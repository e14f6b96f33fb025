//! Loans of rates and sliding windows: parts of a share, asked for, lent and given back.
//!
//! Two things bind a share from below: what is held, and what a sliding window still counts. A region that counts more
//! than its share, since a loan has ended, is within its rights: its lender goes without for as long as that counts. But
//! it neither lends nor says that it has given anything back until it counts no more than it has.

use super::{Occasion, Plan, Scene, Told, stored};
use crate::message::{Ask, Trade};
use crate::track::{Answered, Track};
use apportion_core::allotment::{Allotment, Credit, LoanAsk, Loans};
use apportion_core::demand;
use apportion_core::fence::SPAN_MS;
use apportion_core::meter::{Rule, Settled, State, Terms};
use apportion_core::schedule::{MICRO, PPB};
use apportion_core::{Actor, Epoch, Region, StoreMs};
use apportion_store::{Snapshot, Swap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steady traffic doesn't move shares by less than this, in parts per hundred of the whole.
const DEAD_BAND_PERCENT: u64 = 2;
/// What peers wanted is taken into account for so many intervals.
const WANTS_INTERVALS: u64 = 2;
/// A loan that only a window still counts on is kept up, so that it can be given back bit by bit, where that is a
/// matter of minutes. Where it takes longer it isn't worth a word every round: it ends, and its lender waits.
const KEPT_UP_MS: u64 = 600_000;

/// What a key's meter and loans say now.
pub(crate) struct LoanNow {
    pub(crate) rule: Arc<Rule>,
    pub(crate) loans: Loans,
    /// Its share in force, in parts per billion.
    pub(crate) share: u64,
    pub(crate) own: u64,
    pub(crate) base: u64,
    /// The least share that leaves what is held and what a window counts.
    pub(crate) least: u64,
    /// In the rule's units.
    pub(crate) of: u64,
    pub(crate) used: u64,
    pub(crate) fresh: bool,
    /// Its terms were laid down under another base.
    outdated: bool,
    /// It gives nothing yet, whatever its share: nothing is borrowed for it.
    blocked: bool,
    /// No loan of a window ends while a plan is carried out. If one did, a share could be lowered unseen: at the swap it
    /// would look raised.
    steady: bool,
}

impl Scene<'_> {
    fn loan_swap(&self, snapshot: &Snapshot, rule: &Arc<Rule>, loans: Loans) -> Swap {
        let terms = self.regime.loan_terms(self.policy, &loans, self.now);
        let keep = loans.ends_at(self.linger_ms()).max(self.now);
        self.swap(snapshot, rule, terms, Allotment::Loans(loans), keep)
    }

    /// How long a loan that is over is remembered: until no window counts on it any more, so that its lender can be told,
    /// where that is worth a word every round.
    fn linger_ms(&self) -> u64 {
        match self.policy.algorithm.counts_ms() {
            counts_ms @ 1..=KEPT_UP_MS => counts_ms + SPAN_MS,
            _ => 0,
        }
    }

    /// The share in force with these loans, in parts per billion.
    fn share_with(&self, loans: &Loans) -> u64 {
        let (base, floor) = self.regime.base_and_floor(self.policy);
        let lent_all = self.regime.lent_all(self.policy);
        let shares = loans.shares(base, floor, lent_all, self.now);
        shares.first().map_or(0, |(_, ppb)| *ppb)
    }

    pub(crate) fn loan_now(&self, snapshot: &Snapshot, told: Told) -> LoanNow {
        let loans = match stored(snapshot) {
            Some(Allotment::Loans(loans)) => loans,
            _ => Loans {
                epoch: self.regime.state.epoch,
                ..Loans::default()
            },
        };
        let loans = loans.at(self.regime.state.epoch, self.now, self.linger_ms());
        let (base, _) = self.regime.base_and_floor(self.policy);
        let share = self.share_with(&loans);
        let rule = self.rule(self.limits(snapshot, told));
        let terms = snapshot.traded.as_ref().and_then(|t| t.terms.as_ref());
        let meter = snapshot.meter.as_ref();
        let settled = Settled::new(meter, None, &rule, terms, self.fence, self.now);
        let counted = settled.counted();
        let (used, whole) = match settled.meter.state {
            State::Bucket { .. } => {
                let missing = settled.of.saturating_sub(settled.available());
                (missing, rule.limits.burst * MICRO)
            }
            _ => (counted, rule.limits.limit),
        };
        let soon = self.now.plus(SPAN_MS);
        let is_window = self.policy.algorithm.counts_ms() > 0;
        let ends = |c: &Credit| c.amount_ppb > 0 && c.until > self.now && c.until <= soon;
        LoanNow {
            share,
            own: share.saturating_sub(loans.borrowed_at(self.now)),
            base,
            least: demand::least_ppb(counted, whole),
            of: settled.of,
            used,
            fresh: snapshot.meter.is_none(),
            outdated: matches!(terms, Some(Terms::Loans { shares, .. }) if shares.last().ppb != base),
            blocked: settled.is_blocked(),
            steady: !is_window || !loans.borrowed.iter().any(ends),
            rule,
            loans,
        }
    }
}

impl LoanNow {
    /// How much of `share` can be given away.
    fn free(&self, share: u64) -> u64 {
        if self.steady {
            share.saturating_sub(self.least)
        } else {
            0
        }
    }
}

pub(super) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    occasion: Occasion,
) -> Plan {
    let mut plan = Plan::default();
    let told = Told {
        asked: None,
        seen: track.limits,
    };
    let now = scene.loan_now(snapshot, told);
    if now.blocked {
        return plan;
    }
    let refusing = track.is_refusing(scene.mono);
    let mut need = match track.demand() {
        Some(demand) => demand::need_ppb(demand.planned(false), now.rule.rate()),
        // Nothing is measured yet: double, and see.
        None if refusing || occasion == Occasion::Urgent => (now.share * 2).clamp(PPB / 10, PPB),
        None => now.share,
    };
    if refusing {
        need = need.max(now.share + now.share / 4).min(PPB);
    }
    let dead_band = PPB * DEAD_BAND_PERCENT / 100;
    let borrowed = now.loans.borrowed_at(scene.now);
    let target = need.max(now.least).saturating_sub(now.own);
    let mut loans = now.loans.clone();
    let too_much = target + dead_band < borrowed || (target == 0 && borrowed > 0);
    if too_much && now.steady {
        for credit in now.loans.borrowed.iter().filter(|c| c.until > scene.now) {
            let keep = part(credit.amount_ppb, target, borrowed);
            loans = loans.keep(&credit.from, keep);
        }
    }
    if loans != now.loans || now.outdated {
        plan.swap = Some(scene.loan_swap(snapshot, &now.rule, loans.clone()));
    }
    let is_true = now.least <= scene.share_with(&loans);
    if is_true && (plan.swap.is_some() || occasion == Occasion::Round) {
        for statement in loans.statements(&scene.us(), scene.now) {
            let to = statement.to.region.clone();
            plan.to(&to)
                .statements
                .push((scene.id.key.clone(), statement));
        }
    }
    let kept = loans.borrowed_at(scene.now);
    let shortfall = need.saturating_sub(now.own + kept);
    let short = shortfall > dead_band || (shortfall > 0 && refusing);
    let wanted = need > now.own || scene.policy.algorithm.counts_ms() <= KEPT_UP_MS;
    let renew = occasion == Occasion::Round && kept > 0 && wanted;
    let ask_more =
        short && occasion != Occasion::Tick || (short && refusing && track.may_ask(scene.mono));
    let asks = renew || (ask_more && track.may_ask(scene.mono));
    if !asks {
        return plan;
    }
    let lent: u64 = loans.lent_at(scene.now);
    let owed = need.min(now.base).saturating_sub(now.own);
    let dry = track.is_dry(scene.peers);
    for peer in scene.peers {
        let credit: u64 = credit_from(&loans, peer, scene.now);
        let more = if ask_more { shortfall } else { 0 };
        let want = (credit + more).min(PPB);
        let to_peer: u64 = loans
            .lent
            .iter()
            .filter(|d| d.to.region == *peer)
            .map(|d| d.charge_at(scene.now))
            .sum();
        let recall = if lent > 0 {
            part(to_peer, owed, lent)
        } else {
            0
        };
        if want > 0 || recall > 0 {
            plan.to(peer).asks.push(Ask {
                id: scene.id.clone(),
                asked_at: scene.now,
                want,
                recall,
                refusing,
                last_resort: dry,
                limits: scene.named_limits(snapshot, told),
            });
        }
    }
    if ask_more {
        track.asking(scene.mono, scene.interval_ms);
    }
    plan
}

fn credit_from(loans: &Loans, region: &Region, now: StoreMs) -> u64 {
    let from = loans
        .borrowed
        .iter()
        .filter(|c| c.from.region == *region && c.until > now);
    from.map(|c| c.amount_ppb).sum()
}

/// `whole` x `num` / `den`, rounded up, at most `whole`.
fn part(whole: u64, num: u64, den: u64) -> u64 {
    let part = (u128::from(whole) * u128::from(num)).div_ceil(u128::from(den.max(1)));
    u64::try_from(part).unwrap_or(u64::MAX).min(whole)
}

pub(super) fn answer(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    from: &Actor,
    epoch: Epoch,
    said: &Trade,
) -> Plan {
    let mut plan = Plan::default();
    let told = Told {
        asked: said.limits_of(scene.id),
        seen: track.limits,
    };
    let now = scene.loan_now(snapshot, told);
    let us = scene.us();
    let key = &scene.id.key;
    let counts_ms = scene.policy.algorithm.counts_ms();
    let mut loans = now.loans.clone();
    // An older epoch's loans are no longer used once there is a newer one; but what a window admitted on them counts on.
    if counts_ms == 0 {
        loans = loans.forget_older_epochs(from, epoch);
    }
    for (_, statement) in said
        .statements
        .iter()
        .filter(|(k, s)| k == key && s.to == us && s.by == *from)
    {
        loans = loans.clone().believe(statement).unwrap_or(loans);
    }
    for (_, grant) in said
        .grants
        .iter()
        .filter(|(k, g)| !now.blocked && k == key && g.by == *from)
    {
        let taken = loans
            .clone()
            .take_up(grant, scene.regime.timing, &us, scene.now);
        let Some(next) = taken else { continue };
        let before = loans.borrowed_at(scene.now);
        let answer = if next.borrowed_at(scene.now) > before {
            Answered::Brought
        } else {
            Answered::Nothing
        };
        track.answered(&from.region, answer, scene.mono);
        // A smaller loan follows a larger one only once that leaves enough: until then the larger one goes on, to its end.
        let (share, less) = (scene.share_with(&loans), scene.share_with(&next));
        if less >= share || (now.steady && less >= now.least) {
            loans = next;
        }
    }
    if said.left.iter().any(|(id, _)| id == scene.id) {
        track.answered(&from.region, Answered::Nothing, scene.mono);
    }
    for ask in said.asks.iter().filter(|a| a.id == *scene.id) {
        track.note_ask(&from.region, ask.want, scene.mono);
        let credit = loans.credit_from(from, scene.now);
        let recall = ask.recall.min(now.free(scene.share_with(&loans)));
        if recall > 0 && credit > 0 {
            loans = loans.keep(from, credit.saturating_sub(recall));
        }
        let asked = LoanAsk {
            by: from.clone(),
            epoch,
            asked_at: ask.asked_at,
            want_ppb: ask.want,
        };
        let amount = lendable(scene, track, &now, &loans, &asked, ask.refusing);
        let owes = loans.lent.iter().any(|d| d.to == *from && d.epoch == epoch);
        if amount == 0 && !owes {
            plan.to(&from.region).left.push((scene.id.clone(), 0));
            continue;
        }
        let most = scene.regime.lendable_ppb(scene.policy, scene.now);
        let reclaim_ms = scene.regime.timing.reclaim_ms(counts_ms);
        let lent = loans
            .clone()
            .lend(&asked, amount, most, reclaim_ms, &us, scene.now);
        if let Some((next, grant)) = lent {
            loans = next;
            plan.to(&from.region).grants.push((key.clone(), grant));
        }
    }
    if loans != now.loans {
        let kept_less = loans.borrowed_at(scene.now) < now.loans.borrowed_at(scene.now);
        if kept_less && now.least <= scene.share_with(&loans) {
            for statement in loans
                .statements(&us, scene.now)
                .into_iter()
                .filter(|s| s.to == *from)
            {
                plan.to(&from.region)
                    .statements
                    .push((key.clone(), statement));
            }
        }
        plan.swap = Some(scene.loan_swap(snapshot, &now.rule, loans));
    }
    plan
}

/// How much of the base can be lent to the asker, what it has of us already included.
fn lendable(
    scene: &Scene<'_>,
    track: &Track,
    now: &LoanNow,
    loans: &Loans,
    ask: &LoanAsk,
    refusing: bool,
) -> u64 {
    let most = scene.regime.lendable_ppb(scene.policy, scene.now);
    let need = match track.demand() {
        Some(demand) => demand::need_ppb(demand.planned(refusing), now.rule.rate()),
        // A key that nobody has used for so long that it is gone, or full again, isn't in demand.
        None if now.fresh => 0,
        None => part(now.base, now.used, now.of),
    };
    // What we are using of others' comes on top of our base, so that much less of it is needed.
    let need = need.saturating_sub(loans.borrowed_at(scene.now));
    let spare = most.min(now.base.saturating_sub(need.max(now.least)));
    let window_ms = scene.interval_ms * WANTS_INTERVALS;
    let mut asks: BTreeMap<&Region, u64> = track.wants(scene.mono, window_ms).collect();
    asks.insert(&ask.by.region, ask.want_ppb);
    let weight = |region: &Region| scene.policy.weights.get(region).copied().unwrap_or(1);
    let wants: Vec<(u64, u64)> = asks
        .iter()
        .map(|(region, want)| (weight(region), *want))
        .collect();
    let dealt = demand::max_min(spare, &wants);
    let ours = asks
        .keys()
        .position(|region| **region == ask.by.region)
        .map_or(0, |i| dealt[i]);
    let others = loans.lent_to_others(&ask.by, ask.epoch, scene.now);
    let charged = loans.lent_at(scene.now) - others;
    // What it has already costs nothing more; what comes on top is taken from the share in force.
    let room = charged + now.free(scene.share_with(loans));
    let room = room.min(most.saturating_sub(others));
    let steady = ours.min(room).abs_diff(charged) < now.base * DEAD_BAND_PERCENT / 100;
    if steady && !refusing {
        charged.min(ask.want_ppb).min(room)
    } else {
        ours.min(room)
    }
}
