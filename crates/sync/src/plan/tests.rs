//! What a region does about one key, each rule on its own.

mod follow;
mod sliding;

use super::*;
use crate::message::Ask;
use apportion_core::allotment::{LoanAsk, Loans, RowSeen, Timing, Transfers};
use apportion_core::fence::{HOLD_MAX_MS, Missing, Span};
use apportion_core::lives::{OnEmpty, RegionState};
use apportion_core::meter::Meter;
use apportion_core::schedule::{MICRO, PPB};
use apportion_core::{Attributes, Epoch, Key, Life, PolicySet};
use apportion_store::Traded;
use std::sync::Arc;

const NOW: StoreMs = StoreMs(1_800_000_000_000);
const POLICIES: &str = r#"
regions = ["a", "b", "c"]
[[policy]]
name = "day"
key = ["tenant"]
algorithm = "fixed-window"
limit = 99
per = "24h"
[[policy]]
name = "rate"
key = ["tenant"]
algorithm = "token-bucket"
limit = 600
per = "1m"
burst = 300
[[policy]]
name = "log"
key = ["tenant"]
algorithm = "sliding-log"
limit = 90
per = "60s"
[[policy]]
name = "slots"
key = ["tenant"]
algorithm = "concurrency"
limit = 5
slot_ttl = "30s"
mode = "region"
[[policy]]
name = "tiers"
key = ["tenant"]
algorithm = "fixed-window"
limit = 900
per = "24h"
plans = { by = "plan", small = { limit = 9 }, large = { limit = 99 } }
override = [{ key = { tenant = "big" }, limit = 3000 }]
"#;

/// Region a, in the first life of its store, with two peers.
struct Here {
    regime: Regime,
    fence: Fence,
    policies: PolicySet,
    peers: Vec<Region>,
    actors: BTreeMap<Region, Actor>,
}

fn here() -> Here {
    let policies = PolicySet::parse(POLICIES, "test").expect("the policies are valid");
    let peers: Vec<Region> = ["b", "c"].map(Region::new).to_vec();
    let life = Life::from_random(1);
    let state = RegionState::on_empty(&Region::new("a"), life, "", NOW, OnEmpty::New, &peers);
    let regime = Regime {
        state: Arc::new(state),
        span: Span::after(NOW),
        revision: 1,
        timing: Timing { term_ms: 10_000 },
    };
    let actor = |r: &Region| {
        (
            r.clone(),
            Actor {
                region: r.clone(),
                life: Life::from_random(2),
            },
        )
    };
    let actors = peers.iter().map(actor).collect();
    Here {
        fence: regime.fence(),
        regime,
        policies,
        peers,
        actors,
    }
}

impl Here {
    fn policy(&self, name: &str) -> &Policy {
        self.policies.policy(name).expect("the policy is there")
    }

    fn id(&self, name: &str) -> MeterId {
        let attributes = Attributes::from([("tenant".to_owned(), "acme".to_owned())]);
        let key = Key::of(self.policy(name), &attributes, &self.policies.subject_hash)
            .expect("a plain subject");
        let label = matches!(name, "day" | "tiers").then(|| NOW.0 / 86_400_000);
        MeterId { key, label }
    }

    fn scene<'a>(&'a self, id: &'a MeterId, mono: Mono) -> Scene<'a> {
        let name = id.key.policy_id().split('@').next().expect("a name");
        Scene {
            regime: &self.regime,
            fence: &self.fence,
            policy: self.policy(name),
            hash: &self.policies.subject_hash,
            id,
            peers: &self.peers,
            actors: &self.actors,
            interval_ms: 2_000,
            now: NOW,
            mono,
        }
    }

    fn b(&self) -> Actor {
        self.actors[&self.peers[0]].clone()
    }
}

fn nothing() -> Snapshot {
    Snapshot {
        meter: None,
        traded: None,
    }
}

fn meter(state: State, limits: Option<Limits>) -> Snapshot {
    let meter = Meter {
        epoch: Epoch(1),
        limits,
        holds: vec![],
        state,
    };
    Snapshot {
        meter: Some(meter),
        traded: None,
    }
}

fn used(units: u64) -> Snapshot {
    meter(State::Window { used: units }, None)
}

fn asks(id: &MeterId, want: u64, refusing: bool, last_resort: bool) -> Trade {
    let ask = Ask {
        id: id.clone(),
        asked_at: NOW,
        want,
        keep: None,
        refusing,
        last_resort,
        limits: None,
    };
    Trade {
        asks: vec![ask],
        ..Trade::default()
    }
}

/// The traded part that a plan's swap leaves behind.
fn after(plan: &Plan) -> Option<Traded> {
    let swap = plan.swap.as_ref()?;
    Some(Traded {
        version: swap.expect + 1,
        terms: Some(swap.terms.clone()),
        allotment: swap.allotment.clone(),
        attempts: 0,
    })
}

#[test]
fn a_window_that_gives_nothing_yet_borrows_nothing() {
    let mut here = here();
    let id = here.id("log");
    let asked = |here: &Here| {
        let mut track = Track::new(0);
        track.refused(0);
        let plan = survey(
            &here.scene(&id, 0),
            &mut track,
            &nothing(),
            Occasion::Urgent,
        );
        plan.tell.values().map(|t| t.asks.len()).sum::<usize>()
    };
    assert_eq!(asked(&here), 2, "as long as it could use it");
    here.fence.missing = Missing::EmptyAt(NOW.minus(1_000));
    assert_eq!(asked(&here), 0);
}

#[test]
fn an_idle_giver_keeps_its_floor_and_gives_the_rest_to_a_peer_that_refuses() {
    let here = here();
    let id = here.id("day");
    let mut track = Track::new(0);
    let plan = answer(
        &here.scene(&id, 0),
        &mut track,
        &nothing(),
        &here.b(),
        Epoch(1),
        &asks(&id, 90, true, false),
    );
    let told = &plan.tell[&here.peers[0]];
    assert_eq!(told.rows[0].1.units, 32, "33 less a floor of one");
    assert_eq!(told.left, vec![(id.clone(), 1)]);
    let swap = plan.swap.expect("a row is on record before it is sent");
    assert_eq!(swap.terms, Terms::Window { delta: -32 });
}

#[test]
fn rights_of_a_window_that_is_far_off_are_not_given() {
    let here = here();
    let mut id = here.id("day");
    id.label = id.label.map(|label| label + 1);
    let given = |now: StoreMs| {
        let fence = Fence {
            span: Span::after(now),
            ..here.fence
        };
        let scene = Scene {
            now,
            fence: &fence,
            ..here.scene(&id, 0)
        };
        let ask = asks(&id, 90, true, false);
        let mut track = Track::new(0);
        let plan = answer(&scene, &mut track, &nothing(), &here.b(), Epoch(1), &ask);
        plan.swap.is_some()
    };
    let begins = StoreMs((NOW.0 / 86_400_000 + 1) * 86_400_000);
    assert!(given(begins.minus(60_000)));
    assert!(
        !given(begins.minus(60_001)),
        "a lost store would have them again"
    );
}

#[test]
fn the_floor_goes_last_to_a_peer_with_no_other_source() {
    let here = here();
    let id = here.id("day");
    let ask = asks(&id, 90, true, true);
    let mut track = Track::new(0);
    track.sample(0, StoreMs(0), 32);
    track.sample(500, StoreMs(500), 32);
    let plan = answer(
        &here.scene(&id, 500),
        &mut track,
        &used(32),
        &here.b(),
        Epoch(1),
        &ask,
    );
    assert_eq!(plan.tell[&here.peers[0]].rows[0].1.units, 1);
    // Unless it is in demand here.
    for (at, raw) in [(550, 33), (700, 34), (850, 35), (1_000, 36)] {
        track.sample(at, StoreMs(at), raw);
    }
    let plan = answer(
        &here.scene(&id, 1_000),
        &mut track,
        &used(32),
        &here.b(),
        Epoch(1),
        &ask,
    );
    assert!(plan.swap.is_none());
}

#[test]
fn a_row_of_another_life_is_neither_taken_nor_confirmed_with_units() {
    let here = here();
    let id = here.id("day");
    let us = here.regime.actor();
    let from = here.b();
    let to = Actor {
        life: Life::from_random(77),
        ..us
    };
    let row = apportion_core::allotment::Row {
        from: from.clone(),
        to,
        units: 5,
    };
    let said = Trade {
        rows: vec![(id.clone(), row)],
        ..Trade::default()
    };
    let plan = answer(
        &here.scene(&id, 0),
        &mut Track::new(0),
        &nothing(),
        &from,
        Epoch(1),
        &said,
    );
    assert!(plan.swap.is_none() && plan.tell.is_empty());
}

#[test]
fn a_row_is_confirmed_by_what_is_on_record() {
    let here = here();
    let id = here.id("day");
    let (us, from) = (here.regime.actor(), here.b());
    let row = apportion_core::allotment::Row {
        from: from.clone(),
        to: us.clone(),
        units: 5,
    };
    let said = Trade {
        rows: vec![(id.clone(), row)],
        ..Trade::default()
    };
    let mut track = Track::new(0);
    let plan = answer(
        &here.scene(&id, 0),
        &mut track,
        &nothing(),
        &from,
        Epoch(1),
        &said,
    );
    let seen = RowSeen {
        from: from.clone(),
        to: us,
        units: 5,
    };
    assert_eq!(plan.tell[&from.region].seen, vec![(id.clone(), seen)]);
    assert_eq!(
        plan.swap.as_ref().map(|s| s.terms.clone()),
        Some(Terms::Window { delta: 5 })
    );
    let known = Snapshot {
        meter: None,
        traded: after(&plan),
    };
    let again = answer(
        &here.scene(&id, 0),
        &mut track,
        &known,
        &from,
        Epoch(1),
        &said,
    );
    assert!(again.swap.is_none(), "it came twice");
    assert_eq!(
        again.tell[&from.region].seen.len(),
        1,
        "and is confirmed again"
    );
}

#[test]
fn an_idle_lender_lends_all_but_its_floor() {
    let here = here();
    let id = here.id("rate");
    let mut track = Track::new(0);
    let plan = answer(
        &here.scene(&id, 0),
        &mut track,
        &nothing(),
        &here.b(),
        Epoch(1),
        &asks(&id, PPB, true, false),
    );
    let base = here.policy("rate").base_ppb(&Region::new("a"));
    let grant = &plan.tell[&here.peers[0]].grants[0].1;
    assert_eq!(grant.amount_ppb, base - base / 50);
    assert!(plan.swap.is_some(), "the lender lowers its own share first");
}

#[test]
fn a_lender_keeps_what_it_needs_itself() {
    let here = here();
    let id = here.id("rate");
    let mut track = Track::new(0);
    for i in 0..=8u64 {
        track.sample(i * 250, StoreMs(i * 250), i); // four units a second of ten
    }
    let plan = answer(
        &here.scene(&id, 2_000),
        &mut track,
        &nothing(),
        &here.b(),
        Epoch(1),
        &asks(&id, PPB, true, false),
    );
    assert!(
        plan.swap.is_none(),
        "half of the whole is needed here, and a third is what it has"
    );
}

#[test]
fn what_is_not_needed_goes_back() {
    let here = here();
    let id = here.id("rate");
    let (us, lender) = (here.regime.actor(), here.b());
    let grant = apportion_core::allotment::LoanGrant {
        by: lender.clone(),
        by_epoch: Epoch(1),
        to: us.clone(),
        to_epoch: Epoch(1),
        asked_at: NOW.minus(10),
        amount_ppb: PPB / 3,
    };
    let mut track = Track::new(0);
    let said = Trade {
        grants: vec![(id.key.clone(), grant)],
        ..Trade::default()
    };
    let plan = answer(
        &here.scene(&id, 0),
        &mut track,
        &nothing(),
        &lender,
        Epoch(1),
        &said,
    );
    let borrowed = Snapshot {
        meter: None,
        traded: after(&plan),
    };
    for i in 0..=12u64 {
        track.sample(i * 250, StoreMs(i * 250), 0);
    }
    let plan = survey(
        &here.scene(&id, 3_000),
        &mut track,
        &borrowed,
        Occasion::Tick,
    );
    assert!(plan.swap.is_some(), "it lowers its own share first");
    let statement = &plan.tell[&lender.region].statements[0].1;
    assert_eq!((statement.keep_ppb, statement.up_to), (0, NOW.minus(10)));
}

#[test]
fn a_region_that_refuses_asks_everybody_and_not_at_once_again() {
    let here = here();
    for name in ["day", "rate"] {
        let id = here.id(name);
        let mut track = Track::new(0);
        track.refused(0);
        let plan = survey(&here.scene(&id, 0), &mut track, &used(33), Occasion::Urgent);
        assert!(
            here.peers
                .iter()
                .all(|peer| plan.tell[peer].asks[0].refusing),
            "{name}"
        );
        let again = survey(
            &here.scene(&id, 50),
            &mut track,
            &used(33),
            Occasion::Urgent,
        );
        assert!(again.tell.is_empty(), "{name}");
    }
}

#[test]
fn nothing_is_planned_on_an_allotment_that_can_not_be_read() {
    let here = here();
    for (name, mine) in [
        ("day", Allotment::Transfers(Transfers::default())),
        (
            "rate",
            Allotment::Loans(Loans {
                epoch: Epoch(1),
                ..Loans::default()
            }),
        ),
    ] {
        let id = here.id(name);
        let mut bytes = mine.to_bytes();
        bytes[0] = 200;
        let traded = Traded {
            version: 3,
            terms: None,
            allotment: bytes,
            attempts: 0,
        };
        let snapshot = Snapshot {
            meter: None,
            traded: Some(traded),
        };
        let mut track = Track::new(0);
        let ask = asks(&id, MICRO, true, true);
        let plan = answer(
            &here.scene(&id, 0),
            &mut track,
            &snapshot,
            &here.b(),
            Epoch(1),
            &ask,
        );
        assert!(plan.swap.is_none() && plan.tell.is_empty(), "{name}");
    }
}

fn logged(units: u64) -> Snapshot {
    let entries = if units > 0 {
        vec![(NOW, units)]
    } else {
        vec![]
    };
    meter(State::Log { entries }, None)
}

fn idle() -> Track {
    let mut track = Track::new(0);
    for i in 0..=12u64 {
        track.sample(i * 250, StoreMs(i * 250), 0);
    }
    track
}

/// `snapshot`, with a third of the whole borrowed of the first peer since `since`.
fn borrowed(here: &Here, id: &MeterId, snapshot: Snapshot, since: StoreMs) -> Snapshot {
    let grant = apportion_core::allotment::LoanGrant {
        by: here.b(),
        by_epoch: Epoch(1),
        to: here.regime.actor(),
        to_epoch: Epoch(1),
        asked_at: since,
        amount_ppb: PPB / 3,
    };
    let said = Trade {
        grants: vec![(id.key.clone(), grant)],
        ..Trade::default()
    };
    let fence = Fence {
        span: Span::after(since),
        ..here.fence
    };
    let scene = Scene {
        now: since.plus(1),
        fence: &fence,
        ..here.scene(id, 0)
    };
    let mut track = Track::new(0);
    let plan = answer(&scene, &mut track, &nothing(), &here.b(), Epoch(1), &said);
    Snapshot {
        traded: after(&plan),
        ..snapshot
    }
}

#[test]
fn a_lender_lends_only_base_that_its_window_does_not_count() {
    let here = here();
    let id = here.id("log");
    let ask = asks(&id, PPB, true, false);
    let mut track = idle();
    let scene = here.scene(&id, 3_000);
    let plan = answer(&scene, &mut track, &logged(12), &here.b(), Epoch(1), &ask);
    let grant = &plan.tell[&here.peers[0]].grants[0].1;
    let base = scene.policy.base_ppb(&Region::new("a"));
    assert_eq!(
        grant.amount_ppb,
        base - 133_333_334,
        "30 less 12 of 90 units"
    );
    let plan = answer(&scene, &mut track, &logged(30), &here.b(), Epoch(1), &ask);
    assert!(plan.swap.is_none(), "all of it counts");
}

#[test]
fn the_terms_of_a_lent_window_outlive_whatever_it_counts_meanwhile() {
    let here = here();
    let id = here.id("log");
    let ask = asks(&id, PPB, true, false);
    let scene = here.scene(&id, 3_000);
    let plan = answer(&scene, &mut idle(), &logged(0), &here.b(), Epoch(1), &ask);
    let swap = plan.swap.expect("it lends");
    // The last moment at which the loan stands, and what is held and counted from then on.
    let reclaim_ms = here.regime.timing.reclaim_ms(60_000);
    let meter_ms = reclaim_ms + HOLD_MAX_MS + 60_000;
    assert!(swap.keep_until >= NOW.plus(meter_ms));
}

#[test]
fn the_terms_of_a_lent_rate_outlive_a_bucket_that_is_not_settled_meanwhile() {
    let here = here();
    let id = here.id("rate");
    let ask = asks(&id, PPB, true, false);
    let scene = here.scene(&id, 3_000);
    let plan = answer(&scene, &mut idle(), &nothing(), &here.b(), Epoch(1), &ask);
    let swap = plan.swap.expect("it lends");
    let fill_ms = scene.policy.fill_ms;
    let reclaim_ms = here.regime.timing.reclaim_ms(0);
    assert!(swap.keep_until >= NOW.plus(reclaim_ms + fill_ms + HOLD_MAX_MS));
}

#[test]
fn a_borrower_that_returns_keeps_what_its_window_counts_beyond_its_own_share() {
    let here = here();
    let id = here.id("log");
    for (counted, kept) in [(20, 0), (36, 66_666_666), (60, 333_333_333)] {
        let known = borrowed(&here, &id, logged(counted), NOW.minus(10));
        let scene = here.scene(&id, 3_000);
        let plan = survey(&scene, &mut idle(), &known, Occasion::Tick);
        if counted == 60 {
            assert!(plan.swap.is_none(), "its window is full");
            continue;
        }
        let keep = plan.tell[&here.peers[0]].statements[0].1.keep_ppb;
        assert_eq!(keep, kept, "{counted} of 30 own and 30 borrowed");
        assert!(plan.swap.is_some(), "it lowers its own share first");
    }
}

#[test]
fn who_counts_more_than_its_share_lends_nothing_and_says_nothing_of_what_it_gave_back() {
    let here = here();
    let id = here.id("log");
    // The loan is over, and the window still counts on it.
    let known = borrowed(&here, &id, logged(50), NOW.minus(10_000));
    let scene = here.scene(&id, 3_000);
    let plan = survey(&scene, &mut idle(), &known, Occasion::Round);
    assert!(plan.swap.is_none() && plan.tell.is_empty());
    let ask = asks(&id, PPB, true, false);
    let plan = answer(&scene, &mut idle(), &known, &here.b(), Epoch(1), &ask);
    assert!(plan.swap.is_none());
    // Once it counts no more than its share, it says so.
    let known = Snapshot {
        traded: known.traded,
        ..logged(30)
    };
    let plan = survey(&scene, &mut idle(), &known, Occasion::Round);
    assert_eq!(plan.tell[&here.peers[0]].statements.len(), 1);
}

#[test]
fn a_loan_that_is_over_is_given_up_once_no_window_counts_on_it() {
    let here = here();
    let id = here.id("log");
    let told = |counted: u64, ago_ms: u64| {
        let known = borrowed(&here, &id, logged(counted), NOW.minus(ago_ms));
        let plan = survey(
            &here.scene(&id, 3_000),
            &mut idle(),
            &known,
            Occasion::Round,
        );
        let told = plan.tell.get(&here.peers[0])?;
        told.statements.first().map(|(_, s)| s.keep_ppb)
    };
    let term = 10_000;
    assert_eq!(
        told(31, term + 5_000),
        None,
        "its window still counts on it"
    );
    assert_eq!(told(30, term + 5_000), Some(0));
    // A step back of the clock that nobody sees could still revive it.
    assert_eq!(told(30, term + 4_999), Some(333_333_333));
    assert_eq!(told(30, term + 60_000 + 9_999), Some(0));
    assert_eq!(told(30, term + 60_000 + 10_000), None, "it is forgotten");
}

#[test]
fn no_share_of_a_window_is_lowered_while_a_loan_is_about_to_end() {
    let here = here();
    let id = here.id("log");
    let known = borrowed(&here, &id, logged(1), NOW.minus(6_000));
    let scene = here.scene(&id, 3_000);
    let plan = survey(&scene, &mut idle(), &known, Occasion::Tick);
    assert!(
        plan.swap.is_none(),
        "it has four seconds to go, and a swap may take five"
    );
    let ask = asks(&id, PPB, true, false);
    let plan = answer(&scene, &mut idle(), &known, &here.b(), Epoch(1), &ask);
    assert!(plan.swap.is_none());
}

#[test]
fn what_an_older_epoch_of_a_borrower_has_comes_back_at_once_unless_a_window_counts_on_it() {
    let here = here();
    for (name, comes_back) in [("rate", true), ("log", false)] {
        let id = here.id(name);
        let mut track = idle();
        let scene = here.scene(&id, 3_000);
        let ask = asks(&id, PPB / 4, true, false);
        let plan = answer(&scene, &mut track, &nothing(), &here.b(), Epoch(1), &ask);
        let lent = Snapshot {
            meter: None,
            traded: after(&plan),
        };
        let said = Trade {
            left: vec![(id.clone(), 0)],
            ..Trade::default()
        };
        let plan = answer(&scene, &mut track, &lent, &here.b(), Epoch(2), &said);
        assert_eq!(plan.swap.is_some(), comes_back, "{name}");
    }
}

#[test]
fn slots_are_never_traded() {
    let here = here();
    let id = here.id("slots");
    let scene = here.scene(&id, 3_000);
    assert_eq!(traded_label(scene.policy, NOW), None);
    let mut track = idle();
    track.refused(3_000);
    let slots = meter(State::Slots, None);
    let asked = survey(&scene, &mut track, &slots, Occasion::Urgent);
    let ask = asks(&id, PPB, true, true);
    let answered = answer(&scene, &mut track, &slots, &here.b(), Epoch(1), &ask);
    for plan in [asked, answered] {
        assert!(plan.swap.is_none() && plan.tell.is_empty());
    }
}

#[test]
fn a_giver_goes_by_its_meter_or_else_by_what_the_asker_names_and_never_by_a_plan_that_nobody_saw() {
    let here = here();
    let id = here.id("tiers");
    let [small, large, default] = [9, 99, 900].map(Limits::of);
    let unheard = Limits::of(5_000);
    let given = |noted: Option<Limits>, asked: Option<Limits>, seen: Option<Limits>| {
        let mut ask = asks(&id, 5_000, true, true);
        ask.asks[0].limits = asked;
        let mut track = Track::new(0);
        track.limits = seen;
        let snapshot = match noted {
            Some(limits) => meter(State::Window { used: 0 }, Some(limits)),
            None => nothing(),
        };
        let plan = answer(
            &here.scene(&id, 0),
            &mut track,
            &snapshot,
            &here.b(),
            Epoch(1),
            &ask,
        );
        let swap = plan.swap.expect("something is given");
        let row = &plan.tell[&here.peers[0]].rows[0].1;
        (swap.rule.limits, row.units)
    };
    assert_eq!(given(Some(large), Some(small), None), (large, 32));
    assert_eq!(given(None, Some(large), Some(small)), (large, 32));
    assert_eq!(given(None, Some(default), None), (default, 294));
    assert_eq!(given(None, Some(unheard), Some(large)), (large, 32));
    assert_eq!(given(None, Some(unheard), None), (small, 2));
    assert_eq!(given(None, None, None), (small, 2));
}

#[test]
fn an_asker_names_the_limits_that_it_knows_where_they_depend_on_the_request() {
    let here = here();
    let large = Limits::of(99);
    for (name, seen, named) in [
        ("tiers", None, None),
        ("tiers", Some(large), Some(large)),
        ("day", Some(large), None),
    ] {
        let id = here.id(name);
        let mut track = Track::new(0);
        track.limits = seen;
        track.refused(0);
        let plan = survey(
            &here.scene(&id, 0),
            &mut track,
            &nothing(),
            Occasion::Urgent,
        );
        assert_eq!(plan.tell[&here.peers[0]].asks[0].limits, named, "{name}");
    }
}

#[test]
fn a_subject_with_limits_of_its_own_goes_by_them_whatever_anybody_says() {
    let here = here();
    let attributes = Attributes::from([("tenant".to_owned(), "big".to_owned())]);
    let policy = here.policy("tiers");
    let key = Key::of(policy, &attributes, &here.policies.subject_hash).expect("a plain subject");
    let id = MeterId {
        key,
        ..here.id("tiers")
    };
    let told = Told {
        asked: Some(Limits::of(9)),
        seen: Some(Limits::of(99)),
    };
    assert_eq!(
        here.scene(&id, 0).limits(&nothing(), told),
        Limits::of(3_000)
    );
}
