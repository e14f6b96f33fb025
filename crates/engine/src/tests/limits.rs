//! Plans, classes, pools and the algorithms: what applies to a request, and what is told of it.

use super::*;
use apportion_core::meter::Member;
use apportion_core::policy::{Class, Plans, PoolMembers, Standing};
use apportion_core::{Algorithm, Limits, Region};
use apportion_store::{Charge, Op};

fn limits(limit: u64, burst: u64) -> Limits {
    Limits { limit, burst }
}

/// `ask`, with another attribute.
fn ask_with(tenant: &str, cost: u64, name: &str, value: &str) -> CheckRequest {
    let mut request = ask(tenant, cost);
    request.attributes.insert(name.into(), value.into());
    request
}

fn ask_as(tenant: &str, cost: u64, priority: &str) -> CheckRequest {
    CheckRequest {
        priority: Some(priority.into()),
        ..ask(tenant, cost)
    }
}

/// What the store was last asked to charge.
fn charged(node: &Node) -> Vec<Charge> {
    match node.store.calls().pop().as_deref() {
        Some([Op::Decide(decide)]) => decide.charges.clone(),
        other => panic!("{other:?}"),
    }
}

fn with_classes(policy: &mut apportion_core::Policy) {
    policy.classes = [
        ("internal", Standing::Exempt),
        ("interactive", Standing::Leaves { ppm: 0 }),
        ("batch", Standing::Leaves { ppm: 500_000 }),
    ]
    .map(|(name, standing)| Class {
        name: name.into(),
        standing,
    })
    .into();
}

// === plans and overrides ===

fn with_plans(policy: &mut apportion_core::Policy) {
    policy.plans = Some(Plans {
        by: "plan".into(),
        plans: [("pro".to_owned(), limits(600, 100))].into(),
    });
    policy.overrides = [(vec!["acme".to_owned()], limits(30, 3))]
        .into_iter()
        .collect();
}

#[tokio::test]
async fn the_limits_are_those_of_the_subject_or_of_the_plan_or_the_policys_own() {
    let mut node = open_with("us-east", changed(&bucket(), with_plans)).await;
    for (tenant, plan, limit, burst) in [
        ("bolt", "none", 60, 10),
        ("core", "pro", 600, 100),
        ("acme", "pro", 30, 3),
    ] {
        let request = ask_with(tenant, burst, "plan", plan);
        let decision = node.engine.check(request).await.unwrap();
        assert!(decision.allowed, "{tenant}");
        let told = &decision.limits[0];
        assert_eq!((told.limit, told.remaining), (limit, 0));
        assert_eq!(told.reset_ms, burst * 60_000 / limit);
        let pressure = node.pressure.try_recv().unwrap();
        assert_eq!(pressure.limits, limits(limit, burst));
        let beyond = ask_with(tenant, burst + 1, "plan", plan);
        let (field, message) = invalid(node.engine.check(beyond).await);
        assert_eq!(field, "cost");
        assert!(message.ends_with(&format!("which is {burst}")), "{message}");
    }
}

#[tokio::test]
async fn each_region_has_its_part_of_the_plans_window() {
    let text = shared(&WINDOW.replace("key = []", "key = [\"tenant\"]"));
    let policies = changed(&text, |policy| {
        with_plans(policy);
        policy.plans.as_mut().unwrap().plans = [("pro".to_owned(), Limits::of(200))].into();
        policy.overrides = [(vec!["acme".to_owned()], Limits::of(40))]
            .into_iter()
            .collect();
    });
    let node = open_with("us-east", policies).await;
    for (tenant, plan, limit) in [
        ("bolt", "none", 100),
        ("core", "pro", 200),
        ("acme", "", 40),
    ] {
        let mut request = ask_with(tenant, limit / 4, "plan", plan);
        let decision = node.engine.check(request.clone()).await.unwrap();
        assert!(decision.allowed, "{tenant} has a quarter");
        assert_eq!(decision.limits[0].limit, limit);
        request.cost = 1;
        assert!(!node.engine.check(request).await.unwrap().allowed);
    }
}

// === classes ===

#[tokio::test]
async fn a_class_leaves_its_part_to_those_before_it() {
    let node = open_with("us-east", changed(&bucket(), with_classes))
        .await
        .forgetful();
    let batch = async |cost| {
        node.engine
            .check(ask_as("acme", cost, "batch"))
            .await
            .unwrap()
    };
    let decision = batch(4).await;
    assert!(decision.allowed);
    assert_eq!(
        decision.limits[0].remaining, 1,
        "6 are left, and 5 are to be left"
    );
    assert_eq!(decision.limits[0].limit, 60);
    let refused = batch(3).await;
    assert_eq!(outcomes(&refused), [Outcome::Refused]);
    assert_eq!(
        refused.limits[0].retry_after_ms, 2_000,
        "the reserve is to be there too"
    );
    assert_eq!(refused.limits[0].remaining, 1);
    assert!(
        node.check("acme", 3).await.allowed,
        "of the first class if it doesn't say"
    );
    let refused = batch(1).await;
    assert_eq!(refused.limits[0].remaining, 0);
    assert_eq!(refused.limits[0].retry_after_ms, 3_000);
    node.advance(2_999);
    assert!(!batch(1).await.allowed);
    node.advance(1);
    assert!(batch(1).await.allowed);
}

#[tokio::test]
async fn a_cost_that_a_class_can_never_pay_is_told_so() {
    let node = open_with("us-east", changed(&bucket(), with_classes)).await;
    assert!(node.engine.check(ask_as("acme", 5, "batch")).await.is_ok());
    let error = node.engine.check(ask_as("acme", 6, "batch")).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("for this priority, which is 5"), "{error}");
}

#[tokio::test]
async fn an_exempt_class_is_neither_refused_nor_charged() {
    let mut node = open_with("us-east", changed(&bucket(), with_classes)).await;
    node.check("acme", 9).await;
    for cost in [3, 1_000] {
        let decision = node
            .engine
            .check(ask_as("acme", cost, "internal"))
            .await
            .unwrap();
        assert_eq!(outcomes(&decision), [Outcome::Allowed]);
        assert_eq!(decision.limits[0].remaining, 1);
        assert_eq!(charged(&node)[0].units, 0);
    }
    assert_eq!(node.remaining("acme").await, [1]);
    assert!(node.pressure.try_recv().is_ok_and(|p| !p.refused));
}

// === pools ===

#[tokio::test]
async fn a_member_of_a_pool_is_told_what_it_can_have() {
    let text = bucket().replace("key = [\"tenant\"]", "key = []");
    let policies = changed(&text, |policy| {
        policy.pool = Some(PoolMembers {
            by: "tenant".into(),
            default_weight: 1,
            weights: [("caf\u{e9}".to_owned(), 3)].into(),
        });
    });
    let node = open_with("us-east", policies).await;
    node.check("cafe\u{301}", 1).await;
    let member = |name: &str, weight| Member {
        name: name.into(),
        weight,
    };
    assert_eq!(charged(&node)[0].member, Some(member("caf\u{e9}", 3)));
    let nobody = CheckRequest {
        attributes: Default::default(),
        ..ask("", 1)
    };
    node.engine.check(nobody).await.unwrap();
    assert_eq!(charged(&node)[0].member, Some(member("", 1)));
    // All that is left is free. What flows in then is dealt: three parts of five to the member that isn't here now.
    node.check("bolt", 8).await;
    node.advance(5_000);
    let decision = node.check("bolt", 2).await;
    assert_eq!(outcomes(&decision), [Outcome::Refused]);
    assert_eq!(decision.limits[0].remaining, 1);
    assert!(node.check("cafe\u{301}", 3).await.allowed);
}

// === other algorithms ===

fn log() -> Algorithm {
    Algorithm::SlidingLog { per_ms: 60_000 }
}

#[tokio::test]
async fn a_log_names_the_moment_when_enough_has_gone() {
    let policies = changed(WINDOW, |policy| policy.algorithm = log());
    let node = open_with("us-east", policies).await.forgetful();
    node.check("acme", 50).await;
    node.advance(10_000);
    let decision = node.check("acme", 40).await;
    let told = &decision.limits[0];
    assert_eq!((told.remaining, told.reset_ms), (10, 60_000));
    let refused = node.check("acme", 11).await;
    let told = &refused.limits[0];
    assert_eq!((told.remaining, told.retry_after_ms), (10, 50_000));
    assert_eq!(told.reset_ms, 60_000);
    assert_eq!(
        node.check("acme", 61).await.limits[0].retry_after_ms,
        60_000
    );
    node.advance(49_999);
    assert!(!node.check("acme", 11).await.allowed);
    node.advance(1);
    assert!(node.check("acme", 11).await.allowed);
}

#[tokio::test]
async fn a_log_that_may_borrow_waits_for_one_interval_at_most() {
    let policies = changed(&shared(WINDOW), |policy| policy.algorithm = log());
    let node = open_with("us-east", policies).await.forgetful();
    node.check("acme", 25).await;
    let retry_after = async |cost| node.check("acme", cost).await.limits[0].retry_after_ms;
    assert_eq!(retry_after(1).await, INTERVAL_MS);
    assert_eq!(retry_after(26).await, INTERVAL_MS, "more than its share");
    node.advance(59_000);
    assert_eq!(retry_after(1).await, 1_000);
}

#[tokio::test]
async fn what_takes_another_share_is_asked_for_again_with_the_next_round() {
    let two = WINDOW.replace("[\"us-east\"]", "[\"us-east\", \"eu-west\"]");
    let policies = changed(&two, |policy| {
        policy.algorithm = log();
        policy.weights.insert(Region::new("eu-west"), 1);
    });
    let node = open_with("us-east", policies).await.forgetful();
    let decision = node.check("acme", 51).await;
    assert_eq!(outcomes(&decision), [Outcome::Refused]);
    assert_eq!(decision.limits[0].remaining, 50);
    assert_eq!(decision.limits[0].retry_after_ms, INTERVAL_MS);
}

#[tokio::test]
async fn too_many_new_subjects_wait_for_the_next_second() {
    let policies = changed(&bucket(), |policy| policy.new_subjects_per_s = Some(2));
    let mut node = open_with("us-east", policies).await;
    node.advance(300);
    assert!(node.check("a", 1).await.allowed && node.check("b", 1).await.allowed);
    let decision = node.check("c", 1).await;
    assert_eq!(outcomes(&decision), [Outcome::Refused]);
    let told = &decision.limits[0];
    assert!(told.crowded);
    assert_eq!(told.retry_after_ms, 700);
    assert!(node.pressure.try_recv().is_err(), "there are rights enough");
    let known = node.check("a", 1).await;
    assert!(known.allowed && !known.limits[0].crowded);
    node.advance(700);
    assert!(node.check("c", 1).await.allowed);
}

#[tokio::test]
async fn what_is_cheapest_to_decide_is_charged_first_and_told_in_the_order_of_the_file() {
    let policy = |name: &str| {
        format!(
            "\n[[policy]]\nname = \"{name}\"\nkey = [\"tenant\"]\nalgorithm = \"fixed-window\"\nlimit = 9\nper = \"1m\"\n"
        )
    };
    let names = ["log", "slots", "counter", "window", "gcra", "bucket"];
    let text = "regions = [\"us-east\"]\n".to_owned() + &names.map(policy).concat();
    let policies = changed(&text, |policy| {
        let per_ms = 60_000;
        policy.algorithm = match policy.name.as_str() {
            "log" => log(),
            "slots" => Algorithm::Concurrency {
                slot_ttl_ms: per_ms,
            },
            "counter" => Algorithm::SlidingWindow { per_ms, buckets: 1 },
            "gcra" => Algorithm::Gcra { per_ms },
            "bucket" => Algorithm::TokenBucket { per_ms },
            _ => policy.algorithm,
        };
    });
    let node = open_with("us-east", policies).await;
    let decision = node.check("acme", 2).await;
    let told = decision
        .limits
        .iter()
        .map(|l| (l.policy.name.as_str(), l.remaining));
    assert_eq!(told.collect::<Vec<_>>(), names.map(|name| (name, 7)));
    let charges = charged(&node);
    let order: Vec<&str> = charges.iter().map(|c| c.rule.algorithm.name()).collect();
    let expected = [
        "gcra",
        "token-bucket",
        "fixed-window",
        "sliding-window",
        "concurrency",
    ];
    assert_eq!(order[..5], expected);
    assert_eq!(order[5], "sliding-log");
}
