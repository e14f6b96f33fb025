//! Rates: parts of a share, asked for, lent and given back.

use super::{Occasion, Plan, Scene, stored};
use crate::message::{Ask, Trade};
use crate::track::{Answered, Track};
use apportion_core::allotment::{Allotment, LoanAsk, Loans};
use apportion_core::demand;
use apportion_core::meter::{Bucket, Meter, Reading};
use apportion_core::schedule::{PPB, Rate};
use apportion_core::{Actor, Algorithm, Epoch, Region, StoreMs};
use apportion_store::{Snapshot, Swap};
use std::collections::BTreeMap;

/// Steady traffic doesn't move shares by less than this, in parts per hundred of the whole.
const DEAD_BAND_PERCENT: u64 = 2;
/// What peers wanted is taken into account for so many intervals.
const WANTS_INTERVALS: u64 = 2;

/// What a key's bucket and loans say now.
pub(crate) struct RateNow {
    pub(crate) rate: Rate,
    pub(crate) loans: Loans,
    /// Its share in force, in parts per billion.
    pub(crate) share: u64,
    pub(crate) own: u64,
    pub(crate) base: u64,
    pub(crate) spendable: u64,
    pub(crate) held: u64,
    pub(crate) cap: u64,
    pub(crate) fresh: bool,
}

impl Scene<'_> {
    pub(crate) fn rate(&self) -> Option<Rate> {
        match self.policy.algorithm {
            Algorithm::TokenBucket {
                limit,
                per_ms,
                burst,
            } => Some(Rate {
                limit,
                per_ms,
                burst,
            }),
            Algorithm::FixedWindow { .. } => None,
        }
    }

    fn loan_swap(&self, snapshot: &Snapshot, rate: Rate, loans: Loans) -> Swap {
        let terms = self.regime.loan_terms(self.policy, rate, &loans, self.now);
        let keep = loans.ends_at().max(self.now);
        self.swap(
            snapshot,
            self.regime.rule(self.policy),
            terms,
            Allotment::Loans(loans),
            keep,
        )
    }

    pub(crate) fn rate_now(&self, rate: Rate, snapshot: &Snapshot) -> RateNow {
        let loans = match stored(snapshot) {
            Some(Allotment::Loans(loans)) => loans,
            _ => Loans {
                epoch: self.regime.state.epoch,
                ..Loans::default()
            },
        };
        let loans = loans.at(self.regime.state.epoch, self.now);
        let (base, floor) = self.regime.base_and_floor(self.policy, rate);
        let lent_all = self.regime.lent_all(self.policy);
        let share = loans
            .shares(base, floor, lent_all, self.now)
            .first()
            .map_or(0, |(_, ppb)| *ppb);
        let rule = self.regime.rule(self.policy);
        let meter = match &snapshot.meter {
            Some(Meter::Bucket(bucket)) => Some(bucket),
            _ => None,
        };
        let terms = snapshot.traded.as_ref().and_then(|t| t.terms.as_ref());
        let settled = Bucket::settle(meter, &rule, terms, self.fence, self.now);
        let (spendable, held, cap) = match settled.reading {
            Reading::Bucket {
                spendable,
                held,
                flow,
            } => (spendable, held, flow.cap),
            Reading::Window { .. } => (0, 0, 0),
        };
        let own = share.saturating_sub(loans.borrowed_at(self.now));
        RateNow {
            rate,
            share,
            own,
            base,
            spendable,
            held,
            cap,
            fresh: meter.is_none(),
            loans,
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
    let Some(rate) = scene.rate() else {
        return plan;
    };
    let now = scene.rate_now(rate, snapshot);
    let refusing = track.is_refusing(scene.mono);
    let mut need = match track.demand() {
        Some(demand) => demand::need_ppb(demand.planned(false), rate),
        // Nothing is measured yet: double, and see.
        None if refusing || occasion == Occasion::Urgent => (now.share * 2).clamp(PPB / 10, PPB),
        None => now.share,
    };
    if refusing {
        need = need.max(now.share + now.share / 4).min(PPB);
    }
    let dead_band = PPB * DEAD_BAND_PERCENT / 100;
    let borrowed = now.loans.borrowed_at(scene.now);
    let target = need.saturating_sub(now.own);
    let mut loans = now.loans.clone();
    if target + dead_band < borrowed || (target == 0 && borrowed > 0) {
        for credit in now.loans.borrowed.iter().filter(|c| c.until > scene.now) {
            let keep = part(credit.amount_ppb, target, borrowed);
            loans = loans.keep(&credit.from, keep);
        }
    }
    if loans != now.loans {
        plan.swap = Some(scene.loan_swap(snapshot, rate, loans.clone()));
    }
    if plan.swap.is_some() || occasion == Occasion::Round {
        for statement in loans.statements(&scene.us()) {
            let to = statement.to.region.clone();
            plan.to(&to)
                .statements
                .push((scene.id.key.clone(), statement));
        }
    }
    let kept = loans.borrowed_at(scene.now);
    let shortfall = target.saturating_sub(kept);
    let short = shortfall > dead_band || (shortfall > 0 && refusing);
    let renew = occasion == Occasion::Round && kept > 0;
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
    let Some(rate) = scene.rate() else {
        return plan;
    };
    let now = scene.rate_now(rate, snapshot);
    let us = scene.us();
    let key = &scene.id.key;
    let mut loans = now.loans.clone().forget_older_epochs(from, epoch);
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
        .filter(|(k, g)| k == key && g.by == *from)
    {
        let before = loans.borrowed_at(scene.now);
        if let Some(next) = loans
            .clone()
            .take_up(grant, scene.regime.timing, &us, scene.now)
        {
            let more = next.borrowed_at(scene.now) > before;
            let answer = if more {
                Answered::Brought
            } else {
                Answered::Nothing
            };
            track.answered(&from.region, answer, scene.mono);
            loans = next;
        }
    }
    if said.left.iter().any(|(id, _)| id == scene.id) {
        track.answered(&from.region, Answered::Nothing, scene.mono);
    }
    for ask in said.asks.iter().filter(|a| a.id == *scene.id) {
        track.note_ask(&from.region, ask.want, scene.mono);
        let credit = loans.credit_from(from, scene.now);
        if ask.recall > 0 && credit > 0 {
            loans = loans.keep(from, credit.saturating_sub(ask.recall));
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
        let most = scene.regime.lendable_ppb(scene.policy, rate, scene.now);
        if let Some((next, grant)) =
            loans
                .clone()
                .lend(&asked, amount, most, scene.regime.timing, &us, scene.now)
        {
            loans = next;
            plan.to(&from.region).grants.push((key.clone(), grant));
        }
    }
    if loans != now.loans {
        let kept_less = loans.borrowed_at(scene.now) < now.loans.borrowed_at(scene.now);
        if kept_less {
            for statement in loans.statements(&us).into_iter().filter(|s| s.to == *from) {
                plan.to(&from.region)
                    .statements
                    .push((key.clone(), statement));
            }
        }
        plan.swap = Some(scene.loan_swap(snapshot, rate, loans));
    }
    plan
}

/// How much of the base can be lent to the asker, what it has of us already included.
fn lendable(
    scene: &Scene<'_>,
    track: &Track,
    now: &RateNow,
    loans: &Loans,
    ask: &LoanAsk,
    refusing: bool,
) -> u64 {
    let most = scene.regime.lendable_ppb(scene.policy, now.rate, scene.now);
    let need = match track.demand() {
        Some(demand) => demand::need_ppb(demand.planned(refusing), now.rate),
        // A key that nobody has used for so long that it is gone, or full again, isn't in demand.
        None if now.fresh => 0,
        None => part(now.base, now.cap.saturating_sub(now.spendable), now.cap),
    };
    // What we are using of others' comes on top of our base, so that much less of it is needed.
    let need = need.saturating_sub(loans.borrowed_at(scene.now));
    let held = part(PPB, now.held, now.rate.share(PPB).cap);
    let spare = most.min(now.base.saturating_sub(need.max(held).min(now.base)));
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
    let amount = ours.min(most.saturating_sub(others));
    let charged = loans.lent_at(scene.now) - others;
    let steady = amount.abs_diff(charged) < now.base * DEAD_BAND_PERCENT / 100;
    if steady && !refusing {
        charged.min(ask.want_ppb).min(most.saturating_sub(others))
    } else {
        amount
    }
}
