//! Requests that are charged in several partitions: all or nothing.

use super::*;
use crate::testing::Fault;
use apportion_core::Algorithm;
use apportion_core::fence::HOLD_MAX_MS;
use apportion_core::meter::HOLDS_MAX;
use apportion_store::{Mode, Op};

/// A bucket and a window for each tenant, and the pool of all tenants, in another partition.
const THREE: &str = r#"
regions = ["us-east"]

[[policy]]
name = "api"
key = ["tenant"]
algorithm = "token-bucket"
limit = 60
per = "1m"
burst = 10

[[policy]]
name = "daily"
key = ["tenant"]
algorithm = "fixed-window"
limit = 20
per = "24h"

[[policy]]
name = "pool"
key = []
algorithm = "fixed-window"
limit = 12
per = "1m"
usage = "1h"
"#;

fn partitions() -> [apportion_core::Partition; 3] {
    ["api@1:acme", "api@1:bolt", "pool@1:"].map(|text| testing::key(text).partition())
}

#[tokio::test]
async fn a_request_that_fits_everywhere_is_charged_everywhere() {
    let [acme, bolt, pool] = partitions();
    assert!(
        acme != pool && bolt != pool,
        "the tests need two partitions"
    );
    let node = open("us-east", THREE).await;
    let decision = node.check("acme", 3).await;
    assert_eq!(outcomes(&decision), [Outcome::Allowed; 3]);
    let remaining: Vec<u64> = decision.limits.iter().map(|l| l.remaining).collect();
    assert_eq!(remaining, [7, 17, 9]);
    let calls = node.store.calls();
    assert_eq!(calls.len(), 3, "held, charged, and the hold ended");
    assert!(
        matches!(&calls[1][..], [Op::Decide(d)] if d.partition == pool && d.mode == Mode::Charge),
        "the widest subject is charged last"
    );
    assert!(matches!(&calls[2][..], [Op::EndHolds(end)] if !end.release));
    assert_eq!(node.remaining("acme").await, [7, 17, 9]);
    node.advance(HOLD_MAX_MS + 1);
    assert_eq!(
        node.remaining("acme").await,
        [10, 17, 9],
        "and stays charged"
    );
}

#[tokio::test]
async fn a_refusal_by_the_last_gives_the_others_back_exactly() {
    let node = open("us-east", THREE).await;
    node.check("acme", 8).await;
    node.check("bolt", 3).await;
    let before = node.remaining("bolt").await;
    assert_eq!(before, [7, 17, 1]);
    let decision = node.check("bolt", 2).await;
    assert!(!decision.allowed);
    assert_eq!(
        outcomes(&decision),
        [Outcome::NotCharged, Outcome::NotCharged, Outcome::Refused]
    );
    let told: Vec<u64> = decision.limits.iter().map(|l| l.remaining).collect();
    assert_eq!(told, before, "what was put back is there again");
    assert_eq!(decision.limits[0].reset_ms, 3_000);
    let retries: Vec<u64> = decision.limits.iter().map(|l| l.retry_after_ms).collect();
    assert_eq!(retries, [0, 0, 60_000]);
    assert_eq!(node.remaining("bolt").await, before);
    node.advance(HOLD_MAX_MS + 1);
    assert_eq!(node.remaining("bolt").await, [10, 17, 1]);
}

#[tokio::test]
async fn a_sliding_window_and_slots_are_told_as_if_nothing_had_been_held() {
    for algorithm in [
        Algorithm::SlidingLog { per_ms: 60_000 },
        Algorithm::SlidingWindow {
            per_ms: 60_000,
            buckets: 1,
        },
        Algorithm::Concurrency {
            slot_ttl_ms: 60_000,
        },
    ] {
        let policies = changed(THREE, |policy| {
            if policy.name == "daily" {
                policy.algorithm = algorithm;
            }
        });
        let node = open_with("us-east", policies).await;
        node.check("acme", 9).await;
        let refused = node.check("bolt", 4).await;
        assert_eq!(
            outcomes(&refused),
            [Outcome::NotCharged, Outcome::NotCharged, Outcome::Refused]
        );
        assert_eq!(refused.limits[1].remaining, 20);
        assert_eq!(node.remaining("bolt").await, [10, 20, 3]);
    }
}

#[tokio::test]
async fn a_refusal_by_a_first_leaves_the_last_unasked_and_still_tells_of_it() {
    let node = open("us-east", THREE).await.forgetful();
    node.check("acme", 8).await;
    let decision = node.check("acme", 3).await;
    assert_eq!(
        outcomes(&decision),
        [Outcome::Refused, Outcome::NotCharged, Outcome::NotCharged]
    );
    let told: Vec<u64> = decision.limits.iter().map(|l| l.remaining).collect();
    assert_eq!(told, [2, 12, 4]);
    assert_eq!(decision.limits[0].retry_after_ms, 1_000);
    let decision = node.check("acme", 5).await;
    assert_eq!(
        outcomes(&decision),
        [Outcome::Refused, Outcome::NotCharged, Outcome::Refused]
    );
    assert_eq!(node.remaining("acme").await, [2, 12, 4]);
}

#[tokio::test]
async fn a_refusal_stands_where_the_last_cannot_be_read() {
    let node = open("us-east", THREE).await;
    node.check("acme", 8).await;
    node.store.fail([Fault::None, Fault::NotSent(0)]);
    let decision = node.check("acme", 3).await;
    assert!(!decision.allowed);
    assert_eq!(
        outcomes(&decision),
        [Outcome::Refused, Outcome::NotCharged, Outcome::NotCharged]
    );
    assert_eq!(decision.limits[2].decided_by, DecidedBy::FailureMode);
}

#[tokio::test]
async fn a_hold_that_is_not_ended_counts_as_spent() {
    let node = open("us-east", THREE).await;
    node.store
        .fail([Fault::None, Fault::NotSent(0), Fault::NotSent(0)]);
    assert!(node.try_check("acme", 4).await.is_err());
    assert_eq!(node.remaining("acme").await, [6, 16, 12]);
    node.advance(HOLD_MAX_MS + 1);
    assert_eq!(node.remaining("acme").await, [6, 16, 12]);
    assert!(node.check("acme", 1).await.allowed);
    node.advance(3_000);
    assert_eq!(node.remaining("acme").await, [8, 15, 11]);
}

#[tokio::test]
async fn a_meter_full_of_holds_asks_for_a_moment_and_not_for_more_rights() {
    let text = THREE
        .replace("burst = 10", "burst = 1000")
        .replace("limit = 12", "limit = 1000")
        .replace("limit = 20", "limit = 1000");
    let mut node = open("us-east", &text).await;
    for _ in 0..HOLDS_MAX {
        node.store
            .fail([Fault::None, Fault::None, Fault::NotSent(0)]);
        assert!(node.check("acme", 1).await.allowed);
    }
    let decision = node.check("acme", 1).await;
    assert_eq!(
        outcomes(&decision),
        [Outcome::Refused, Outcome::Refused, Outcome::NotCharged]
    );
    assert_eq!(decision.limits[0].remaining, 1000 - HOLDS_MAX as u64);
    assert_eq!(decision.limits[0].retry_after_ms, 1);
    assert!(node.pressure.try_recv().is_err(), "there are rights enough");
    node.advance(HOLD_MAX_MS);
    assert!(node.check("acme", 1).await.allowed);
}

#[tokio::test]
async fn a_failed_end_changes_no_answer() {
    let node = open("us-east", THREE).await;
    node.store.fail([Fault::None, Fault::None, Fault::Lost(0)]);
    assert!(node.check("acme", 4).await.allowed);
    node.store
        .fail([Fault::None, Fault::None, Fault::NotSent(0)]);
    assert!(node.check("acme", 4).await.allowed);
    assert_eq!(node.remaining("acme").await, [2, 12, 4]);
    node.store
        .fail([Fault::None, Fault::None, Fault::NotSent(0)]);
    let decision = node.check("bolt", 5).await;
    assert_eq!(
        outcomes(&decision),
        [Outcome::NotCharged, Outcome::NotCharged, Outcome::Refused]
    );
    assert_eq!(decision.limits[0].remaining, 5, "still held");
    assert_eq!(node.remaining("bolt").await, [5, 15, 4]);
}

#[tokio::test]
async fn a_request_that_fails_with_holds_that_stay_says_that_it_may_have_been_charged() {
    let unknown = async |last: Fault, end: Fault| {
        let node = open("us-east", THREE).await;
        node.store.fail([Fault::None, last, end]);
        let check = crate::testing::ask("acme", 4);
        match node.engine.check(check).await {
            Err(CheckError::StoreUnavailable {
                outcome_unknown, ..
            }) => outcome_unknown,
            other => panic!("{other:?}"),
        }
    };
    assert!(!unknown(Fault::NotSent(0), Fault::None).await);
    assert!(unknown(Fault::NotSent(0), Fault::NotSent(0)).await);
    assert!(unknown(Fault::NotSent(0), Fault::Lost(0)).await);
}

#[tokio::test]
async fn a_hold_that_expires_on_the_way_is_spent_and_the_request_may_pass() {
    let node = open("us-east", THREE).await;
    node.store
        .fail([Fault::None, Fault::Wait(HOLD_MAX_MS), Fault::None]);
    let decision = node.check("acme", 4).await;
    assert!(decision.allowed);
    assert_eq!(decision.decided_at, START.plus(HOLD_MAX_MS));
    node.anchor();
    assert_eq!(node.remaining("acme").await, [6, 16, 8]);
}

#[tokio::test]
async fn a_shadow_in_another_partition_refuses_nothing() {
    let text = THREE.replace("usage = \"1h\"", "shadow = true");
    let node = open("us-east", &text).await;
    node.check("acme", 10).await;
    let decision = node.check("bolt", 5).await;
    assert!(decision.allowed);
    assert_eq!(
        outcomes(&decision),
        [Outcome::Allowed, Outcome::Allowed, Outcome::ShadowRefused]
    );
    assert_eq!(node.remaining("bolt").await, [5, 15, 2]);
}

#[tokio::test]
async fn a_peek_lays_no_holds() {
    let node = open("us-east", THREE).await;
    assert!(node.peek("acme", 10).await.allowed);
    let calls = node.store.calls();
    assert_eq!(calls.len(), 1);
    let peeks = |op: &Op| matches!(op, Op::Decide(d) if d.mode == Mode::Peek);
    assert!(calls[0].len() == 2 && calls[0].iter().all(peeks));
    assert_eq!(node.remaining("acme").await, [10, 20, 12]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_in_two_partitions_are_charged_for_what_was_admitted() {
    let text = THREE
        .replace("burst = 10", "burst = 150")
        .replace("limit = 12", "limit = 100")
        .replace("limit = 20", "limit = 120");
    let node = open("us-east", &text).await;
    let callers = (0..500).map(|i| {
        let engine = node.engine.clone();
        let tenant = ["acme", "bolt"][i % 2];
        tokio::spawn(async move { (i % 2, engine.check(ask(tenant, 1)).await.unwrap().allowed) })
    });
    let mut admitted = [0, 0];
    for caller in callers.collect::<Vec<_>>() {
        let (tenant, allowed) = caller.await.unwrap();
        admitted[tenant] += u64::from(allowed);
    }
    let pool = 100 - admitted[0] - admitted[1];
    for (tenant, n) in ["acme", "bolt"].iter().zip(admitted) {
        assert_eq!(node.remaining(tenant).await, [150 - n, 120 - n, pool]);
    }
    assert!(pool < 100, "some were admitted");
}
