//! What to do about one key: from what its store says, what was measured, and what peers said, to the next allotment
//! and what to tell them. Pure; whoever loses the swap reads again and plans again.

use crate::message::{Ask, Trade};
use crate::track::{Answered, Mono, Track};
use apportion_core::allotment::{Allotment, LoanAsk, Loans, RowSeen, Transfers};
use apportion_core::demand::{self, Demand, WINDOW_HORIZON_MS};
use apportion_core::fence::Fence;
use apportion_core::meter::{Bucket, Meter, Reading, Rule, Terms, Window, label_at, label_bounds};
use apportion_core::schedule::{MICRO, PPB, Rate};
use apportion_core::{Actor, Algorithm, Policy, Regime, Region, StoreMs};
use apportion_store::{MeterId, Snapshot, Swap};
use std::collections::BTreeMap;

/// Steady traffic doesn't move shares by less than this, in parts per hundred of the whole.
const DEAD_BAND_PERCENT: u64 = 2;
/// What peers wanted is taken into account for so many intervals.
const WANTS_INTERVALS: u64 = 2;

/// Everything that a plan for one key rests on.
pub(crate) struct Scene<'a> {
    pub(crate) regime: &'a Regime,
    pub(crate) fence: &'a Fence,
    pub(crate) policy: &'a Policy,
    pub(crate) id: &'a MeterId,
    pub(crate) peers: &'a [Region],
    /// The present lives of the peers, as last heard.
    pub(crate) actors: &'a BTreeMap<Region, Actor>,
    pub(crate) interval_ms: u64,
    /// The store's clock at the reading.
    pub(crate) now: StoreMs,
    pub(crate) mono: Mono,
}

/// What comes of a plan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// To be swapped in before anything of `tell` is sent.
    pub(crate) swap: Option<Swap>,
    pub(crate) tell: BTreeMap<Region, Trade>,
    /// For windows: this region has nothing left.
    pub(crate) spent: bool,
}

/// What the store counted of a key, for its [`Track`]: attempts, or what was used where those aren't counted.
pub(crate) fn counted(snapshot: &Snapshot) -> u64 {
    let attempts = snapshot.traded.as_ref().map_or(0, |t| t.attempts);
    match &snapshot.meter {
        Some(Meter::Window(window)) => attempts.max(window.used),
        _ => attempts,
    }
}

/// Why a key is looked at by the region's own accord.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    /// To measure, and to give back what isn't needed.
    Tick,
    /// It is refusing, or about to.
    Urgent,
    /// The regular round: what is borrowed is asked for again.
    Round,
}

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

/// What a key's window and transfers say now.
pub(crate) struct WindowNow {
    pub(crate) transfers: Transfers,
    pub(crate) label: u64,
    pub(crate) per_ms: u64,
    pub(crate) base: u64,
    pub(crate) used: u64,
    pub(crate) left: u64,
    /// It has no rights now.
    pub(crate) closed: bool,
    /// It never will have any again.
    pub(crate) over: bool,
}

impl Plan {
    fn to(&mut self, region: &Region) -> &mut Trade {
        self.tell.entry(region.clone()).or_default()
    }
}

impl WindowNow {
    /// The demand of a window that nobody has measured: what was used of it by now.
    fn average(&self, now: StoreMs) -> Demand {
        let elapsed = now.since(label_bounds(self.label, self.per_ms).0).max(1);
        let average = u128::from(self.used) * u128::from(MICRO) * 1_000 / u128::from(elapsed);
        let average = u64::try_from(average).unwrap_or(u64::MAX);
        Demand {
            fast: average,
            slow: average,
        }
    }
}

impl Scene<'_> {
    fn us(&self) -> Actor {
        self.regime.actor()
    }

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

    fn swap(
        &self,
        snapshot: &Snapshot,
        rule: Rule,
        terms: Terms,
        allotment: Allotment,
        keep: StoreMs,
    ) -> Swap {
        Swap {
            fence: *self.fence,
            id: self.id.clone(),
            rule,
            expect: snapshot.traded.as_ref().map_or(0, |t| t.version),
            terms,
            allotment: allotment.to_bytes(),
            keep_until: keep,
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

    fn transfer_swap(&self, snapshot: &Snapshot, w: &WindowNow, transfers: Transfers) -> Swap {
        let terms = Regime::transfer_terms(&transfers);
        let keep = Regime::window_keep_until(w.label, w.per_ms);
        self.swap(
            snapshot,
            self.regime.rule(self.policy),
            terms,
            Allotment::Transfers(transfers),
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

    pub(crate) fn window_now(&self, per_ms: u64, snapshot: &Snapshot) -> WindowNow {
        let label = self.id.label.unwrap_or_else(|| label_at(self.now, per_ms));
        let transfers = match stored(snapshot) {
            Some(Allotment::Transfers(transfers)) => transfers,
            _ => Transfers::default(),
        };
        let rule = self.regime.rule(self.policy);
        let meter = match &snapshot.meter {
            Some(Meter::Window(window)) => Some(window),
            _ => None,
        };
        let terms = snapshot.traded.as_ref().and_then(|t| t.terms.as_ref());
        let settled = Window::settle(meter, label, &rule, terms, self.fence, self.now);
        let end = label_bounds(label, per_ms).1;
        let over = end <= self.now.max(self.fence.closed_before);
        WindowNow {
            transfers,
            label,
            per_ms,
            base: rule.window_base(label),
            used: settled.window.used,
            left: settled.reading.available(),
            closed: settled.closed || over,
            over,
        }
    }

    /// The time that rights of this window are planned for: a while of the present one, all of a later one.
    fn horizon_ms(&self, w: &WindowNow) -> u64 {
        let (start, end) = label_bounds(w.label, w.per_ms);
        if start > self.now {
            w.per_ms
        } else {
            end.since(self.now).min(WINDOW_HORIZON_MS)
        }
    }
}

fn stored(snapshot: &Snapshot) -> Option<Allotment> {
    let traded = snapshot.traded.as_ref().filter(|t| t.version > 0)?;
    Allotment::from_bytes(&traded.allotment).ok()
}

/// How long it takes the budget to admit several requests: over that, falling demand is believed.
pub(crate) fn slow_ms(policy: &Policy) -> u64 {
    let (limit, per_ms) = match policy.algorithm {
        Algorithm::TokenBucket { limit, per_ms, .. } | Algorithm::FixedWindow { limit, per_ms } => {
            (limit, per_ms)
        }
    };
    (per_ms.saturating_mul(8) / limit.max(1)).clamp(2_000, 15_000)
}

// === the region's own accord ===

/// Looks after a key: gives back what isn't needed, asks for what is.
pub(crate) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    occasion: Occasion,
) -> Plan {
    match scene.policy.algorithm {
        Algorithm::TokenBucket { .. } => survey_rate(scene, track, snapshot, occasion),
        Algorithm::FixedWindow { per_ms, .. } => {
            survey_window(scene, track, snapshot, occasion, per_ms)
        }
    }
}

fn survey_rate(
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

fn survey_window(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    occasion: Occasion,
    per_ms: u64,
) -> Plan {
    let w = scene.window_now(per_ms, snapshot);
    let mut plan = Plan {
        spent: w.left == 0,
        ..Plan::default()
    };
    if occasion != Occasion::Tick {
        for row in w.transfers.unconfirmed(&scene.us()) {
            let to = row.to.region.clone();
            plan.to(&to).rows.push((scene.id.clone(), row));
        }
    }
    if w.closed {
        return plan;
    }
    let refusing = track.is_refusing(scene.mono);
    let ahead = label_bounds(w.label, per_ms).0 > scene.now;
    let horizon = scene.horizon_ms(&w);
    let need = match track.demand() {
        Some(demand) => demand::need_units(demand.planned(false), horizon),
        None if refusing => (w.base / 2).max(track.attempts()),
        None => 0,
    };
    let need = if refusing && !ahead {
        need.max(w.left + 1)
    } else {
        need
    };
    let want = need.saturating_sub(w.left);
    if want == 0 || (occasion == Occasion::Tick && !refusing) || !track.may_ask(scene.mono) {
        return plan;
    }
    let dry = track.is_dry(scene.peers);
    for peer in scene.peers {
        plan.to(peer).asks.push(Ask {
            id: scene.id.clone(),
            asked_at: scene.now,
            want,
            recall: 0,
            refusing: refusing && !ahead,
            last_resort: dry,
        });
    }
    if !ahead {
        track.asking(scene.mono, scene.interval_ms);
    }
    plan
}

/// The next window's meter, where it is time to balance it ahead.
pub(crate) fn ahead(
    policy: &Policy,
    id: &MeterId,
    now: StoreMs,
    interval_ms: u64,
) -> Option<MeterId> {
    let Algorithm::FixedWindow { per_ms, .. } = policy.algorithm else {
        return None;
    };
    let label = id.label.filter(|label| *label == label_at(now, per_ms))?;
    let (_, end) = label_bounds(label, per_ms);
    let near = end.since(now) <= interval_ms.saturating_mul(2);
    near.then(|| MeterId {
        key: id.key.clone(),
        label: Some(label + 1),
    })
}

// === what a peer said ===

/// Takes in what `from` said of this key, and answers its ask.
pub(crate) fn answer(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    from: &Actor,
    epoch: apportion_core::Epoch,
    said: &Trade,
) -> Plan {
    match scene.policy.algorithm {
        Algorithm::TokenBucket { .. } => answer_rate(scene, track, snapshot, from, epoch, said),
        Algorithm::FixedWindow { per_ms, .. } => {
            answer_window(scene, track, snapshot, from, said, per_ms)
        }
    }
}

fn answer_rate(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    from: &Actor,
    epoch: apportion_core::Epoch,
    said: &Trade,
) -> Plan {
    let mut plan = Plan::default();
    let Some(rate) = scene.rate() else {
        return plan;
    };
    let now = scene.rate_now(rate, snapshot);
    let us = scene.us();
    let key = &scene.id.key;
    let mut loans = now.loans.clone();
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

fn answer_window(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    from: &Actor,
    said: &Trade,
    per_ms: u64,
) -> Plan {
    let w = scene.window_now(per_ms, snapshot);
    let mut plan = Plan {
        spent: w.left == 0,
        ..Plan::default()
    };
    let us = scene.us();
    let mut transfers = w.transfers.clone();
    let mut left = w.left;
    let mut brought = false;
    for (_, seen) in said
        .seen
        .iter()
        .filter(|(id, s)| id == scene.id && s.to == *from)
    {
        transfers = transfers.clone().confirm(&us, seen).unwrap_or(transfers);
    }
    for (_, row) in said
        .rows
        .iter()
        .filter(|(id, r)| id == scene.id && r.from == *from && r.to == us)
    {
        let had = transfers.received_units();
        if !w.closed
            && let Some(next) = transfers.clone().take_in(&us, row)
        {
            transfers = next;
            let more = transfers.received_units() - had;
            left += more;
            brought = true;
        }
        // A row of a window that is over is of no more use, but mustn't be sent for ever.
        let units = if w.over {
            row.units
        } else {
            received_from(&transfers, from)
        };
        plan.to(&from.region).seen.push((
            scene.id.clone(),
            RowSeen {
                from: from.clone(),
                to: us.clone(),
                units,
            },
        ));
    }
    for (_, theirs) in said.left.iter().filter(|(id, _)| id == scene.id) {
        let answer = match (brought, *theirs) {
            (true, _) => Answered::Brought,
            (false, 0) => Answered::UsedUp,
            (false, _) => Answered::Nothing,
        };
        track.answered(&from.region, answer, scene.mono);
    }
    for ask in said.asks.iter().filter(|a| a.id == *scene.id) {
        if w.closed || scene.actors.get(&from.region) != Some(from) {
            continue;
        }
        track.note_ask(&from.region, ask.want, scene.mono);
        let units = sparable(scene, track, &w, left, ask);
        if units > 0
            && let Some((next, row)) = transfers.clone().give(&us, from, units, ask.asked_at)
        {
            transfers = next;
            left -= units;
            plan.to(&from.region).rows.push((scene.id.clone(), row));
        }
        plan.to(&from.region).left.push((scene.id.clone(), left));
    }
    plan.spent = left == 0;
    if transfers != w.transfers {
        plan.swap = Some(scene.transfer_swap(snapshot, &w, transfers));
    }
    plan
}

fn received_from(transfers: &Transfers, from: &Actor) -> u64 {
    transfers
        .received
        .iter()
        .filter(|r| r.from == *from)
        .map(|r| r.units)
        .sum()
}

/// How many of the `left` rights of a window can be given to the asker.
fn sparable(scene: &Scene<'_>, track: &Track, w: &WindowNow, left: u64, ask: &Ask) -> u64 {
    let horizon = scene.horizon_ms(w);
    let ours = track.demand().unwrap_or_else(|| w.average(scene.now));
    let keep = demand::need_units(ours.planned(ask.refusing), horizon);
    let floor = demand::floor_units(w.base);
    let spare = left.saturating_sub(keep.max(floor));
    if ask.refusing && ask.last_resort && spare == 0 && ours.fast == 0 {
        return ask.want.min(left);
    }
    // Rights are given for good: by halves, unless somebody is being refused.
    ask.want.min(if ask.refusing {
        spare
    } else {
        spare.div_ceil(2)
    })
}
