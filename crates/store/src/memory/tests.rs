use super::*;
use apportion_core::fence::{Missing, Span};
use apportion_core::meter::Rule;
use apportion_core::schedule::Shares;
use apportion_core::{Algorithm, Epoch, Key, Limits};

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

#[test]
fn attempts_counted_while_the_clock_is_back_are_forgotten_on_that_clock() {
    let mut memory = begun();
    let id = id();
    let charge = Charge {
        key: id.key.clone(),
        rule: Arc::new(Rule {
            algorithm: Algorithm::TokenBucket { per_ms: 1_000 },
            limits: Limits { limit: 1, burst: 1 },
            by_plan: false,
            fill_ms: 0,
            part: Part::Shares(Shares::constant(0)),
        }),
        cost: 1,
        units: 1,
        reserve_ppm: 0,
        denied: 0,
        usage_ms: None,
        shadow: false,
        newcomers_max: None,
        member: None,
    };
    let refused = Op::Decide(Decide {
        fence: fence(),
        partition: id.key.partition(),
        id: 1,
        mode: Mode::Charge,
        charges: vec![charge],
        remember: None,
    });
    assert!(memory.apply(NOW, refused.clone()).is_ok());
    let earlier = NOW.minus(50_000);
    assert!(memory.apply(earlier, refused).is_ok());
    let later = earlier.plus(ATTEMPTS_TTL_MS);
    let Ok(Reply::Snapshots { snapshots, .. }) = memory.apply(later, read(&id)) else {
        panic!("it is attached");
    };
    assert_eq!(snapshots[0].traded, None);
}
