//! What the embedded store does that its twin in Lua is compared with.

mod tolerance;

use super::*;
use apportion_core::Epoch;
use apportion_core::Key;
use apportion_core::fence::{Missing, Span};
use apportion_core::meter::{Member, Rule, Slack};
use apportion_core::schedule::{MICRO, PPB, Shares};
use apportion_core::{Algorithm, Limits, Period};

const NOW: StoreMs = StoreMs(1_000_000);

fn fence() -> Fence {
    Fence {
        record: Record {
            life: Life::from_random(1),
            epoch: Epoch(1),
            revision: 1,
        },
        span: Span {
            from: StoreMs(0),
            until: StoreMs(10_000_000),
        },
        epoch_began: StoreMs(0),
        missing: Missing::Full,
        closed_before: StoreMs(0),
        replicated: false,
    }
}

fn begun() -> Memory {
    let mut memory = Memory::new("here");
    let record = fence().record;
    let ops = [
        Op::PutState {
            expect: 0,
            value: vec![],
        },
        Op::Adopt {
            state_version: 1,
            record,
        },
        Op::Attach {
            life: record.life,
            fingerprint: "here".into(),
        },
    ];
    for op in ops {
        assert!(memory.apply(NOW, op).is_ok());
    }
    memory
}

fn read(id: &MeterId) -> Op {
    Op::Read {
        fence: fence(),
        partition: id.key.partition(),
        ids: vec![id.clone()],
    }
}

fn id() -> MeterId {
    MeterId {
        key: Key::parse("api@1:acme").unwrap(),
        label: None,
    }
}

#[test]
fn whoever_expected_another_store_is_not_attached() {
    let mut memory = begun();
    assert!(memory.apply(NOW, read(&id())).is_ok());
    let life = fence().record.life;
    let fingerprint = "elsewhere".into();
    let attached = memory.apply(NOW, Op::Attach { life, fingerprint });
    assert_eq!(attached, Err(StoreError::LookAgain));
    assert_eq!(memory.apply(NOW, read(&id())), Err(StoreError::LookAgain));
}

/// One unit of a bucket of ten, refilled at one a second.
fn charge(key: &str) -> Charge {
    bucket_charge(key, Limits::of(10))
}

fn bucket_charge(key: &str, limits: Limits) -> Charge {
    Charge {
        key: Key::parse(key).unwrap(),
        rule: Arc::new(Rule {
            algorithm: Algorithm::TokenBucket { per_ms: 10_000 },
            limits,
            by_plan: false,
            fill_ms: 10_000,
            part: Part::Shares(Shares::constant(PPB)),
            slack: Slack::Nothing,
        }),
        cost: MICRO,
        units: 1,
        reserve_ppm: 0,
        denied: 0,
        usage_ms: None,
        shadow: false,
        newcomers_max: None,
        member: None,
    }
}

fn decide_as(mode: Mode, charges: Vec<Charge>, remember: Option<Remember>) -> Decide {
    Decide {
        fence: fence(),
        partition: charges[0].key.partition(),
        id: 1,
        mode,
        charges,
        remember,
    }
}

fn run(memory: &mut Memory, now: StoreMs, decide: Decide) -> Decided {
    match memory.apply(now, Op::Decide(decide)) {
        Ok(Reply::Decided(decided)) => decided,
        other => panic!("{other:?}"),
    }
}

fn ask_once(memory: &mut Memory, charge: &Charge) -> bool {
    run(
        memory,
        NOW,
        decide_as(Mode::Charge, vec![charge.clone()], None),
    )
    .admitted
}

fn named(content: u128) -> Option<Remember> {
    Some(Remember {
        id: "r-1".into(),
        content,
        others: vec![7],
    })
}

#[test]
fn attempts_counted_while_the_clock_is_back_are_forgotten_on_that_clock() {
    let mut memory = begun();
    let id = id();
    let dear = Charge {
        cost: 11 * MICRO,
        ..charge("api@1:acme")
    };
    let refused = decide_as(Mode::Charge, vec![dear], None);
    assert!(!run(&mut memory, NOW, refused.clone()).admitted);
    let earlier = NOW.minus(50_000);
    assert!(!run(&mut memory, earlier, refused).admitted);
    let later = earlier.plus(ATTEMPTS_TTL_MS);
    let Ok(Reply::Snapshots { snapshots, .. }) = memory.apply(later, read(&id)) else {
        panic!("it is attached");
    };
    assert_eq!(snapshots[0].traded, None);
}

#[test]
fn a_request_is_charged_once_under_its_name_and_answered_as_it_was() {
    let mut memory = begun();
    let request = |content| decide_as(Mode::Charge, vec![charge("api@1:acme")], named(content));
    let first = run(&mut memory, NOW, request(1));
    assert_eq!((first.admitted, &first.replayed), (true, &None));
    let last = NOW.plus(REQUEST_TTL_MS - 1);
    let again = run(&mut memory, last, request(1));
    let replayed = Some(vec![7]);
    assert_eq!(again, Decided { replayed, ..first });
    let other = memory.apply(last, Op::Decide(request(2)));
    assert_eq!(other, Err(StoreError::RequestIdReused));
    let fresh = run(&mut memory, NOW.plus(REQUEST_TTL_MS), request(2));
    assert_eq!(fresh.replayed, None);
}

#[test]
fn a_refused_request_is_not_remembered() {
    let mut memory = begun();
    let dear = |cost| Charge {
        cost,
        ..charge("api@1:acme")
    };
    let request = |cost| decide_as(Mode::Charge, vec![dear(cost)], named(1));
    assert!(!run(&mut memory, NOW, request(11 * MICRO)).admitted);
    let again = run(&mut memory, NOW, request(MICRO));
    assert_eq!((again.admitted, again.replayed), (true, None));
}

#[test]
fn a_class_leaves_its_part_to_others() {
    let mut memory = begun();
    let batch = Charge {
        reserve_ppm: 200_000,
        ..charge("api@1:acme")
    };
    let admitted = (0..20).filter(|_| ask_once(&mut memory, &batch)).count();
    assert_eq!(admitted, 8);
    let rest = charge("api@1:acme");
    assert_eq!((0..20).filter(|_| ask_once(&mut memory, &rest)).count(), 2);
}

#[test]
fn so_many_keys_are_new_in_a_second_and_known_ones_go_on() {
    let mut memory = begun();
    let limited = |key: &str| Charge {
        newcomers_max: Some(2),
        ..charge(key)
    };
    assert!(ask_once(&mut memory, &limited("api@1:a")));
    assert!(ask_once(&mut memory, &limited("api@1:b")));
    let third = decide_as(Mode::Charge, vec![limited("api@1:c")], None);
    let refused = run(&mut memory, NOW, third.clone());
    assert!(!refused.admitted && refused.answers[0].crowded);
    assert!(ask_once(&mut memory, &limited("api@1:a")));
    assert!(
        ask_once(&mut memory, &limited("other@1:d")),
        "each policy for itself"
    );
    assert!(run(&mut memory, NOW.plus(NEWCOMERS_MS), third).admitted);
}

#[test]
fn who_was_here_in_the_window_before_is_not_new_in_this_one_and_a_crowd_leaves_nothing() {
    let mut memory = begun();
    let of = |key: &str| {
        let window = Rule {
            algorithm: Algorithm::FixedWindow {
                period: Period::every(10_000),
            },
            part: Part::Base {
                units: 10,
                from: StoreMs(0),
            },
            ..(*charge(key).rule).clone()
        };
        Charge {
            rule: Arc::new(window),
            cost: 1,
            usage_ms: Some(1_000),
            newcomers_max: Some(1),
            ..charge(key)
        }
    };
    let ask = |memory: &mut Memory, key: &str, now| {
        run(memory, now, decide_as(Mode::Charge, vec![of(key)], None))
    };
    let next = NOW.plus(10_000);
    assert!(ask(&mut memory, "api@1:a", NOW).admitted);
    assert!(ask(&mut memory, "api@1:b", NOW.plus(1_000)).admitted);
    for known in ["api@1:a", "api@1:b"] {
        assert!(ask(&mut memory, known, next).admitted, "{known}");
    }
    assert!(ask(&mut memory, "api@1:c", next).admitted);
    assert!(ask(&mut memory, "api@1:d", next).answers[0].crowded);
    let id = MeterId {
        key: Key::parse("api@1:d").unwrap(),
        label: of("api@1:d").rule.label(next),
    };
    let Ok(Reply::Snapshots { snapshots, .. }) = memory.apply(next, read(&id)) else {
        panic!("it is attached");
    };
    assert_eq!((&snapshots[0].meter, &snapshots[0].traded), (&None, &None));
}

#[test]
fn what_a_node_refused_by_itself_is_counted() {
    let mut memory = begun();
    let denied = Charge {
        denied: 5,
        usage_ms: Some(1_000),
        ..charge("api@1:acme")
    };
    let noted = run(
        &mut memory,
        NOW,
        decide_as(Mode::Note, vec![denied.clone()], None),
    );
    assert_eq!(
        noted.answers[0].reading.available(),
        10 * MICRO,
        "nothing is charged"
    );
    assert!(ask_once(&mut memory, &denied));
    let Ok(Reply::Snapshots { snapshots, .. }) = memory.apply(NOW, read(&id())) else {
        panic!("it is attached");
    };
    assert_eq!(snapshots[0].traded.as_ref().map(|t| t.attempts), Some(11));
    let usage = Op::Usage {
        fence: fence(),
        partition: id().key.partition(),
        key: id().key,
        starts: vec![period_start(NOW, 1_000)],
    };
    let Ok(Reply::Usage { periods, .. }) = memory.apply(NOW, usage) else {
        panic!("it is attached");
    };
    let counts = Counts {
        admitted: 1,
        refunded: 0,
        refused: 10,
    };
    assert_eq!(periods, [vec![(None, counts)]]);
}

#[test]
fn members_of_a_pool_leave_each_other_their_credit() {
    let mut memory = begun();
    let of = |name: &str| Charge {
        member: Some(Member {
            name: name.into(),
            weight: 1,
        }),
        ..charge("pool@1:")
    };
    // A member that is alone has everything.
    assert_eq!(
        (0..20).filter(|_| ask_once(&mut memory, &of("a"))).count(),
        10
    );
    // Then both ask for all that flows in: half for each.
    let (mut a, mut b) = (0, 0);
    for ms in (0..20_000).step_by(100) {
        for (name, given) in [("a", &mut a), ("a", &mut 0), ("b", &mut b)] {
            let decide = decide_as(Mode::Charge, vec![of(name)], None);
            *given += u32::from(run(&mut memory, NOW.plus(ms), decide).admitted);
        }
    }
    assert!((8..=11).contains(&b), "{b} of 20");
}

#[test]
fn a_swap_under_another_plan_than_the_meters_conflicts() {
    let mut memory = begun();
    let by_plan = |limit| {
        let mut charge = bucket_charge("api@1:acme", Limits::of(limit));
        Arc::get_mut(&mut charge.rule).unwrap().by_plan = true;
        charge
    };
    assert!(ask_once(&mut memory, &by_plan(10)));
    let swap = |limit| {
        Op::Swap(Swap {
            fence: fence(),
            id: id(),
            rule: by_plan(limit).rule,
            expect: 0,
            terms: Terms::Loans {
                epoch: Epoch(1),
                shares: Shares::constant(PPB / 2),
                own_ppb: PPB / 2,
            },
            allotment: vec![],
            keep_until: NOW.plus(1_000),
        })
    };
    assert_eq!(memory.apply(NOW, swap(500)), Err(StoreError::Conflict));
    assert_eq!(memory.apply(NOW, swap(10)), Ok(Reply::Swapped(1)));
}

/// Otherwise a region whose clock has stepped back, and whose node is gone, makes no rounds until the clock is there again.
#[test]
fn a_lease_from_a_clock_that_stepped_back_is_nobodys() {
    let mut memory = begun();
    let ttl_ms = 4_000;
    let mut takes = |now, holder| match memory.apply(now, Op::Lease { holder, ttl_ms }) {
        Ok(Reply::Held(held)) => held,
        other => panic!("{other:?}"),
    };
    let ahead = NOW.plus(30_000);
    assert!(takes(ahead, 1));
    assert!(!takes(ahead.plus(1_000), 2));
    assert!(!takes(ahead, 2), "that may be the same moment");
    assert!(takes(NOW, 2));
    assert!(!takes(NOW, 1));
}
