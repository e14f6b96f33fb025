//! Concurrency: slots that are taken, named by a token, and released.

use super::*;
use crate::testing::Fault;
use apportion_core::fence::HOLD_MAX_MS;
use apportion_core::{Algorithm, Life, Regime, StoreMs as Ms};
use apportion_store::{Op, Reply, Store};

const SLOT_TTL_MS: u64 = 60_000;

/// The pool of [`BUCKET_AND_POOL`] as three slots, or the tenants' policy as slots.
fn slots(text: &str, of: &'static str) -> Arc<apportion_core::PolicySet> {
    changed(text, move |policy| {
        if policy.name == of {
            policy.algorithm = Algorithm::Concurrency {
                slot_ttl_ms: SLOT_TTL_MS,
            };
            policy.limits = apportion_core::Limits::of(3);
        }
    })
}

async fn three_slots() -> Node {
    open_with("us-east", slots(WINDOW, "pool")).await
}

fn token(decision: &Decision) -> String {
    decision.reservation.clone().unwrap()
}

#[tokio::test]
async fn a_slot_is_taken_until_it_is_released() {
    let mut node = three_slots().await;
    let first = node.check("acme", 2).await;
    node.check("acme", 1).await;
    let refused = node.check("acme", 1).await;
    assert_eq!(outcomes(&refused), [Outcome::Refused]);
    assert_eq!(
        refused.limits[0].retry_after_ms, 1_000,
        "one may be released"
    );
    assert_eq!(refused.limits[0].reset_ms, SLOT_TTL_MS);
    assert!(refused.reservation.is_none());
    assert!(node.pressure.try_recv().is_err(), "slots aren't traded");
    assert!(node.engine.release(&token(&first)).await.unwrap());
    assert_eq!(node.remaining("acme").await, [2]);
    assert!(
        !node.engine.release(&token(&first)).await.unwrap(),
        "it is over"
    );
    assert_eq!(node.remaining("acme").await, [2]);
    assert!(node.check("acme", 2).await.allowed);
}

#[tokio::test]
async fn a_slot_that_nobody_releases_is_free_after_its_time() {
    let node = three_slots().await;
    let first = node.check("acme", 3).await;
    node.advance(SLOT_TTL_MS - 1);
    let refused = node.check("acme", 1).await;
    assert_eq!(refused.limits[0].retry_after_ms, 1);
    node.advance(1);
    assert!(node.check("acme", 3).await.allowed);
    assert!(!node.engine.release(&token(&first)).await.unwrap());
    assert_eq!(node.remaining("acme").await, [0]);
}

#[tokio::test]
async fn slots_beside_another_partition_are_taken_for_their_time() {
    // Held first, and charged last.
    for of in ["api", "pool"] {
        let text = BUCKET_AND_POOL.replace("limit = 60", "limit = 600000");
        let node = open_with("us-east", slots(&text, of)).await;
        let slot = if of == "api" { 0 } else { 1 };
        let decision = node.check("acme", 2).await;
        assert!(decision.allowed);
        node.advance(HOLD_MAX_MS + 1);
        assert_eq!(node.remaining("acme").await[slot], 1);
        assert!(node.engine.release(&token(&decision)).await.unwrap());
        assert_eq!(node.remaining("acme").await[slot], 3);
    }
}

#[tokio::test]
async fn a_slot_whose_taking_failed_is_taken_again() {
    let node = open_with("us-east", slots(BUCKET_AND_POOL, "api")).await;
    let faults = [Fault::None, Fault::None, Fault::NotSent(0)];
    node.store.fail(faults);
    assert!(node.check("acme", 2).await.allowed);
    node.advance(HOLD_MAX_MS + 1);
    assert_eq!(node.remaining("acme").await[0], 1);
}

#[tokio::test]
async fn a_refused_request_leaves_no_slot() {
    let node = open_with("us-east", slots(BUCKET_AND_POOL, "api")).await;
    node.check("bolt", 3).await;
    for _ in 0..19 {
        let taken = node.check("acme", 3).await;
        node.engine.release(&token(&taken)).await.unwrap();
    }
    let refused = node.check("acme", 1).await;
    assert_eq!(outcomes(&refused), [Outcome::NotCharged, Outcome::Refused]);
    assert!(refused.reservation.is_none());
    assert_eq!(node.remaining("acme").await, [3, 0]);
    let peek = node.peek("core", 1).await;
    assert!(peek.reservation.is_none());
}

#[tokio::test]
async fn a_retry_has_the_same_slots() {
    for of in ["api", "pool"] {
        let node = open_with("us-east", slots(BUCKET_AND_POOL, of)).await;
        let request = CheckRequest {
            request_id: Some("r1".into()),
            ..ask("acme", 1)
        };
        let slot = if of == "api" { 0 } else { 1 };
        let first = node.engine.check(request.clone()).await.unwrap();
        let again = node.engine.check(request).await.unwrap();
        assert!(again.replayed);
        assert_eq!(token(&again), token(&first));
        assert_eq!(node.remaining("acme").await[slot], 2);
        assert!(node.engine.release(&token(&again)).await.unwrap());
        assert_eq!(node.remaining("acme").await[slot], 3);
    }
}

#[tokio::test]
async fn a_shadow_that_is_full_gives_no_slot() {
    let node = open_with(
        "us-east",
        slots(&(WINDOW.to_owned() + "shadow = true\n"), "pool"),
    )
    .await;
    let taken = node.check("acme", 3).await;
    assert!(taken.reservation.is_some());
    let beyond = node.check("acme", 1).await;
    assert!(beyond.allowed && beyond.reservation.is_none());
}

#[tokio::test]
async fn what_is_no_reservation_is_told_so() {
    let node = three_slots().await;
    let whole = token(&node.check("acme", 1).await);
    let cut = &whole[..whole.len() - 4];
    let longer = whole.clone() + "AAAA";
    for bad in ["", "!", "AAAA", cut, &longer, &"A".repeat(1 << 20)] {
        match node.engine.release(bad).await {
            Err(CheckError::Invalid { field, .. }) => assert_eq!(field, "reservation"),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        whole
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    );
}

#[tokio::test]
async fn slots_of_another_life_or_of_a_policy_that_is_gone_are_no_more() {
    let node = three_slots().await;
    let slot = token(&node.check("acme", 1).await);
    let policies = node.shared.policies.swap(testing::policies(&bucket()));
    assert!(!node.engine.release(&slot).await.unwrap());
    node.shared.policies.store(policies);
    let regime = node.regime();
    let mut state = (*regime.state).clone();
    state.life = Life::from_random(8);
    let other = Regime {
        state: Arc::new(state),
        ..(*regime).clone()
    };
    node.shared.regime.store(Some(Arc::new(other)));
    node.store.calls();
    assert!(!node.engine.release(&slot).await.unwrap());
    assert!(node.store.calls().is_empty());
    node.shared.regime.store(Some(regime));
    assert!(node.engine.release(&slot).await.unwrap());
}

#[tokio::test]
async fn a_release_that_failed_can_be_made_again() {
    let node = three_slots().await;
    let slot = token(&node.check("acme", 1).await);
    node.store.fail([Fault::NotSent(0), Fault::Lost(0)]);
    for unknown in [false, true] {
        match node.engine.release(&slot).await {
            Err(CheckError::StoreUnavailable {
                outcome_unknown, ..
            }) => assert_eq!(outcome_unknown, unknown),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        !node.engine.release(&slot).await.unwrap(),
        "the second was executed"
    );
    assert_eq!(node.remaining("acme").await, [3]);
}

#[tokio::test]
async fn a_release_refunds_no_usage() {
    let policies = changed(&(WINDOW.to_owned() + "usage = \"1h\"\n"), |policy| {
        policy.algorithm = Algorithm::Concurrency {
            slot_ttl_ms: SLOT_TTL_MS,
        };
    });
    let node = open_with("us-east", policies).await;
    let slot = token(&node.check("acme", 4).await);
    assert!(node.engine.release(&slot).await.unwrap());
    let key = testing::key("pool@1:");
    let usage = Op::Usage {
        fence: node.regime().fence(),
        partition: key.partition(),
        key,
        starts: vec![Ms(START.0 / 3_600_000 * 3_600_000)],
    };
    let Ok(Reply::Usage { periods, .. }) = node.store.one(usage).await else {
        panic!("it is there");
    };
    let (_, counts) = &periods[0][0];
    assert_eq!((counts.admitted, counts.refunded), (4, 0));
}
