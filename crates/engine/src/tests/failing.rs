//! A store that fails, forgets this node, or isn't there yet.

use super::*;
use crate::testing::{Fault, put_state};
use apportion_core::Regime;
use apportion_core::fence::{SPAN_MS, Span};
use std::time::Duration;

fn unavailable(result: Result<Decision, CheckError>) -> (String, bool) {
    match result {
        Err(CheckError::StoreUnavailable {
            region,
            reason,
            outcome_unknown,
        }) => {
            assert_eq!(region.as_str(), "us-east");
            (reason, outcome_unknown)
        }
        other => panic!("{other:?}"),
    }
}

/// Another node has opened a new epoch; this one hasn't heard.
async fn next_epoch(node: &Node) -> Arc<Regime> {
    let before = node.regime();
    let regime = Regime {
        state: Arc::new((*before.state).clone().next_epoch(node.now())),
        span: Span::after(node.now()),
        ..(*before).clone()
    };
    put_state(&*node.store, 1, &regime).await;
    node.store.calls();
    Arc::new(regime)
}

/// The sync side's part, once: whenever it is told to look, it finds `regime`.
fn look_once(node: &Node, regime: Arc<Regime>) -> tokio::task::JoinHandle<()> {
    let shared = node.shared.clone();
    tokio::spawn(async move {
        shared.look_again.notified().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        shared.regime.store(Some(regime));
    })
}

#[tokio::test]
async fn nothing_is_decided_before_the_first_contact() {
    let node = open("us-east", WINDOW).await;
    let regime = node.shared.regime.swap(None);
    let (reason, unknown) = unavailable(node.try_check("acme", 1).await);
    assert!(reason.contains("not in contact with the store"), "{reason}");
    assert!(!unknown);
    assert!(node.store.calls().is_empty());
    node.shared.regime.store(regime);
    assert!(node.check("acme", 100).await.allowed);
}

#[tokio::test]
async fn policies_are_not_used_under_the_regime_of_others() {
    let node = open("us-east", WINDOW).await;
    let next = "revision = 2\n".to_owned() + &WINDOW.replace("100", "1000");
    node.shared.policies.store(testing::policies(&next));
    let (reason, unknown) = unavailable(node.try_check("acme", 1).await);
    assert!(reason.contains("revision 2"), "{reason}");
    assert!(!unknown);
    assert!(node.store.calls().is_empty());
}

#[tokio::test]
async fn a_call_that_may_have_been_executed_is_not_made_again() {
    let node = open("us-east", WINDOW).await;
    node.store.fail([Fault::Lost(0)]);
    let (_, unknown) = unavailable(node.try_check("acme", 60).await);
    assert!(unknown);
    assert_eq!(node.store.calls().len(), 1);
    assert_eq!(node.remaining("acme").await, [40]);
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_known_not_to_have_been() {
    let node = open("us-east", WINDOW).await;
    node.store.fail([Fault::NotSent(0)]);
    let (_, unknown) = unavailable(node.try_check("acme", 60).await);
    assert!(!unknown);
    assert_eq!(node.store.calls().len(), 1);
    assert_eq!(node.remaining("acme").await, [100]);
}

#[tokio::test]
async fn a_failure_in_one_partition_gives_the_others_back() {
    for (fault, expected) in [(Fault::NotSent(0), [10, 60]), (Fault::Lost(0), [10, 56])] {
        let node = open("us-east", BUCKET_AND_POOL).await;
        node.store.fail([Fault::None, fault]);
        let (_, unknown) = unavailable(node.try_check("acme", 4).await);
        assert_eq!(unknown, matches!(fault, Fault::Lost(_)));
        assert_eq!(node.remaining("acme").await, expected);
    }
    // A hold whose reply is lost can't be put back: nobody knows in which window it was laid.
    let node = open("us-east", BUCKET_AND_POOL).await;
    node.store.fail([Fault::Lost(0)]);
    let (_, unknown) = unavailable(node.try_check("acme", 4).await);
    assert!(unknown);
    assert_eq!(node.store.calls().len(), 1);
    assert_eq!(node.remaining("acme").await, [6, 60]);
}

#[tokio::test]
async fn a_shadow_policy_refuses_nothing_when_its_store_is_gone() {
    let node = open("us-east", &(bucket() + "shadow = true\n")).await;
    node.store.fail([Fault::NotSent(0)]);
    let decision = node.check("acme", 1).await;
    assert!(decision.allowed);
    assert_eq!(outcomes(&decision), [Outcome::ShadowRefused]);
    assert_eq!(decision.limits[0].decided_by, DecidedBy::FailureMode);
    let pool_in_shadow = BUCKET_AND_POOL.to_owned() + "shadow = true\n";
    let node = open("us-east", &pool_in_shadow).await;
    node.store.fail([Fault::None, Fault::NotSent(0)]);
    let decision = node.check("acme", 4).await;
    assert!(decision.allowed);
    assert_eq!(
        outcomes(&decision),
        [Outcome::Allowed, Outcome::ShadowRefused]
    );
    assert_eq!(node.remaining("acme").await, [6, 60]);
}

#[tokio::test]
async fn a_node_that_was_fenced_off_asks_once_more_under_the_new_regime() {
    let node = open("us-east", WINDOW).await;
    node.check("acme", 30).await;
    let regime = next_epoch(&node).await;
    let looked = look_once(&node, regime);
    let decision = node.check("acme", 30).await;
    assert!(decision.allowed);
    assert_eq!(decision.limits[0].remaining, 40);
    assert_eq!(node.store.calls().len(), 2);
    looked.await.unwrap();
}

#[tokio::test]
async fn a_node_that_stays_fenced_off_gives_up_and_keeps_asking_for_a_look() {
    let node = open("us-east", WINDOW).await;
    next_epoch(&node).await;
    let (reason, unknown) = unavailable(node.try_check("acme", 1).await);
    assert!(reason.contains("fenced"), "{reason}");
    assert!(!unknown);
    assert_eq!(node.store.calls().len(), 1);
    let told = node.shared.look_again.notified();
    tokio::time::timeout(Duration::from_secs(1), told)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_new_regime_that_is_turned_away_too_is_the_last_try() {
    let node = open("us-east", WINDOW).await;
    node.store.fail([Fault::LookAgain(0); 3]);
    let (shared, regime) = (node.shared.clone(), node.regime());
    let looking = tokio::spawn(async move {
        loop {
            shared.look_again.notified().await;
            shared.regime.store(Some(Arc::new((*regime).clone())));
        }
    });
    let (_, unknown) = unavailable(node.try_check("acme", 1).await);
    assert!(!unknown);
    assert_eq!(node.store.calls().len(), 2);
    looking.abort();
    node.store.fail([Fault::None]);
    unavailable(node.try_check("acme", 1).await);
    assert!(node.check("acme", 100).await.allowed, "nothing was charged");
}

#[tokio::test]
async fn what_was_held_when_one_partition_turned_away_is_charged_once() {
    let two_windows = BUCKET_AND_POOL
        .replace("token-bucket", "fixed-window")
        .replace("burst = 10\n", "");
    // The last partition, and then the first, sends the node to look.
    for faults in [
        vec![Fault::None, Fault::LookAgain(0)],
        vec![Fault::LookAgain(0)],
    ] {
        let node = open("us-east", &two_windows).await;
        node.store.fail(faults);
        let looked = look_once(&node, Arc::new((*node.regime()).clone()));
        let decision = node.check("acme", 25).await;
        assert!(decision.allowed);
        assert_eq!(node.remaining("acme").await, [35, 35]);
        looked.await.unwrap();
    }
}

#[tokio::test]
async fn what_was_held_is_given_back_when_the_look_comes_to_nothing() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    node.store.fail([Fault::None, Fault::LookAgain(0)]);
    let (_, unknown) = unavailable(node.try_check("acme", 4).await);
    assert!(!unknown);
    assert_eq!(node.remaining("acme").await, [10, 60]);
}

#[tokio::test]
async fn what_may_have_been_executed_is_not_asked_again_though_another_was_turned_away() {
    let text = BUCKET_AND_POOL.to_owned()
        + r#"
[[policy]]
name = "user"
key = ["user"]
algorithm = "fixed-window"
limit = 30
per = "1m"
"#;
    let node = open("us-east", &text).await;
    let mut request = ask("acme", 4);
    request.attributes.insert("user".into(), "kim".into());
    node.store.fail([Fault::LookAgainAndLost]);
    let looked = look_once(&node, Arc::new((*node.regime()).clone()));
    let (_, unknown) = unavailable(node.engine.check(request.clone()).await);
    assert!(unknown);
    assert_eq!(node.store.calls().len(), 1);
    looked.await.unwrap();
    request.peek = true;
    let decision = node.engine.check(request).await.unwrap();
    let remaining: Vec<u64> = decision.limits.iter().map(|l| l.remaining).collect();
    assert_eq!(remaining, [10, 60, 26]);
}

#[tokio::test]
async fn a_turned_away_shadow_never_makes_a_refusal_without_a_reason() {
    let text = BUCKET_AND_POOL.replace("burst = 10\n", "burst = 10\nshadow = true\n");
    let node = open("us-east", &text).await;
    node.store.fail([Fault::LookAgain(0)]);
    let (_, unknown) = unavailable(node.try_check("acme", 4).await);
    assert!(!unknown);
}

#[tokio::test]
async fn outside_the_span_only_what_is_there_is_spent() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 6).await;
    node.store.wait(SPAN_MS + 1);
    let decision = node.check("acme", 5).await;
    assert!(!decision.allowed, "no refill that nobody vouches for");
    assert_eq!(decision.limits[0].remaining, 4);
    assert_eq!(decision.limits[0].retry_after_ms, INTERVAL_MS);
    assert!(node.check("acme", 4).await.allowed);
    node.anchor();
    // What would have flowed in before it was spent isn't given afterwards.
    assert_eq!(node.remaining("acme").await, [0]);
    node.store.wait(2_000);
    assert_eq!(node.remaining("acme").await, [2], "now the refill counts");
}
