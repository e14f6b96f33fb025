//! What the engine promises, on the embedded store under a clock that is moved by hand.

mod across;
mod denied;
mod failing;
mod limits;
mod model;
mod retry;
mod slots;

use crate::testing::{
    self, BUCKET_AND_POOL, INTERVAL_MS, Node, START, ask, changed, open, open_with,
};
use crate::*;
use apportion_core::StoreMs;
use std::sync::Arc;

/// 100 units a minute for all.
const WINDOW: &str = r#"
regions = ["us-east"]

[[policy]]
name = "pool"
key = []
algorithm = "fixed-window"
limit = 100
per = "1m"
"#;

/// The bucket alone.
fn bucket() -> String {
    BUCKET_AND_POOL
        .split("\n[[policy]]\nname = \"pool\"")
        .next()
        .unwrap()
        .to_owned()
}

/// The same policy, a quarter each for two regions and a half for the third.
fn shared(policy: &str) -> String {
    policy.replace(
        "regions = [\"us-east\"]",
        "regions = [\"us-east\", \"eu-west\", \"ap-south\"]",
    ) + "weights = { us-east = 1, eu-west = 1, ap-south = 2 }\n"
}

fn outcomes(decision: &Decision) -> Vec<Outcome> {
    decision.limits.iter().map(|l| l.outcome).collect()
}

fn invalid(result: Result<Decision, CheckError>) -> (&'static str, String) {
    match result {
        Err(CheckError::Invalid { field, message }) => (field, message),
        other => panic!("{other:?}"),
    }
}

// === one partition ===

#[tokio::test]
async fn a_bucket_admits_its_capacity_and_then_what_flows_in() {
    let node = open("us-east", &bucket()).await;
    for left in (0..10).rev() {
        let decision = node.check("acme", 1).await;
        assert!(decision.allowed);
        let limit = &decision.limits[0];
        assert_eq!((limit.limit, limit.remaining), (60, left));
        assert_eq!(limit.reset_ms, (10 - left) * 1_000);
        assert_eq!(limit.retry_after_ms, 0);
        assert_eq!(limit.decided_by, DecidedBy::Store);
    }
    assert!(!node.check("acme", 1).await.allowed);
    assert!(
        node.check("bolt", 10).await.allowed,
        "another tenant has its own"
    );
    node.advance(999);
    assert!(!node.check("acme", 1).await.allowed);
    node.advance(1);
    assert!(node.check("acme", 1).await.allowed);
    assert!(!node.check("acme", 1).await.allowed);
}

#[tokio::test]
async fn a_window_admits_its_limit_and_the_next_one_again() {
    let node = open("us-east", WINDOW).await;
    let decision = node.check("acme", 100).await;
    assert!(decision.allowed);
    assert_eq!(decision.decided_at, START);
    assert_eq!(decision.limits[0].remaining, 0);
    node.advance(59_999);
    let decision = node.check("acme", 1).await;
    let limit = &decision.limits[0];
    assert!(!decision.allowed);
    assert_eq!((limit.reset_ms, limit.retry_after_ms), (1, 1));
    node.advance(1);
    assert!(node.check("acme", 100).await.allowed);
    assert!(!node.check("acme", 1).await.allowed);
}

#[tokio::test]
async fn a_refused_request_consumes_nothing() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 6).await;
    for _ in 0..3 {
        let decision = node.check("acme", 5).await;
        assert_eq!(outcomes(&decision), [Outcome::Refused]);
        assert_eq!(decision.limits[0].remaining, 4);
    }
    assert!(node.check("acme", 4).await.allowed);
}

#[tokio::test]
async fn a_refusal_names_the_earliest_moment_that_admits() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 10).await;
    node.advance(250);
    let decision = node.check("acme", 3).await;
    let limit = &decision.limits[0];
    assert_eq!(limit.retry_after_ms, 2_750);
    assert_eq!(limit.reset_ms, 9_750);
    node.advance(2_749);
    assert_eq!(node.check("acme", 3).await.limits[0].retry_after_ms, 1);
    node.advance(1);
    assert!(node.check("acme", 3).await.allowed);
}

#[tokio::test]
async fn a_region_with_peers_may_get_more_within_one_interval() {
    let node = open("us-east", &shared(&bucket())).await;
    // A quarter: 2.5 units, one more in 4 seconds.
    let decision = node.check("acme", 2).await;
    assert_eq!(decision.limits[0].limit, 60);
    assert_eq!(decision.limits[0].remaining, 0);
    assert_eq!(decision.limits[0].reset_ms, 8_000);
    let refused = node.check("acme", 1).await;
    assert_eq!(refused.limits[0].retry_after_ms, INTERVAL_MS);
    node.advance(1_500);
    let refused = node.check("acme", 1).await;
    assert_eq!(refused.limits[0].retry_after_ms, 500);
    let beyond_the_share = node.check("acme", 3).await;
    assert_eq!(beyond_the_share.limits[0].retry_after_ms, INTERVAL_MS);
    node.advance(500);
    assert!(node.check("acme", 1).await.allowed);
}

#[tokio::test]
async fn each_region_admits_its_base_share() {
    for (region, units) in [("us-east", 25), ("eu-west", 25), ("ap-south", 50)] {
        let node = open(region, &shared(WINDOW)).await;
        assert!(node.check("acme", units).await.allowed);
        let decision = node.check("acme", 1).await;
        assert!(!decision.allowed);
        assert_eq!(decision.region.as_str(), region);
        assert_eq!(decision.limits[0].limit, 100);
    }
}

#[tokio::test]
async fn a_window_that_is_used_up_everywhere_waits_for_its_end() {
    let node = open("us-east", &shared(WINDOW)).await;
    node.check("acme", 25).await;
    node.advance(10_000);
    let retry_after = async || node.check("acme", 1).await.limits[0].retry_after_ms;
    assert_eq!(retry_after().await, INTERVAL_MS);
    let (key, label) = (testing::key("pool@1:"), node.now().0 / 60_000);
    node.shared.outlook.set_exhausted(&key, label, true);
    assert_eq!(retry_after().await, 50_000);
    node.shared.outlook.set_exhausted(&key, label, false);
    assert_eq!(retry_after().await, INTERVAL_MS);
}

#[tokio::test]
async fn a_peek_consumes_nothing_and_tells_the_same() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 4).await;
    for (cost, allowed, outcome) in [(6, true, Outcome::Allowed), (7, false, Outcome::Refused)] {
        for _ in 0..3 {
            let decision = node.peek("acme", cost).await;
            assert_eq!(decision.allowed, allowed);
            assert_eq!(outcomes(&decision), [outcome]);
            assert_eq!(decision.limits[0].remaining, 6);
        }
    }
    assert_eq!(node.peek("acme", 7).await.limits[0].retry_after_ms, 1_000);
}

#[tokio::test]
async fn a_shadow_policy_reports_and_never_refuses() {
    let text = bucket() + "shadow = true\n";
    let mut node = open("us-east", &text).await;
    node.check("acme", 9).await;
    let decision = node.check("acme", 3).await;
    assert!(decision.allowed);
    assert_eq!(outcomes(&decision), [Outcome::ShadowRefused]);
    assert_eq!(
        decision.limits[0].remaining, 1,
        "what doesn't fit isn't charged"
    );
    assert_eq!(decision.limits[0].retry_after_ms, 2_000);
    assert!(
        node.check("acme", 11).await.allowed,
        "beyond its capacity too"
    );
    assert!(node.pressure.recv().await.is_some_and(|p| !p.refused));
    assert!(node.pressure.recv().await.is_some_and(|p| p.refused));
}

#[tokio::test]
async fn no_policy_means_no_limits() {
    let node = open("us-east", &bucket()).await;
    let nothing = CheckRequest {
        attributes: Default::default(),
        cost: 1,
        ..CheckRequest::default()
    };
    let decision = node.engine.check(nothing.clone()).await.unwrap();
    assert!(decision.allowed && decision.limits.is_empty());
    assert_eq!(decision.decided_at, START);
    assert!(node.store.calls().is_empty());
    node.shared.regime.store(None);
    let decision = node.engine.check(nothing).await.unwrap();
    assert!(decision.allowed);
    assert_eq!(decision.decided_at, StoreMs(0));
}

#[tokio::test]
async fn a_wrong_request_is_told_which_field_and_why() {
    let node = open("us-east", &bucket()).await;
    for cost in [0, MAX_COST + 1, u64::MAX] {
        let (field, message) = invalid(node.try_check("acme", cost).await);
        assert_eq!(field, "cost");
        assert!(message.contains("expected 1 to 9007199254"), "{message}");
    }
    let (field, message) = invalid(node.try_check("acme", 11).await);
    assert_eq!(field, "cost");
    assert_eq!(
        message,
        "11 is above the capacity of policy \"api\", which is 10"
    );
    let (field, message) = invalid(node.try_check(&"a".repeat(1_000), 1).await);
    assert_eq!(field, "attributes");
    assert!(message.contains("tenant"), "{message}");
    assert!(node.store.calls().is_empty());
}

#[tokio::test]
async fn no_more_than_sixteen_policies_match() {
    let policy = |i: usize| {
        format!(
            r#"
[[policy]]
name = "p{i}"
key = ["tenant"]
algorithm = "fixed-window"
limit = 9
per = "1m"
"#
        )
    };
    let text =
        |n: usize| "regions = [\"us-east\"]\n".to_owned() + &(0..n).map(policy).collect::<String>();
    let node = open("us-east", &text(MATCHES_MAX)).await;
    assert_eq!(node.check("acme", 1).await.limits.len(), MATCHES_MAX);
    let node = open("us-east", &text(MATCHES_MAX + 1)).await;
    let (field, message) = invalid(node.try_check("acme", 1).await);
    assert_eq!(field, "attributes");
    assert_eq!(message, "more than 16 policies match");
}

#[tokio::test]
async fn pressure_is_told_when_rights_run_low_and_when_they_are_out() {
    let mut node = open("us-east", WINDOW).await;
    node.check("acme", 80).await;
    assert!(node.pressure.try_recv().is_err(), "a fifth is left");
    node.check("acme", 1).await;
    let low = node.pressure.try_recv().unwrap();
    assert_eq!(low.key.as_str(), "pool@1:");
    assert_eq!(low.label, Some(START.0 / 60_000));
    assert!(!low.refused);
    node.peek("acme", 20).await;
    assert!(node.pressure.try_recv().is_err(), "a peek presses nobody");
    node.check("acme", 20).await;
    assert!(node.pressure.try_recv().unwrap().refused);
}

#[tokio::test]
async fn a_full_pressure_channel_holds_nobody_up() {
    let node = open("us-east", WINDOW).await;
    node.check("acme", 100).await;
    for _ in 0..1_100 {
        assert!(!node.check("acme", 1).await.allowed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_get_exactly_the_limit() {
    let node = open("us-east", WINDOW).await;
    let callers = (0..500).map(|_| {
        let engine = node.engine.clone();
        tokio::spawn(async move { engine.check(ask("acme", 1)).await.unwrap().allowed })
    });
    let mut admitted = 0;
    for caller in callers.collect::<Vec<_>>() {
        admitted += usize::from(caller.await.unwrap());
    }
    assert_eq!(admitted, 100);
}
