//! The denied-cache: it never refuses what the store would admit, and loses no count.

mod property;

use super::*;
use crate::testing::Fault;
use apportion_core::fence::SPAN_MS;
use apportion_core::policy::{Class, Plans, PoolMembers, Standing};
use apportion_core::{Algorithm, Limits, Regime, lives};
use apportion_store::{Mode, Op, Reply, Store};

/// Checks, and whether the store was asked.
async fn asks(node: &Node, request: CheckRequest) -> (Decision, bool) {
    node.store.calls();
    let decision = node.engine.check(request).await.unwrap();
    (decision, !node.store.calls().is_empty())
}

/// Refused by the node alone.
async fn assert_denied(node: &Node, request: CheckRequest) -> Decision {
    let (decision, asked) = asks(node, request).await;
    assert!(!decision.allowed && !asked);
    decision
}

/// Refused by the store.
async fn assert_refused(node: &Node, request: CheckRequest) -> Decision {
    let (decision, asked) = asks(node, request).await;
    assert!(!decision.allowed && asked);
    decision
}

/// Units that the store was told of as refused without it.
fn told(calls: &[Vec<Op>]) -> u64 {
    let denied = |op: &Op| match op {
        Op::Decide(decide) => decide.charges.iter().map(|c| c.denied).sum(),
        _ => 0,
    };
    calls.iter().flatten().map(denied).sum()
}

/// The store has lost an earlier life.
async fn later_life(node: &Node) {
    let before = node.regime();
    let mut state = (*before.state).clone();
    state.standing = lives::Standing::Later;
    let regime = Regime {
        state: Arc::new(state),
        ..(*before).clone()
    };
    testing::put_state(&*node.store, 1, &regime).await;
    node.shared.regime.store(Some(Arc::new(regime)));
}

async fn attempts(node: &Node, key: &str, label: Option<u64>) -> u64 {
    let key = testing::key(key);
    let read = Op::Read {
        fence: node.regime().fence(),
        partition: key.partition(),
        ids: vec![apportion_store::MeterId { key, label }],
    };
    let Ok(Reply::Snapshots { snapshots, .. }) = node.store.one(read).await else {
        panic!("it is there");
    };
    snapshots[0].traded.as_ref().map_or(0, |t| t.attempts)
}

#[tokio::test]
async fn what_was_refused_is_refused_again_without_a_call_until_it_would_fit() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 10).await;
    let refused = assert_refused(&node, ask("acme", 3)).await;
    assert_eq!(refused.limits[0].retry_after_ms, 3_000);
    node.advance(1_200);
    let denied = assert_denied(&node, ask("acme", 3)).await;
    assert_eq!(outcomes(&denied), [Outcome::Refused]);
    assert_eq!(denied.decided_at, node.now());
    let told = &denied.limits[0];
    assert_eq!(told.decided_by, DecidedBy::DeniedCache);
    assert_eq!((told.limit, told.remaining), (60, 1));
    assert_eq!((told.reset_ms, told.retry_after_ms), (8_800, 1_800));
    assert_denied(&node, ask("acme", 4)).await;
    let (decision, asked) = asks(&node, ask("acme", 1)).await;
    assert!(decision.allowed && asked, "it needs less");
    assert!(node.check("bolt", 3).await.allowed, "another subject");
    node.advance(2_800);
    assert!(node.check("acme", 3).await.allowed);
}

#[tokio::test]
async fn a_class_that_leaves_less_is_not_refused_with_one_that_leaves_more() {
    let policies = changed(&bucket(), |policy| {
        policy.classes = [("first", 0), ("last", 500_000)]
            .map(|(name, ppm)| Class {
                name: name.into(),
                standing: Standing::Leaves { ppm },
            })
            .into();
    });
    let node = open_with("us-east", policies).await;
    let ask_as = |priority: &str, cost| CheckRequest {
        priority: Some(priority.into()),
        ..ask("acme", cost)
    };
    node.check("acme", 5).await;
    assert_refused(&node, ask_as("last", 1)).await;
    let denied = assert_denied(&node, ask_as("last", 1)).await;
    assert_eq!(denied.limits[0].remaining, 0);
    assert_eq!(denied.limits[0].retry_after_ms, 1_000);
    assert!(node.engine.check(ask_as("first", 5)).await.unwrap().allowed);
    assert_denied(&node, ask_as("first", 10)).await;
}

// === counts ===

#[tokio::test]
async fn what_was_refused_here_is_told_with_the_next_call() {
    let node = open("us-east", &(bucket() + "usage = \"1h\"\n")).await;
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 3)).await;
    for cost in [3, 4, 5] {
        assert_denied(&node, ask("acme", cost)).await;
    }
    assert_refused(&node, ask("acme", 1)).await;
    assert_eq!(attempts(&node, "api@1:acme", None).await, 3 + 12 + 1);
    node.store.calls();
    node.advance(3_000);
    assert!(node.check("acme", 1).await.allowed);
    assert_eq!(told(&node.store.calls()), 0, "told once");
    let key = testing::key("api@1:acme");
    let usage = Op::Usage {
        fence: node.regime().fence(),
        partition: key.partition(),
        key,
        starts: vec![StoreMs(START.0 / 3_600_000 * 3_600_000)],
    };
    let Ok(Reply::Usage { periods, .. }) = node.store.one(usage).await else {
        panic!("it is there");
    };
    let (_, counts) = &periods[0][0];
    assert_eq!((counts.admitted, counts.refused), (11, 16));
}

#[tokio::test]
async fn what_nobody_asks_for_again_is_told_after_a_second() {
    let node = open("us-east", &bucket()).await;
    for tenant in ["acme", "bolt"] {
        node.check(tenant, 10).await;
        assert_refused(&node, ask(tenant, 8)).await;
        assert_denied(&node, ask(tenant, 8)).await;
        assert_denied(&node, ask(tenant, 9)).await;
    }
    node.engine.flush_denied().await;
    assert!(node.store.calls().is_empty(), "a second isn't over");
    node.advance(1_000);
    node.store.fail([Fault::NotSent(0)]);
    node.engine.flush_denied().await;
    assert_eq!(told(&node.store.calls()), 34);
    node.engine.flush_denied().await;
    let calls = node.store.calls();
    assert_eq!(told(&calls), 17, "what didn't arrive is told again");
    assert!(matches!(&calls[0][..], [Op::Decide(d)] if d.mode == Mode::Note));
    for key in ["api@1:acme", "api@1:bolt"] {
        assert_eq!(attempts(&node, key, None).await, 8 + 17);
    }
    node.engine.flush_denied().await;
    assert!(node.store.calls().len() == 2, "the reads");
    assert_denied(&node, ask("acme", 8)).await;
}

#[tokio::test]
async fn a_node_that_ends_tells_all_that_it_refused() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 8)).await;
    assert_denied(&node, ask("acme", 8)).await;
    let regime = node.shared.regime.swap(None);
    node.engine.drain_denied().await;
    node.shared.regime.store(regime);
    node.engine.drain_denied().await;
    assert_eq!(attempts(&node, "api@1:acme", None).await, 16);
}

#[tokio::test]
async fn what_the_store_was_surely_not_told_is_told_again() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 8)).await;
    assert_denied(&node, ask("acme", 8)).await;
    node.store.fail([Fault::NotSent(0)]);
    assert!(node.try_check("acme", 1).await.is_err());
    assert_eq!(told(&node.store.calls()), 8);
    assert_refused(&node, ask("acme", 1)).await;
    assert_eq!(attempts(&node, "api@1:acme", None).await, 8 + 8 + 1);
}

// === for how long ===

/// After a refusal that takes a minute, how long until the store is asked again.
async fn used_for(node: &Node, request: CheckRequest) -> u64 {
    assert_refused(node, request.clone()).await;
    for passed in 0..=60_000 {
        let (decision, asked) = asks(node, request.clone()).await;
        assert!(!decision.allowed || passed == 60_000);
        if asked {
            return passed;
        }
        node.advance(1);
    }
    panic!("it is used too long");
}

#[tokio::test]
async fn a_refusal_is_used_for_as_long_as_nothing_can_change_it() {
    let tenants_window = WINDOW.replace("key = []", "key = [\"tenant\"]");
    let node = open("us-east", &tenants_window).await;
    node.check("acme", 100).await;
    // A minute, less what clocks may differ by.
    assert_eq!(used_for(&node, ask("acme", 1)).await, 60_000 - 60 - 1);

    let node = open("us-east", &shared(&tenants_window)).await;
    node.check("acme", 25).await;
    let passed = used_for(&node, ask("acme", 1)).await;
    assert_eq!(passed, UNSURE_MS, "another region may lend");

    let two = tenants_window.clone() + &bucket().replace("regions = [\"us-east\"]", "");
    let node = open(
        "us-east",
        &two.replace(
            "[\"tenant\"]\nalgorithm = \"token",
            "[\"x\"]\nalgorithm = \"token",
        ),
    )
    .await;
    node.check("acme", 100).await;
    let passed = used_for(&node, ask("acme", 1)).await;
    assert_eq!(passed, UNSURE_MS, "what another node holds may be put back");

    let slots = changed(&tenants_window, |policy| {
        policy.algorithm = Algorithm::Concurrency {
            slot_ttl_ms: 60_000,
        };
    });
    let node = open_with("us-east", slots).await;
    node.check("acme", 100).await;
    let passed = used_for(&node, ask("acme", 1)).await;
    assert_eq!(passed, UNSURE_MS, "a slot may be released");

    let plans = changed(&tenants_window, |policy| {
        policy.plans = Some(Plans {
            by: "plan".into(),
            plans: [("pro".to_owned(), Limits::of(200))].into(),
        });
    });
    let node = open_with("us-east", plans).await;
    node.check("acme", 100).await;
    let passed = used_for(&node, ask("acme", 1)).await;
    assert_eq!(
        passed, UNSURE_MS,
        "the key may be charged under another plan"
    );
}

#[tokio::test]
async fn a_refusal_is_used_for_a_minute_at_most() {
    let node = open(
        "us-east",
        &bucket().replace("per = \"1m\"", "per = \"24h\""),
    )
    .await;
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 1)).await;
    node.advance(SURE_MAX_MS - 1);
    assert_denied(&node, ask("acme", 1)).await;
    node.advance(1);
    assert_refused(&node, ask("acme", 1)).await;
}

#[tokio::test]
async fn a_key_under_another_plan_is_not_refused_with_it() {
    let policies = changed(&bucket(), |policy| {
        policy.plans = Some(Plans {
            by: "plan".into(),
            plans: [(
                "pro".to_owned(),
                Limits {
                    limit: 60_000,
                    burst: 1_000,
                },
            )]
            .into(),
        });
    });
    let node = open_with("us-east", policies).await;
    let pro = |cost| {
        let mut request = ask("acme", cost);
        request.attributes.insert("plan".into(), "pro".into());
        request
    };
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 5)).await;
    node.advance(50);
    assert_denied(&node, ask("acme", 5)).await;
    assert!(node.engine.check(pro(1)).await.unwrap().allowed);
    // The bucket went on under the larger plan.
    assert!(node.check("acme", 5).await.allowed);
}

// === what takes it out ===

#[tokio::test]
async fn a_release_by_this_node_counts_at_once_and_by_another_soon() {
    let policies = changed(WINDOW, |policy| {
        policy.algorithm = Algorithm::Concurrency {
            slot_ttl_ms: 60_000,
        };
    });
    let node = open_with("us-east", policies).await;
    let other = node.another();
    let slots = node.check("acme", 50).await.reservation.unwrap();
    let others = other.check("acme", 50).await.reservation.unwrap();
    assert_refused(&node, ask("acme", 1)).await;
    assert_denied(&node, ask("acme", 1)).await;
    node.engine.release(&slots).await.unwrap();
    assert!(node.check("acme", 50).await.allowed);
    assert_refused(&node, ask("acme", 1)).await;
    other.engine.release(&others).await.unwrap();
    assert_denied(&node, ask("acme", 1)).await;
    node.advance(UNSURE_MS);
    assert!(node.check("acme", 50).await.allowed);
}

#[tokio::test]
async fn what_is_put_back_by_this_node_counts_at_once() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    node.check("bolt", 1).await;
    for tenant in ["a", "b", "c", "d", "e"] {
        node.check(tenant, 10).await;
    }
    // 9 are left in the pool. The first is held for a request that is refused; the second is refused meanwhile.
    let (first, second) = (ask("acme", 10), ask("acme", 1));
    let (first, second) = tokio::join!(biased; node.engine.check(first), node.engine.check(second));
    assert!(!first.unwrap().allowed);
    assert!(!second.unwrap().allowed, "its tenant's bucket was held");
    assert!(node.check("acme", 1).await.allowed, "and is put back");
}

#[tokio::test]
async fn what_the_sync_side_changes_counts_at_once() {
    let node = open("us-east", WINDOW).await;
    node.check("acme", 100).await;
    let key = testing::key("pool@1:");
    assert_refused(&node, ask("acme", 1)).await;
    assert_denied(&node, ask("acme", 2)).await;
    node.shared.denied.changed(&key);
    assert_refused(&node, ask("acme", 1)).await;
    assert_eq!(
        attempts(&node, "pool@1:", Some(START.0 / 60_000)).await,
        1 + 2 + 1
    );
    // Also if it comes while the store is asked.
    node.shared.denied.changed(&key);
    let (refused, ()) = tokio::join!(node.check("acme", 1), async {
        node.shared.denied.changed(&key);
    });
    assert!(!refused.allowed);
    assert_refused(&node, ask("acme", 1)).await;
}

#[tokio::test]
async fn another_regime_and_other_policies_begin_anew() {
    let node = open("us-east", WINDOW).await;
    node.check("acme", 100).await;
    assert_refused(&node, ask("acme", 1)).await;
    node.anchor();
    assert_denied(&node, ask("acme", 1)).await;
    let before = node.regime();
    let epoch = Regime {
        state: Arc::new((*before.state).clone().next_epoch(node.now())),
        ..(*before).clone()
    };
    testing::put_state(&*node.store, 1, &epoch).await;
    node.shared.regime.store(Some(Arc::new(epoch)));
    assert_refused(&node, ask("acme", 1)).await;
    assert_denied(&node, ask("acme", 1)).await;
    let more = WINDOW.replace("limit = 100", "limit = 101");
    node.shared.policies.store(testing::policies(&more));
    assert!(node.check("acme", 1).await.allowed);
}

// === what it isn't for ===

#[tokio::test]
async fn it_is_not_for_shadows_peeks_names_exemptions_and_pools() {
    let shadow = open("us-east", &(WINDOW.to_owned() + "shadow = true\n")).await;
    shadow.check("acme", 100).await;
    for _ in 0..2 {
        let (decision, asked) = asks(&shadow, ask("acme", 1)).await;
        assert!(decision.allowed && asked);
    }
    let policies = changed(WINDOW, |policy| {
        policy.classes = [
            ("first", Standing::Leaves { ppm: 0 }),
            ("free", Standing::Exempt),
        ]
        .map(|(name, standing)| Class {
            name: name.into(),
            standing,
        })
        .into();
    });
    let node = open_with("us-east", policies).await;
    node.check("acme", 100).await;
    assert_refused(&node, ask("acme", 1)).await;
    assert_denied(&node, ask("acme", 1)).await;
    let peek = CheckRequest {
        peek: true,
        ..ask("acme", 1)
    };
    assert_refused(&node, peek).await;
    let named = CheckRequest {
        request_id: Some("r1".into()),
        ..ask("acme", 1)
    };
    assert_refused(&node, named).await;
    let exempt = CheckRequest {
        priority: Some("free".into()),
        ..ask("acme", 1)
    };
    assert!(asks(&node, exempt).await.1);
    let pool = changed(&bucket(), |policy| {
        policy.pool = Some(PoolMembers {
            by: "member".into(),
            default_weight: 1,
            weights: Default::default(),
        });
    });
    let node = open_with("us-east", pool).await;
    node.check("acme", 10).await;
    assert_refused(&node, ask("acme", 1)).await;
    assert_refused(&node, ask("acme", 1)).await;
}

#[tokio::test]
async fn what_a_clock_that_nobody_vouches_for_refuses_is_not_remembered() {
    let node = open("us-east", &bucket()).await;
    node.check("acme", 10).await;
    node.store.wait(SPAN_MS + 1);
    assert_refused(&node, ask("acme", 1)).await;
    assert_refused(&node, ask("acme", 1)).await;
    node.anchor();
    assert!(node.check("acme", 1).await.allowed);
}

#[tokio::test]
async fn a_meter_that_may_have_been_lost_says_more_than_it_knows() {
    let policies = changed(WINDOW, |policy| {
        policy.algorithm = Algorithm::SlidingLog { per_ms: 60_000 };
    });
    let node = open_with("us-east", policies).await;
    later_life(&node).await;
    node.advance(30_000);
    let refused = assert_refused(&node, ask("acme", 1)).await;
    assert_eq!(refused.limits[0].retry_after_ms, 60_000);
    node.advance(30_000);
    assert!(node.check("acme", 100).await.allowed);
    assert_refused(&node, ask("acme", 1)).await;
    assert_denied(&node, ask("acme", 1)).await;
}

#[tokio::test]
async fn too_many_new_subjects_are_not_remembered() {
    let policies = changed(&bucket(), |policy| policy.new_subjects_per_s = Some(1));
    let node = open_with("us-east", policies).await;
    node.check("acme", 1).await;
    assert_refused(&node, ask("bolt", 1)).await;
    assert_refused(&node, ask("bolt", 1)).await;
}

#[tokio::test]
async fn the_others_are_told_as_they_were() {
    let node = open("us-east", BUCKET_AND_POOL).await;
    node.check("acme", 8).await;
    assert_refused(&node, ask("acme", 3)).await;
    node.advance(50);
    let denied = assert_denied(&node, ask("acme", 4)).await;
    assert_eq!(outcomes(&denied), [Outcome::Refused, Outcome::NotCharged]);
    let pool = &denied.limits[1];
    assert_eq!(pool.decided_by, DecidedBy::DeniedCache);
    assert_eq!(
        (pool.remaining, pool.reset_ms, pool.retry_after_ms),
        (52, 59_950, 0)
    );
}
