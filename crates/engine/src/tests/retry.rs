//! Requests that their callers name: a retry is answered as before, and charged once.

use super::*;
use crate::testing::Fault;
use apportion_store::{Mode, Op};

fn named(id: &str, tenant: &str, cost: u64) -> CheckRequest {
    CheckRequest {
        request_id: Some(id.into()),
        ..ask(tenant, cost)
    }
}

async fn check(node: &Node, request: CheckRequest) -> Decision {
    node.engine.check(request).await.unwrap()
}

/// What a caller sees, but for `replayed`.
fn seen(decision: &Decision) -> String {
    let (limits, reservation) = (&decision.limits, &decision.reservation);
    format!(
        "{} {:?} {limits:?} {reservation:?}",
        decision.allowed, decision.decided_at
    )
}

async fn assert_reused(node: &Node, request: CheckRequest) {
    let result = node.engine.check(request).await;
    assert!(
        matches!(result, Err(CheckError::RequestIdReused)),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_retry_is_answered_as_before_and_charged_once() {
    for text in [bucket(), BUCKET_AND_POOL.to_owned()] {
        let mut node = open("us-east", &text).await;
        let first = check(&node, named("r1", "acme", 9)).await;
        assert!(first.allowed && !first.replayed);
        let left = node.remaining("acme").await;
        while node.pressure.try_recv().is_ok() {}
        node.advance(500);
        for _ in 0..3 {
            let again = check(&node, named("r1", "acme", 9)).await;
            assert!(again.replayed);
            assert_eq!(seen(&again), seen(&first));
        }
        assert_eq!(
            node.remaining("acme").await,
            left,
            "nothing is held or charged"
        );
        assert!(
            node.pressure.try_recv().is_err(),
            "what is told again presses nobody"
        );
        let another = check(&node.another(), named("r1", "acme", 9)).await;
        assert_eq!(
            seen(&another),
            seen(&first),
            "any node of the region knows it"
        );
        node.advance(1_000);
        assert!(check(&node, named("r2", "acme", 1)).await.allowed);
    }
}

#[tokio::test]
async fn a_retry_is_known_where_there_is_nothing_left_to_hold() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    let first = check(&node, named("r1", "acme", 10)).await;
    assert!(first.allowed);
    node.store.calls();
    let again = check(&node, named("r1", "acme", 10)).await;
    assert!(again.replayed);
    assert_eq!(seen(&again), seen(&first));
    assert_eq!(
        node.store.calls().len(),
        2,
        "the question goes with the end of the holds"
    );
    let refused = check(&node, named("r2", "acme", 10)).await;
    assert_eq!(outcomes(&refused), [Outcome::Refused, Outcome::NotCharged]);
    assert_eq!(node.remaining("acme").await, [0, 50]);
    node.advance(10_000);
    assert!(
        check(&node, named("r2", "acme", 10)).await.allowed,
        "a refusal isn't remembered"
    );
    assert_eq!(node.remaining("acme").await, [0, 40]);
    let other = named("r1", "bolt", 3);
    assert_reused(&node, other).await;
    assert_eq!(node.remaining("bolt").await, [10, 40]);
}

#[tokio::test]
async fn a_refusal_is_not_remembered() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 8).await;
    assert!(!check(&node, named("r1", "acme", 3)).await.allowed);
    node.advance(1_000);
    let admitted = check(&node, named("r1", "acme", 3)).await;
    assert!(admitted.allowed && !admitted.replayed);
}

#[tokio::test]
async fn a_name_that_was_used_for_something_else_is_refused() {
    for text in [bucket(), BUCKET_AND_POOL.to_owned()] {
        let node = open("us-east", &text).await;
        check(&node, named("r1", "acme", 3)).await;
        let left = node.remaining("acme").await;
        assert_reused(&node, named("r1", "acme", 4)).await;
        assert_reused(&node, named("r1", "bolt", 3)).await;
        let mut request = named("r1", "acme", 3);
        request.priority = Some("batch".into());
        assert_reused(&node, request).await;
        let mut request = named("r1", "acme", 3);
        request.attributes.insert("more".into(), "x".into());
        assert_reused(&node, request).await;
        assert_eq!(
            node.remaining("acme").await,
            left,
            "nothing is held or charged"
        );
        assert!(check(&node, named("r1", "acme", 3)).await.replayed);
    }
}

#[tokio::test]
async fn a_name_is_not_the_same_under_other_policies() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    check(&node, named("r1", "acme", 3)).await;
    // The revision is the same, so that the store doesn't turn the node away.
    node.shared.policies.store(testing::policies(&bucket()));
    assert_reused(&node, named("r1", "acme", 3)).await;
    assert_eq!(node.remaining("acme").await, [7]);
}

#[tokio::test]
async fn a_shadow_is_no_reason_to_pass_under_a_name_that_is_used() {
    let node = open("us-east", &(BUCKET_AND_POOL.to_owned() + "shadow = true\n")).await;
    check(&node, named("r1", "acme", 3)).await;
    assert_reused(&node, named("r1", "bolt", 3)).await;
    assert_eq!(node.remaining("bolt").await, [10, 57]);
}

#[tokio::test]
async fn a_retry_of_a_request_whose_fate_was_unknown_is_charged_once_in_all_partitions() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    node.store.fail([Fault::None, Fault::Lost(0)]);
    let unknown = node.engine.check(named("r1", "acme", 4)).await;
    assert!(
        matches!(&unknown, Err(CheckError::StoreUnavailable { outcome_unknown, .. }) if *outcome_unknown)
    );
    assert_eq!(node.remaining("acme").await, [6, 56], "it isn't put back");
    let ends = node.store.calls();
    let is_commit = |op: &Op| matches!(op, Op::EndHolds(end) if !end.release);
    assert!(ends.iter().flatten().any(is_commit), "nor left to expire");
    let again = check(&node, named("r1", "acme", 4)).await;
    assert!(again.allowed && again.replayed);
    assert_eq!(node.remaining("acme").await, [6, 56]);
    // A request that surely wasn't charged leaves nothing behind.
    node.store.fail([Fault::None, Fault::NotSent(0)]);
    assert!(node.engine.check(named("r2", "acme", 4)).await.is_err());
    assert_eq!(node.remaining("acme").await, [6, 56]);
}

#[tokio::test]
async fn a_shadow_that_failed_is_told_again_as_failed() {
    let text = BUCKET_AND_POOL.replace("burst = 10\n", "burst = 10\nshadow = true\n");
    let node = open("us-east", &text).await;
    node.store.fail([Fault::NotSent(0)]);
    let first = check(&node, named("r1", "acme", 4)).await;
    assert_eq!(outcomes(&first), [Outcome::ShadowRefused, Outcome::Allowed]);
    let again = check(&node, named("r1", "acme", 4)).await;
    assert!(again.replayed);
    assert_eq!(seen(&again), seen(&first));
}

#[tokio::test]
async fn looking_for_an_earlier_answer_charges_and_counts_nothing() {
    let node = open("us-east", BUCKET_AND_POOL).await.forgetful();
    node.check("acme", 10).await;
    let before = node.remaining("acme").await;
    node.store.calls();
    assert!(!check(&node, named("r1", "acme", 5)).await.allowed);
    let calls = node.store.calls();
    let asks = |op: &&Op| matches!(op, Op::Decide(d) if d.mode == Mode::Charge);
    let asked: Vec<&Op> = calls.iter().flatten().filter(asks).collect();
    let [Op::Decide(recall)] = asked[..] else {
        panic!("{asked:?}");
    };
    assert!(recall.remember.is_some());
    assert!(recall.charges.iter().all(|c| c.units == 0 && !c.shadow));
    assert_eq!(node.remaining("acme").await, before);
}

#[tokio::test]
async fn a_peek_has_no_name() {
    let node = open("us-east", &bucket()).await;
    let peek = CheckRequest {
        peek: true,
        ..named("r1", "acme", 3)
    };
    assert!(!check(&node, peek.clone()).await.replayed);
    assert!(!check(&node, named("r1", "acme", 4)).await.replayed);
    assert!(!check(&node, peek).await.replayed);
}

#[tokio::test]
async fn a_name_is_one_to_128_printable_characters() {
    let node = open("us-east", &bucket()).await;
    for id in ["", "caf\u{e9}", "a\nb", &"a".repeat(129)] {
        let (field, message) = invalid(node.engine.check(named(id, "acme", 1)).await);
        assert_eq!(field, "request_id");
        assert!(message.contains("expected 1 to 128"), "{message}");
    }
    assert!(node.store.calls().is_empty());
    let longest = "a ".repeat(64);
    assert!(check(&node, named(&longest, "acme", 1)).await.allowed);
}
