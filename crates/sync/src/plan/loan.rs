//! Loans of rates and sliding windows: parts of a share, asked for, lent and given back.
//!
//! Two things bind a share from below: what is held, and what a sliding window still counts. A region that counts more
//! than its share, since a loan has ended, is within its rights: its lender goes without for as long as that counts. But
//! it neither lends nor says that it has given anything back until it counts no more than it has.

use super::{Occasion, Plan, Scene, Told};
use crate::message::{Ask, Trade};
use crate::track::{Answered, Open, Track};
use apportion_core::allotment::{Allotment, Credit, LoanAsk, Loans};
use apportion_core::demand;
use apportion_core::division::{Claim, divide, max_min};
use apportion_core::fence::{HOLD_MAX_MS, SPAN_MS};
use apportion_core::meter::{Rule, Settled, State, Terms};
use apportion_core::planted::{self, Bug};
use apportion_core::schedule::{MICRO, PPB};
use apportion_core::{Actor, Epoch, Region, StoreMs};
use apportion_store::{Snapshot, Swap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shares aren't moved by less than this, in parts per billion of the whole.
const DEAD_BAND_PPB: u64 = PPB / 200;
/// A region is short where its share is less than so much of its demand, in parts per thousand, and others can give.
const SHORT_PERMILLE: u64 = 1_020;
/// It has too much where nobody else is short and its share is more than this.
const AMPLE_PERMILLE: u64 = 1_600;
/// An ask that wasn't answered to the full stays open for so many intervals: what comes free meanwhile goes to it.
const OPEN_INTERVALS: u64 = 2;
/// A loan that only a window still counts on is kept up, so that it can be given back bit by bit, where that is a
/// matter of minutes. Where it takes longer it isn't worth a word every round: it ends, and its lender waits.
const KEPT_UP_MS: u64 = 600_000;

/// More is told of no demand.
const DEMAND_MAX_PPB: u64 = 1_000 * PPB;

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
    /// It gives nothing yet, whatever its share: nothing is borrowed for it.
    blocked: bool,
    /// No loan of a window ends while a plan is carried out. If one did, a share could be lowered unseen: at the swap it
    /// would look raised.
    steady: bool,
}

impl Scene<'_> {
    fn loan_swap(&self, snapshot: &Snapshot, rule: &Arc<Rule>, loans: Loans) -> Swap {
        let terms = self.regime.loan_terms(self.policy, &loans, self.now);
        // Longer than any meter that was written while these loans stood. A bucket without its terms would be refilled at
        // the base share for time in which that was lent; a window, after a clock has leapt ahead, would have it at once.
        let meter_ms = match &terms {
            Terms::Loans { shares, .. } if self.policy.algorithm.is_bucket() => {
                let flow = rule.rate().share(shares.last().ppb);
                flow.fill_ms().max(rule.fill_ms)
            }
            _ => self.policy.algorithm.counts_ms(),
        };
        let ends_at = loans.ends_at(self.linger_ms()).max(self.now);
        let keep = ends_at.plus(meter_ms + HOLD_MAX_MS + SPAN_MS);
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
        loans.share_at(base, floor, lent_all, self.now)
    }

    pub(crate) fn loan_now(
        &self,
        snapshot: &Snapshot,
        stored: Option<Allotment>,
        told: Told,
    ) -> LoanNow {
        let loans = match stored {
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

/// What is known of the demand for a key here and elsewhere, and the share that is due to each region by that.
struct Outlook<'a> {
    /// Parts per billion of the budget. `None` where it isn't measured yet.
    demand: Option<u64>,
    /// Of each region's share, what serves its demand. A region that said nothing asks if it is short.
    due: BTreeMap<&'a Region, u64>,
    /// This region's own part of them.
    ours: u64,
    is_measured: bool,
}

impl Scene<'_> {
    fn outlook(&self, track: &Track, snapshot: &Snapshot, now: &LoanNow) -> Outlook<'_> {
        let measured = track.measured();
        let demand = match measured {
            Some(per_second) => Some(demand::demand_ppb(per_second, now.rule.rate())),
            // A key that nobody has used for so long that it is gone, or full again, isn't in demand.
            None if now.fresh => Some(0),
            None => match &snapshot.traded {
                None => Some(part(now.base, now.used, now.of)),
                Some(traded) => (traded.version > 0 && traded.attempts == 0).then_some(0),
            },
        };
        // What isn't measured yet is taken to be served as it is.
        let ours = demand.unwrap_or(now.share);
        let due = self.divide(track, ours, &now.rule);
        let own = due.get(&self.regime.state.region).copied().unwrap_or(0);
        Outlook {
            demand,
            ours: if demand.is_some() { own } else { now.share },
            due,
            is_measured: measured.is_some(),
        }
    }

    /// Divides the budget by what is known of all demands, `ours` being the one here.
    fn divide(&self, track: &Track, ours: u64, rule: &Rule) -> BTreeMap<&Region, u64> {
        let us = &self.regime.state.region;
        let (own_base, _) = self.regime.base_and_floor(self.policy);
        let of_peers = self.peers.iter().map(|peer| {
            let demand = track.heard(peer, self.mono).unwrap_or(0);
            (peer, self.policy.base_ppb(peer), demand)
        });
        let all: Vec<(&Region, u64, u64)> = std::iter::once((us, own_base, ours))
            .chain(of_peers)
            .collect();
        let total = all
            .iter()
            .fold(0u64, |sum, (_, _, d)| sum.saturating_add(*d));
        let permille = demand::headroom_permille(total);
        let claim = |(region, base, demand): (_, u64, u64)| {
            let floor = demand::floor_ppb(base, rule.limits.burst);
            let want = demand::with_headroom(demand, permille).max(floor).min(PPB);
            (region, Claim { base, want })
        };
        let claims: BTreeMap<&Region, Claim> = all.into_iter().map(claim).collect();
        let mut due = divide(&claims);
        // What is left over is anybody's who asks for it.
        for (region, part) in &mut due {
            *part = claims[region].want.min(*part);
        }
        due
    }

    fn open_ms(&self) -> u64 {
        self.interval_ms * OPEN_INTERVALS
    }
}

pub(super) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    stored: Option<Allotment>,
    occasion: Occasion,
) -> Plan {
    let mut plan = Plan::default();
    let told = Told {
        asked: None,
        seen: track.limits,
    };
    let now = scene.loan_now(snapshot, stored, told);
    if now.blocked {
        return plan;
    }
    let outlook = scene.outlook(track, snapshot, &now);
    let refusing = track.is_refusing(scene.mono);
    let mut loans = give_back(scene, track, &now, &outlook, now.loans.clone());
    let kept_less = loans != now.loans;
    serve(scene, track, &now, &outlook, &mut loans, &mut plan, None);
    if loans != now.loans {
        plan.swap = Some(scene.loan_swap(snapshot, &now.rule, loans.clone()));
    }
    let is_true = now.least <= scene.share_with(&loans);
    if is_true && (kept_less || occasion == Occasion::Round) {
        state(scene, &loans, &mut plan);
    }
    let need = Need::of(scene, &now, &outlook, &loans, refusing, occasion);
    let kept = loans.borrowed_at(scene.now);
    let wanted = need.due > now.own || scene.policy.algorithm.counts_ms() <= KEPT_UP_MS;
    let renew = occasion == Occasion::Round && kept > 0 && wanted;
    let more = need.is_short && track.may_ask(scene.mono);
    if renew || more {
        ask(
            scene, track, snapshot, &outlook, &loans, &need, more, &mut plan,
        );
    }
    if more {
        track.asking(scene.mono, scene.interval_ms);
    }
    let is_live = kept > 0 || loans.lent_at(scene.now) > 0;
    if occasion == Occasion::Round && is_live {
        for peer in scene.peers {
            plan.to(peer);
        }
    }
    tell_demand(scene, &outlook, &mut plan);
    plan
}

/// What this region wants of the budget.
struct Need {
    /// In all.
    due: u64,
    /// Of that it lacks so much.
    lacks: u64,
    /// It lacks enough to ask for it.
    is_short: bool,
    /// Of what it has lent it needs so much back, before it borrows.
    owed: u64,
    refusing: bool,
}

impl Need {
    fn of(
        scene: &Scene<'_>,
        now: &LoanNow,
        outlook: &Outlook<'_>,
        loans: &Loans,
        refusing: bool,
        occasion: Occasion,
    ) -> Self {
        let share = scene.share_with(loans);
        let (due, is_short) = match outlook.demand {
            Some(demand) if outlook.is_measured => {
                let in_need = permille(demand, SHORT_PERMILLE);
                let floor = in_need.min(outlook.ours.saturating_sub(DEAD_BAND_PPB));
                // Whoever refuses asks all the same: what was heard of others is old by now.
                let starved = refusing && share < demand;
                let room = demand::headroom_permille(u64::MAX);
                let wish = demand::with_headroom(demand, room).min(PPB);
                let due = if starved {
                    outlook.ours.max(wish)
                } else {
                    outlook.ours
                };
                (due, share < floor || starved)
            }
            // Nothing is measured yet: double, and see.
            _ if refusing || occasion == Occasion::Urgent => {
                let due = (share * 2).clamp(PPB / 10, PPB).max(now.base);
                (due, due > share)
            }
            _ => (share, false),
        };
        let own = share.saturating_sub(loans.borrowed_at(scene.now));
        let owed = due.min(now.base).saturating_sub(own);
        let owed = owed.min(loans.lent_at(scene.now));
        Self {
            due,
            lacks: due.saturating_sub(share + owed),
            is_short,
            owed,
            refusing,
        }
    }
}

/// The loans without what is borrowed beyond need.
fn give_back(
    scene: &Scene<'_>,
    track: &Track,
    now: &LoanNow,
    outlook: &Outlook<'_>,
    mut loans: Loans,
) -> Loans {
    let borrowed = loans.borrowed_at(scene.now);
    let may = borrowed > 0 && now.steady && outlook.is_measured;
    let Some(demand) = outlook.demand.filter(|_| may) else {
        return loans;
    };
    let mut open = track.open_asks(scene.mono, scene.open_ms());
    let others_short = open.any(|open| {
        let has = loans.lent_to(&open.ask.by, open.ask.epoch, scene.now);
        open.ask.want_ppb > has + DEAD_BAND_PPB
    });
    let ample = if others_short {
        0
    } else {
        permille(demand, AMPLE_PERMILLE)
    };
    let share = scene.share_with(&loans);
    if share <= ample.max(outlook.ours + DEAD_BAND_PPB) {
        return loans;
    }
    let own = share.saturating_sub(borrowed);
    let target = outlook.ours.max(now.least).saturating_sub(own);
    if target < borrowed {
        for credit in loans.borrowed.clone() {
            let keep = part(credit.amount_ppb, target, borrowed);
            loans = loans.keep(&credit.from, keep);
        }
    }
    loans
}

/// Asks each peer for a part of what is lacking, and for what it owes.
#[expect(clippy::too_many_arguments, reason = "the whole scene")]
fn ask(
    scene: &Scene<'_>,
    track: &Track,
    snapshot: &Snapshot,
    outlook: &Outlook<'_>,
    loans: &Loans,
    need: &Need,
    more: bool,
    plan: &mut Plan,
) {
    let told = Told {
        asked: None,
        seen: track.limits,
    };
    let lent: u64 = loans.lent_at(scene.now);
    let dry = track.is_dry(scene.peers);
    let spare_of = |peer: &Region| {
        let due = outlook.due.get(peer).copied().unwrap_or(0);
        scene.policy.base_ppb(peer).saturating_sub(due)
    };
    let spare: u64 = scene.peers.iter().map(spare_of).sum();
    let all_heard = scene
        .peers
        .iter()
        .all(|peer| track.heard(peer, scene.mono).is_some());
    for peer in scene.peers {
        let credit: u64 = credit_from(loans, peer, scene.now);
        let lacks = match more {
            false => 0,
            true if all_heard && spare > 0 && !need.refusing => {
                part(need.lacks, spare_of(peer), spare)
            }
            true => need.lacks,
        };
        let want = (credit + lacks).min(PPB);
        let to_peer: u64 = loans
            .lent
            .iter()
            .filter(|d| d.to.region == *peer)
            .map(|d| d.charge_at(scene.now))
            .sum();
        let owes = part(to_peer, need.owed, lent);
        let keep = (more && owes > 0).then(|| to_peer - owes);
        if want > 0 || keep.is_some() {
            plan.to(peer).asks.push(Ask {
                id: scene.id.clone(),
                asked_at: scene.now,
                want,
                keep,
                refusing: need.refusing,
                last_resort: dry,
                limits: scene.named_limits(snapshot, told),
            });
        }
    }
}

/// Tells each lender what is kept of its loan.
fn state(scene: &Scene<'_>, loans: &Loans, plan: &mut Plan) {
    for statement in loans.statements(&scene.us(), scene.now) {
        let to = statement.to.region.clone();
        let statements = &mut plan.to(&to).statements;
        statements.push((scene.id.key.clone(), statement));
    }
}

/// Whoever is told anything of this key is told how much it is asked for here.
fn tell_demand(scene: &Scene<'_>, outlook: &Outlook<'_>, plan: &mut Plan) {
    if let Some(demand) = outlook.demand {
        for trade in plan.tell.values_mut() {
            trade.demands = vec![(scene.id.key.clone(), demand.min(DEMAND_MAX_PPB))];
        }
    }
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

fn permille(of: u64, parts: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(parts) / 1_000).unwrap_or(u64::MAX)
}

pub(super) fn answer(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    stored: Option<Allotment>,
    from: &Actor,
    epoch: Epoch,
    said: &Trade,
) -> Plan {
    let mut plan = Plan::default();
    let told = Told {
        asked: said.limits_of(scene.id),
        seen: track.limits,
    };
    let now = scene.loan_now(snapshot, stored, told);
    let us = scene.us();
    let key = &scene.id.key;
    let counts_ms = scene.policy.algorithm.counts_ms();
    for (_, demand) in said.demands.iter().filter(|(k, _)| k == key) {
        track.hear(&from.region, *demand, scene.mono);
    }
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
        if let Some(less) = loans.clone().believe(statement) {
            loans = less;
            // Whoever gives back isn't waiting for more.
            track.close_ask(&from.region);
        }
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
    let mut gave_back = false;
    for ask in said.asks.iter().filter(|a| a.id == *scene.id) {
        let credit = loans.credit_from(from, scene.now);
        let returns = credit.saturating_sub(ask.keep.unwrap_or(credit));
        let returns = returns.min(now.free(scene.share_with(&loans)));
        if returns > 0 {
            loans = loans.keep(from, credit - returns);
            gave_back = true;
        }
        let asked = LoanAsk {
            by: from.clone(),
            epoch,
            asked_at: ask.asked_at,
            want_ppb: ask.want,
        };
        track.note_ask(asked, ask.refusing, scene.mono);
    }
    let outlook = scene.outlook(track, snapshot, &now);
    if !now.blocked {
        let kept = give_back(scene, track, &now, &outlook, loans.clone());
        gave_back |= kept != loans;
        loans = kept;
        serve(
            scene,
            track,
            &now,
            &outlook,
            &mut loans,
            &mut plan,
            Some(from),
        );
    }
    let answered = plan
        .tell
        .get(&from.region)
        .is_some_and(|t| !t.grants.is_empty());
    if !said.asks.is_empty() && !answered {
        plan.to(&from.region).left.push((scene.id.clone(), 0));
    }
    if loans != now.loans {
        if gave_back && now.least <= scene.share_with(&loans) {
            state(scene, &loans, &mut plan);
        }
        plan.swap = Some(scene.loan_swap(snapshot, &now.rule, loans));
    }
    tell_demand(scene, &outlook, &mut plan);
    plan
}

/// What is borrowed isn't lent on.
fn relent(scene: &Scene<'_>, loans: &Loans) -> u64 {
    match planted::is_on(Bug::Relent) {
        true => loans.borrowed_at(scene.now),
        false => 0,
    }
}

/// Lends what can be spared to those whose asks are open. `renews`: whoever has just asked is also told that what it has
/// goes on.
fn serve(
    scene: &Scene<'_>,
    track: &mut Track,
    now: &LoanNow,
    outlook: &Outlook<'_>,
    loans: &mut Loans,
    plan: &mut Plan,
    renews: Option<&Actor>,
) {
    let open: Vec<Open> = track
        .open_asks(scene.mono, scene.open_ms())
        .filter(|open| {
            let present = scene.actors.get(&open.ask.by.region);
            present.is_none_or(|actor| *actor == open.ask.by) && loans.is_new(&open.ask)
        })
        .cloned()
        .collect();
    if open.is_empty() {
        return;
    }
    let most = scene.regime.lendable_ppb(scene.policy, scene.now) + relent(scene, loans);
    // What is borrowed beyond need is given back, and not lent on.
    let need = outlook.ours.max(now.least);
    let spare = most.min((now.base + relent(scene, loans)).saturating_sub(need));
    let weight = |region: &Region| scene.policy.weights.get(region).copied().unwrap_or(1);
    let wants: Vec<(u64, u64)> = open
        .iter()
        .map(|open| (weight(&open.ask.by.region), open.ask.want_ppb))
        .collect();
    let dealt = max_min(spare, &wants);
    let counts_ms = scene.policy.algorithm.counts_ms();
    let reclaim_ms = scene.regime.timing.reclaim_ms(counts_ms);
    for (Open { ask, .. }, dealt) in open.into_iter().zip(dealt) {
        let charged = loans.lent_to(&ask.by, ask.epoch, scene.now);
        let others = loans.lent_at(scene.now) - charged;
        // What it has already costs nothing more; what comes on top is taken from the share in force.
        let room = charged + now.free(scene.share_with(loans));
        let room = room.min(spare.saturating_sub(others).max(charged));
        let room = room.min(most.saturating_sub(others));
        let amount = dealt.min(room);
        let is_more =
            amount > charged + DEAD_BAND_PPB || (amount > charged && amount == ask.want_ppb);
        let is_due =
            charged > 0 && renews == Some(&ask.by) && is_old(loans, &ask, reclaim_ms, scene);
        // What is needed here after all is asked back, not granted less of: a grant lowers nobody's charge.
        let amount = match (is_more, is_due) {
            (true, _) => amount,
            (false, true) => charged.min(ask.want_ppb).min(room),
            (false, false) => continue,
        };
        let lent = loans
            .clone()
            .lend(&ask, amount, most, reclaim_ms, &scene.us(), scene.now);
        if let Some((next, grant)) = lent {
            *loans = next;
            let to = &ask.by.region;
            plan.to(to).grants.push((scene.id.key.clone(), grant));
            if amount >= ask.want_ppb {
                track.close_ask(to);
            }
        }
    }
}

/// Whether the asker's loan is to be renewed: it has one, and the newest grant wasn't made just now.
fn is_old(loans: &Loans, ask: &LoanAsk, reclaim_ms: u64, scene: &Scene<'_>) -> bool {
    let debtor = loans
        .lent
        .iter()
        .find(|d| d.to == ask.by && d.epoch == ask.epoch);
    let newest = debtor.and_then(|d| d.grants.iter().map(|g| g.reclaim_at).max());
    newest.is_some_and(|at| at <= scene.now.plus(reclaim_ms - scene.interval_ms / 2))
}
