//! What a region does about one key, each rule on its own.

mod sliding;

use super::*;
use crate::message::Ask;
use apportion_core::allotment::{Loans, RowSeen, Timing, Transfers};
use apportion_core::fence::Span;
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
        let label = (name == "day").then(|| NOW.0 / 86_400_000);
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
        recall: 0,
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
fn an_idle_giver_keeps_its_floor_and_gives_the_rest_to_a_peer_that_refuses() {
    let here = here();
    let id = here.id("day");
    let mut track = Track::new(0, 2_000);
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
fn the_floor_goes_last_to_a_peer_with_no_other_source() {
    let here = here();
    let id = here.id("day");
    let ask = asks(&id, 90, true, true);
    let mut track = Track::new(0, 2_000);
    track.sample(0, 32);
    track.sample(500, 32);
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
        track.sample(at, raw);
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
        &mut Track::new(0, 2_000),
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
    let mut track = Track::new(0, 2_000);
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
    let mut track = Track::new(0, 2_000);
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
    let mut track = Track::new(0, 2_000);
    for i in 0..=8u64 {
        track.sample(i * 250, i); // four units a second of ten
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
    let mut track = Track::new(0, 2_000);
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
        track.sample(i * 250, 0);
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
        let mut track = Track::new(0, 2_000);
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
        let mut track = Track::new(0, 2_000);
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
