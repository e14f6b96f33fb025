//! Random requests to a node with the cache, beside one without it on the same store.

use super::*;
use apportion_core::{Period, Policy, PolicySet};
use proptest::prelude::*;

const TENANTS: [&str; 2] = ["acme", "bolt"];
const CLASSES: [&str; 2] = ["first", "last"];
const PLANS: [&str; 2] = ["free", "pro"];

fn algorithm() -> impl Strategy<Value = Algorithm> {
    // Rates that don't divide, so that a micro-unit is seldom whole; and slow ones, where it is seconds.
    let per_ms = prop_oneof![700u64..3_000, 10_000u64..20_000, 1u64 << 33..1 << 34];
    let sliding_ms = 500u64..5_000;
    prop_oneof![
        per_ms
            .clone()
            .prop_map(|per_ms| Algorithm::TokenBucket { per_ms }),
        per_ms.prop_map(|per_ms| Algorithm::Gcra { per_ms }),
        (500u64..5_000).prop_map(|per_ms| Algorithm::FixedWindow {
            period: Period::every(per_ms)
        }),
        sliding_ms
            .clone()
            .prop_map(|per_ms| Algorithm::SlidingLog { per_ms }),
        (sliding_ms.clone(), 1u32..4)
            .prop_map(|(per_ms, buckets)| Algorithm::SlidingWindow { per_ms, buckets }),
        sliding_ms.prop_map(|slot_ttl_ms| Algorithm::Concurrency { slot_ttl_ms }),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    /// The second policy is of the first's partition, or has its own.
    algorithms: (Algorithm, Option<(Algorithm, bool)>),
    with_plans: bool,
    regions: usize,
    /// The region lost its store before the first step.
    lost: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    let second = prop::option::of((algorithm(), any::<bool>()));
    let regions = prop_oneof![4 => Just(1usize), 1 => Just(2)];
    (
        algorithm(),
        second,
        any::<bool>(),
        regions,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(first, second, with_plans, regions, lost)| Setup {
            algorithms: (first, second),
            with_plans,
            regions,
            lost,
        })
}

impl Setup {
    fn policies(&self) -> Arc<PolicySet> {
        let regions = &["us-east", "eu-west"][..self.regions];
        let policy = |name: &str, key: &str| {
            format!(
                "[[policy]]\nname = \"{name}\"\nkey = [{key}]\nalgorithm = \"fixed-window\"\nlimit = 20\nper = \"1m\"\n"
            )
        };
        let (first, second) = self.algorithms;
        let mut text = format!("regions = {regions:?}\n") + &policy("first", "\"tenant\"");
        if let Some((_, apart)) = second {
            text += &policy("second", if apart { "" } else { "\"tenant\"" });
        }
        changed(&text, |policy| {
            policy.algorithm = match second {
                Some((second, _)) if policy.name == "second" => second,
                _ => first,
            };
            self.fill_in(policy);
        })
    }

    fn fill_in(&self, policy: &mut Policy) {
        policy.limits = Limits {
            limit: 20,
            burst: if policy.algorithm.is_bucket() { 15 } else { 20 },
        };
        policy.classes = [("first", 0), ("last", 300_000)]
            .map(|(name, ppm)| Class {
                name: name.into(),
                standing: Standing::Leaves { ppm },
            })
            .into();
        policy.plans = self.with_plans.then(|| Plans {
            by: "plan".into(),
            plans: [("pro".to_owned(), Limits::of(50))].into(),
        });
    }

    /// The longest that a micro-unit takes to flow in.
    fn micro_ms(&self) -> u64 {
        let (first, second) = &self.algorithms;
        let all = [Some(*first), second.map(|(second, _)| second)];
        let periods = all.iter().flatten().filter_map(Algorithm::period);
        let slowest = periods.map(|period| period.longest_ms()).max();
        slowest.map_or(0, |ms| ms * self.regions as u64 / 20_000_000 + 1)
    }

    /// Others may change the answer sooner than it is told.
    fn is_unsure(&self) -> bool {
        let slots = |a: &Algorithm| matches!(a, Algorithm::Concurrency { .. });
        let (first, second) = &self.algorithms;
        self.with_plans
            || self.regions > 1
            || slots(first)
            || second.is_some_and(|(second, apart)| apart || slots(&second))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Check {
        here: bool,
        tenant: usize,
        class: usize,
        plan: usize,
        cost: u64,
    },
    Release {
        here: bool,
        which: prop::sample::Index,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let ms = prop_oneof![3 => 0u64..5, 3 => 0u64..120, 3 => 0u64..1_500, 1 => 0u64..30_000];
    let here = || prop::bool::weighted(0.8);
    prop_oneof![
        3 => ms.prop_map(Step::Pass),
        6 => (here(), 0usize..2, 0usize..2, 0usize..2, 1u64..9).prop_map(
            |(here, tenant, class, plan, cost)| Step::Check { here, tenant, class, plan, cost }
        ),
        1 => (here(), any::<prop::sample::Index>())
            .prop_map(|(here, which)| Step::Release { here, which }),
    ]
}

/// Runs the steps; gives how many refusals were the node's own.
async fn run(setup: &Setup, steps: Vec<Step>) -> Result<usize, TestCaseError> {
    let node = open_with("us-east", setup.policies()).await;
    if setup.lost {
        later_life(&node).await;
    }
    let other = node.forgetful();
    let mut slots: Vec<String> = Vec::new();
    let mut denied = 0;
    // When the other node last did what may have freed something.
    let mut others: Option<StoreMs> = None;
    for step in steps {
        match step {
            Step::Pass(ms) => {
                node.advance(ms);
                other.anchor();
            }
            Step::Check {
                here,
                tenant,
                class,
                plan,
                cost,
            } => {
                let mut request = CheckRequest {
                    priority: Some(CLASSES[class].into()),
                    ..ask(TENANTS[tenant], cost)
                };
                request.attributes.insert("plan".into(), PLANS[plan].into());
                let peek = CheckRequest {
                    peek: true,
                    ..request.clone()
                };
                let expected = other.engine.check(peek).await.unwrap();
                let asked = if here { &node } else { &other };
                let decision = asked.engine.check(request).await.unwrap();
                slots.extend(decision.reservation.clone());
                let own = decision
                    .limits
                    .iter()
                    .any(|l| l.decided_by == DecidedBy::DeniedCache);
                denied += usize::from(own);
                if !here {
                    others = Some(node.now());
                }
                let soon = others.is_some_and(|at| node.now() < at.plus(UNSURE_MS));
                if !(own && setup.is_unsure() && soon) {
                    prop_assert_eq!(decision.allowed, expected.allowed, "{:?}", decision);
                }
                if own {
                    // It may be most of a micro-unit behind.
                    let slack_ms = setup.micro_ms();
                    for (told, expected) in decision.limits.iter().zip(&expected.limits) {
                        if told.outcome == Outcome::Refused && !soon {
                            prop_assert_eq!(expected.outcome, Outcome::Refused);
                            let latest_ms = expected.retry_after_ms + slack_ms;
                            prop_assert!(told.retry_after_ms <= latest_ms, "{told:?} {expected:?}");
                        }
                    }
                }
            }
            Step::Release { here, which } => {
                if slots.is_empty() {
                    continue;
                }
                let slot = slots.swap_remove(which.index(slots.len()));
                let by = if here { &node } else { &other };
                by.engine.release(&slot).await.unwrap();
                if !here {
                    others = Some(node.now());
                }
            }
        }
    }
    Ok(denied)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_node_never_refuses_by_itself_what_the_store_would_admit(
        setup in setup(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        block_on(run(&setup, steps))?;
    }
}

#[test]
fn the_property_is_about_refusals_of_the_node_itself() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = prop::collection::vec(step(), 100..120);
    let mut denied = 0;
    for _ in 0..20 {
        let setup = setup().new_tree(&mut runner).unwrap().current();
        let steps = steps.new_tree(&mut runner).unwrap().current();
        denied += block_on(run(&setup, steps)).unwrap();
    }
    assert!(denied > 100, "{denied}");
}
