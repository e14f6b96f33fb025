//! What is told to peers and heard from them, for policies whose tolerance goes by it.

use super::data::Data;
use crate::op::{Charge, EndHolds, Heard, MeterId};
use apportion_core::StoreMs;
use apportion_core::fence::{Fence, SPAN_MS};
use apportion_core::meter::{Beside, Rule, Settled, Slack};
use apportion_core::tally::Tally;

/// Counts what this store's own actor admitted.
pub(super) fn count(data: &mut Data, id: &MeterId, charge: &Charge, now: StoreMs) {
    let rule = &charge.rule;
    if !rule.is_told() || charge.units == 0 {
        return;
    }
    let mut tally = data.tally(id, &None).unwrap_or_else(|| Tally::new(now));
    tally.count(charge.units, now, rule.tally_cell_ms());
    data.put_tally(id, None, tally, deadline(rule, id, now));
}

fn deadline(rule: &Rule, id: &MeterId, now: StoreMs) -> StoreMs {
    now.plus(rule.tally_ttl_ms(id.label, now)).plus(SPAN_MS)
}

/// Takes in what an actor said, once. Returns the units that were beyond the limit, by what is known.
pub(super) fn hear(data: &mut Data, heard: &Heard, fence: &Fence, now: StoreMs) -> u64 {
    let Heard {
        id,
        rule,
        actor,
        told,
    } = heard;
    let actor = Some(actor.clone());
    let last = data.tally(id, &actor);
    let more = last.map_or(Some(told.units), |last| last.more_in(told));
    let Some(more) = more.filter(|_| rule.is_told()) else {
        return 0;
    };
    data.put_tally(id, actor, Tally::heard(told), deadline(rule, id, now));
    let mut rule = rule.known();
    let own = heard.rule.slack == Slack::Known;
    let stored = match own {
        true => data.meter(id),
        false => data.beside(id).known,
    };
    // Whatever plan this node makes of it, it is charged under that of its last request.
    if let Some(limits) = stored.and_then(|m| m.limits).filter(|_| rule.by_plan) {
        rule = Rule { limits, ..rule }.known();
    }
    let debit = rule.debit(more, told.recent);
    let mut known = Settled::new(stored, id.label, &rule, None, fence, now);
    let beyond = known.debit(debit, 0, None);
    if debit > 0 {
        match own {
            true => super::put_settled(data, id, known, now),
            false => put_known(data, id, known, now),
        }
    }
    beyond.div_ceil(rule.unit())
}

pub(super) fn put_known(data: &mut Data, id: &MeterId, known: Settled<'_>, now: StoreMs) {
    if known.is_kept() {
        let keep = known.keep();
        data.put_known(id.clone(), known.meter, now, keep);
    }
}

/// Ends a hold in what stands beside the meter. Whether any of it was drawn on the overdraft.
pub(super) fn end_beside(
    data: &mut Data,
    id: &MeterId,
    end: &EndHolds,
    charge: &Charge,
    now: StoreMs,
) -> bool {
    let Some(rules) = charge.rule.beside() else {
        return false;
    };
    let stored = data.beside(id);
    let limits = (
        stored.overdraft.and_then(|m| m.limits),
        stored.known.and_then(|m| m.limits),
    );
    let Beside {
        mut overdraft,
        mut known,
    } = Beside::<Settled<'_>>::settle(&rules, stored, id.label, &end.fence, now);
    (overdraft.meter.limits, known.meter.limits) = limits;
    let found = overdraft.end_hold(end.id, end.release);
    if found {
        let keep = overdraft.keep();
        data.put_overdraft(id.clone(), overdraft.meter, now, keep);
    }
    if known.end_hold(end.id, end.release) {
        put_known(data, id, known, now);
    }
    found
}
