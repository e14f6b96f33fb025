//! Windows: rights of one label, asked for and given for good.

use super::{Occasion, Plan, Scene, Told};
use crate::message::{Ask, Trade};
use crate::track::{Answered, Track};
use apportion_core::allotment::{Allotment, RowSeen, Transfers};
use apportion_core::demand::{self, WINDOW_HORIZON_MS};
use apportion_core::fence::GIVEN_AHEAD_MS;
use apportion_core::meter::{Rule, Settled};
use apportion_core::planted::{self, Bug};
use apportion_core::schedule::MICRO;
use apportion_core::{Actor, Algorithm, Period, Policy, Regime, StoreMs};
use apportion_store::{MeterId, Snapshot, Swap};
use std::sync::Arc;

/// What a key's window and transfers say now.
pub(crate) struct WindowNow {
    pub(crate) rule: Arc<Rule>,
    pub(crate) transfers: Transfers,
    pub(crate) label: u64,
    pub(crate) period: Period,
    pub(crate) base: u64,
    pub(crate) used: u64,
    pub(crate) left: u64,
    /// It has no rights now.
    pub(crate) closed: bool,
    /// It never will have any again.
    pub(crate) over: bool,
}

impl WindowNow {
    /// The demand of a window that nobody has measured: what was used of it by now, in micro-units a second.
    fn average(&self, now: StoreMs) -> u64 {
        let elapsed = now.since(self.period.bounds(self.label).0).max(1);
        let average = u128::from(self.used) * u128::from(MICRO) * 1_000 / u128::from(elapsed);
        u64::try_from(average).unwrap_or(u64::MAX)
    }
}

impl Scene<'_> {
    fn transfer_swap(&self, snapshot: &Snapshot, w: &WindowNow, transfers: Transfers) -> Swap {
        let terms = Regime::transfer_terms(&transfers);
        let keep = Regime::window_keep_until(w.label, w.period);
        let allotment = Allotment::Transfers(transfers);
        self.swap(snapshot, &w.rule, terms, allotment, keep)
    }

    pub(crate) fn window_now(
        &self,
        period: Period,
        snapshot: &Snapshot,
        stored: Option<Allotment>,
        told: Told,
    ) -> WindowNow {
        let label = self.id.label.unwrap_or_else(|| period.label(self.now));
        let transfers = match stored {
            Some(Allotment::Transfers(transfers)) => transfers,
            _ => Transfers::default(),
        };
        let rule = self.rule(self.limits(snapshot, told));
        let terms = snapshot.traded.as_ref().and_then(|t| t.terms.as_ref());
        let meter = snapshot.meter.as_ref();
        let settled = Settled::new(meter, Some(label), &rule, terms, self.fence, self.now);
        let (used, left, closed) = (settled.counted(), settled.available(), settled.closed);
        let over = period.bounds(label).1 <= self.now.max(self.fence.closed_before);
        WindowNow {
            transfers,
            label,
            period,
            base: rule.window_base(label),
            used,
            left,
            closed: closed || over,
            over,
            rule,
        }
    }

    /// The time that rights of this window are planned for: a while of the present one, all of a later one.
    fn horizon_ms(&self, w: &WindowNow) -> u64 {
        let (start, end) = w.period.bounds(w.label);
        if start > self.now {
            end.since(start)
        } else {
            end.since(self.now).min(WINDOW_HORIZON_MS)
        }
    }
}

pub(super) fn survey(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    stored: Option<Allotment>,
    occasion: Occasion,
    period: Period,
) -> Plan {
    let told = Told {
        asked: None,
        seen: track.limits,
    };
    let w = scene.window_now(period, snapshot, stored, told);
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
    let ahead = period.bounds(w.label).0 > scene.now;
    let horizon = scene.horizon_ms(&w);
    let need = match track.measured() {
        Some(per_second) => demand::need_units(per_second, horizon),
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
            keep: None,
            refusing: refusing && !ahead,
            last_resort: dry,
            limits: scene.named_limits(snapshot, told),
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
    let Algorithm::FixedWindow { period } = policy.algorithm else {
        return None;
    };
    let label = id.label.filter(|label| *label == period.label(now))?;
    let (_, end) = period.bounds(label);
    let near = end.since(now) <= interval_ms.saturating_mul(2);
    near.then(|| MeterId {
        key: id.key.clone(),
        label: Some(label + 1),
    })
}

pub(super) fn answer(
    scene: &Scene<'_>,
    track: &mut Track,
    snapshot: &Snapshot,
    stored: Option<Allotment>,
    from: &Actor,
    said: &Trade,
    period: Period,
) -> Plan {
    let told = Told {
        asked: said.limits_of(scene.id),
        seen: track.limits,
    };
    let w = scene.window_now(period, snapshot, stored, told);
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
        .filter(|(id, r)| id == scene.id && r.from == *from)
        .filter(|(_, r)| r.to == us || planted::is_on(Bug::OlderLifeRow))
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
        let is_far = period.bounds(w.label).0 > scene.now.plus(GIVEN_AHEAD_MS);
        if w.closed || is_far || scene.actors.get(&from.region) != Some(from) {
            continue;
        }
        track.touched_at = scene.mono;
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
    let ours = track.measured().unwrap_or_else(|| w.average(scene.now));
    let keep = demand::need_units(ours, horizon);
    let floor = demand::floor_units(w.base);
    let spare = left.saturating_sub(keep.max(floor));
    if ask.refusing && ask.last_resort && spare == 0 && ours == 0 {
        return ask.want.min(left);
    }
    // Rights are given for good: by halves, unless somebody is being refused.
    ask.want.min(if ask.refusing {
        spare
    } else {
        spare.div_ceil(2)
    })
}
