//! Shares that follow demand: who asks, who lends, who gives back, and when nobody moves.

use super::*;
use apportion_core::allotment::{LoanGrant, Statement};

const SHARE: u64 = PPB / 3;

/// A demand of so many units a second, as it was for three seconds.
fn in_demand(per_second: u64) -> Track {
    let mut track = Track::new(0);
    for i in 0..=12u64 {
        track.sample(i * 250, StoreMs(i * 250), i * per_second / 4);
    }
    track
}

fn heard(mut track: Track, here: &Here, demands_ppb: [u64; 2]) -> Track {
    for (peer, ppb) in here.peers.iter().zip(demands_ppb) {
        track.hear(peer, ppb, 3_000);
    }
    track
}

/// `share` borrowed of peer b.
fn borrowing(here: &Here, id: &MeterId, ppb: u64) -> Snapshot {
    let loans = Loans {
        epoch: Epoch(1),
        ..Loans::default()
    };
    let grant = LoanGrant {
        by: here.b(),
        by_epoch: Epoch(1),
        to: here.regime.actor(),
        to_epoch: Epoch(1),
        asked_at: NOW.minus(10),
        amount_ppb: ppb,
    };
    let us = here.regime.actor();
    let taken = loans.take_up(&grant, here.regime.timing, &us, NOW);
    stored_as(here, id, taken.expect("it is ours"))
}

/// `ppb` lent to peer b.
fn lending(here: &Here, id: &MeterId, ppb: u64) -> Snapshot {
    let loans = Loans {
        epoch: Epoch(1),
        ..Loans::default()
    };
    let ask = LoanAsk {
        by: here.b(),
        epoch: Epoch(1),
        asked_at: NOW.minus(10),
        want_ppb: ppb,
    };
    let us = here.regime.actor();
    let lent = loans.lend(&ask, ppb, PPB, 35_010, &us, NOW.minus(5_000));
    stored_as(here, id, lent.expect("it is lendable").0)
}

fn stored_as(here: &Here, id: &MeterId, loans: Loans) -> Snapshot {
    let scene = here.scene(id, 3_000);
    let terms = here.regime.loan_terms(scene.policy, &loans, NOW);
    let traded = Traded {
        version: 1,
        terms: Some(terms),
        allotment: Allotment::Loans(loans).to_bytes(),
        attempts: 1,
    };
    Snapshot {
        traded: Some(traded),
        ..meter(State::Bucket { tokens: 0, at: NOW }, None)
    }
}

fn share_after(plan: &Plan, here: &Here, id: &MeterId) -> u64 {
    let swap = plan.swap.as_ref().expect("something changes");
    let loans = match Allotment::from_bytes(&swap.allotment) {
        Ok(Allotment::Loans(loans)) => loans,
        other => panic!("not loans: {other:?}"),
    };
    let scene = here.scene(id, 3_000);
    let (base, floor) = here.regime.base_and_floor(scene.policy);
    loans.shares(base, floor, None, NOW)[0].1
}

#[test]
fn a_share_that_serves_its_demand_is_left_alone() {
    let here = here();
    let id = here.id("rate");
    // 2.6 of the 10 a second of the budget, and a third of it is in force: more than enough, and less than too much.
    let mut track = heard(in_demand(4), &here, [PPB / 4, PPB / 4]);
    let known = borrowing(&here, &id, PPB / 10);
    for occasion in [Occasion::Tick, Occasion::Urgent] {
        let plan = survey(&here.scene(&id, 3_000), &mut track, &known, occasion);
        assert!(plan.swap.is_none() && plan.tell.is_empty(), "{occasion:?}");
    }
}

#[test]
fn a_region_short_of_its_demand_asks_for_it_with_room_and_says_how_much_it_is() {
    let here = here();
    let id = here.id("rate");
    let mut track = in_demand(4);
    let known = lending(&here, &id, 0);
    let plan = survey(&here.scene(&id, 3_000), &mut track, &known, Occasion::Tick);
    let told = &plan.tell[&here.peers[0]];
    // 4 a second and a quarter more, less the third that it has.
    assert_eq!(told.asks[0].want, PPB / 2 - SHARE - 1);
    assert_eq!(told.demands, vec![(id.key.clone(), 400_000_000)]);
}

#[test]
fn what_was_lent_is_asked_back_before_anything_is_borrowed() {
    let here = here();
    let id = here.id("rate");
    let mut track = in_demand(3);
    let known = lending(&here, &id, PPB / 5);
    let plan = survey(&here.scene(&id, 3_000), &mut track, &known, Occasion::Tick);
    let ask = &plan.tell[&here.peers[0]].asks[0];
    let base = here.policy("rate").base_ppb(&Region::new("a"));
    assert_eq!(ask.keep, Some(0), "all of it is needed here");
    assert_eq!(ask.want, 375_000_000 - base, "and what is beyond the base");
}

#[test]
fn a_recall_that_comes_twice_is_obeyed_once() {
    let here = here();
    let id = here.id("rate");
    let known = borrowing(&here, &id, PPB / 5);
    let mut said = asks(&id, 0, true, false);
    said.asks[0].keep = Some(PPB / 10);
    let recalled = |known: &Snapshot| {
        let mut track = in_demand(5);
        let scene = here.scene(&id, 3_000);
        answer(&scene, &mut track, known, &here.b(), Epoch(1), &said)
    };
    let plan = recalled(&known);
    let statement = &plan.tell[&here.peers[0]].statements[0].1;
    assert_eq!(statement.keep_ppb, PPB / 10);
    let known = Snapshot {
        traded: after(&plan),
        ..known
    };
    assert!(recalled(&known).swap.is_none());
}

#[test]
fn an_ask_stays_open_until_something_comes_free() {
    let here = here();
    let id = here.id("rate");
    let mut track = in_demand(40);
    let known = lending(&here, &id, 0);
    let ask = asks(&id, PPB / 2, true, false);
    let scene = here.scene(&id, 3_000);
    let plan = answer(&scene, &mut track, &known, &here.b(), Epoch(1), &ask);
    assert_eq!(plan.tell[&here.peers[0]].left, vec![(id.clone(), 0)]);
    // The demand here stops, and nobody says anything.
    track.sample(4_000, StoreMs(4_000), 120);
    let plan = survey(&here.scene(&id, 4_000), &mut track, &known, Occasion::Tick);
    let grant = &plan.tell[&here.peers[0]].grants[0].1;
    assert!(grant.amount_ppb > PPB / 4, "{grant:?}");
    assert_eq!(grant.asked_at, NOW, "it answers that ask");
}

#[test]
fn what_is_borrowed_beyond_need_goes_back_at_once_where_another_waits() {
    let here = here();
    let id = here.id("rate");
    // Two a second need a fourth; more than half is in force, which is left alone while nobody waits.
    let known = borrowing(&here, &id, PPB / 10);
    let mut track = in_demand(4);
    let tick = |track: &mut Track| survey(&here.scene(&id, 3_000), track, &known, Occasion::Tick);
    assert!(tick(&mut track).swap.is_none());
    let ask = LoanAsk {
        by: here.actors[&here.peers[1]].clone(),
        epoch: Epoch(1),
        asked_at: NOW,
        want_ppb: PPB / 2,
    };
    track.note_ask(ask, true, 3_000);
    track.hear(&here.peers[1], PPB, 3_000);
    let plan = tick(&mut track);
    let kept = share_after(&plan, &here, &id);
    assert!(kept < SHARE + PPB / 10, "{kept}");
    assert!(kept >= 4 * PPB / 10, "it keeps what it needs: {kept}");
    let to_lender = &plan.tell[&here.peers[0]];
    assert_eq!(to_lender.statements.len(), 1);
}

#[test]
fn what_comes_back_goes_on_to_the_region_that_waits() {
    let here = here();
    let id = here.id("rate");
    let known = lending(&here, &id, SHARE - 7_000_000);
    let mut track = idle();
    let waits = LoanAsk {
        by: here.actors[&here.peers[1]].clone(),
        epoch: Epoch(1),
        asked_at: NOW,
        want_ppb: PPB,
    };
    track.note_ask(waits, true, 3_000);
    let statement = Statement {
        by: here.b(),
        epoch: Epoch(1),
        to: here.regime.actor(),
        up_to: NOW,
        keep_ppb: 0,
    };
    let said = Trade {
        statements: vec![(id.key.clone(), statement)],
        ..Trade::default()
    };
    let scene = here.scene(&id, 3_000);
    let plan = answer(&scene, &mut track, &known, &here.b(), Epoch(1), &said);
    let grants = &plan.tell[&here.peers[1]].grants;
    assert!(grants[0].1.amount_ppb > SHARE - PPB / 100, "{grants:?}");
}

#[test]
fn nobody_lends_more_in_all_than_it_can_spare() {
    let here = here();
    let id = here.id("rate");
    // Half of the base is needed here; the other half is lent already.
    let track = || heard(in_demand(2), &here, [PPB, PPB]);
    let spare = here.policy("rate").base_ppb(&Region::new("a")) - 204_000_000;
    let known = lending(&here, &id, spare);
    let ask = asks(&id, PPB / 2, true, false);
    let scene = here.scene(&id, 3_000);
    let c = here.actors[&here.peers[1]].clone();
    let plan = answer(&scene, &mut track(), &known, &c, Epoch(1), &ask);
    assert!(plan.swap.is_none(), "{:?}", plan.tell);
}
