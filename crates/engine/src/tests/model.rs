//! Random requests against three policies in two partitions, held to a model that fits on a page.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const MICRO: u64 = 1_000_000;
const TENANTS: [&str; 2] = ["acme", "bolt"];
/// Half of the global numbers, which is what this region has.
const BURST: u64 = 10 * MICRO;
const PER_MS: u64 = 1_000;
const WINDOW_MS: u64 = 10_000;
const DAILY: u64 = 20;
const POOL: u64 = 30;

fn text(shadow: [bool; 3]) -> String {
    let [api, daily, pool] = shadow;
    format!(
        r#"
regions = ["us-east", "eu-west"]

[[policy]]
name = "api"
key = ["tenant"]
algorithm = "token-bucket"
limit = 120
per = "1m"
burst = 20
shadow = {api}

[[policy]]
name = "daily"
key = ["tenant"]
algorithm = "fixed-window"
limit = 40
per = "10s"
shadow = {daily}

[[policy]]
name = "pool"
key = []
algorithm = "fixed-window"
limit = 60
per = "10s"
shadow = {pool}
"#
    )
}

#[derive(Clone, Debug)]
enum Step {
    Pass {
        ms: u64,
    },
    Check {
        tenant: usize,
        cost: u64,
        peek: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u64..6_000).prop_map(|ms| Step::Pass { ms }),
        4 => (0usize..2, prop_oneof![4 => 1u64..=5, 1 => 1u64..=14], prop::bool::weighted(0.2))
            .prop_map(|(tenant, cost, peek)| Step::Check { tenant, cost, peek }),
    ]
}

#[derive(Default)]
struct Model {
    shadow: [bool; 3],
    now: u64,
    /// Tokens and when.
    buckets: HashMap<usize, (u64, u64)>,
    /// Used by tenant and label; no tenant: the pool.
    windows: HashMap<(Option<usize>, u64), u64>,
}

impl Model {
    /// Outcome, remaining, reset and retry of each policy.
    fn check(&mut self, tenant: usize, cost: u64, peek: bool) -> Vec<(Outcome, u64, u64, u64)> {
        let (tokens, at) = *self.buckets.get(&tenant).unwrap_or(&(BURST, self.now));
        let mut tokens = BURST.min(tokens + (self.now - at) * PER_MS);
        let label = self.now / WINDOW_MS;
        let end_ms = (label + 1) * WINDOW_MS - self.now;
        let daily = (Some(tenant), label);
        let pool = (None, label);
        let used = |window| self.windows.get(&window).copied().unwrap_or(0);
        let (mut daily_left, mut pool_left) = (DAILY - used(daily), POOL - used(pool));
        let fits = [
            cost * MICRO <= tokens,
            cost <= daily_left,
            cost <= pool_left,
        ];
        let allowed = fits
            .iter()
            .zip(self.shadow)
            .all(|(fit, shadow)| *fit || shadow);
        let bucket_wait = match cost * MICRO <= BURST {
            true => (cost * MICRO).saturating_sub(tokens).div_ceil(PER_MS),
            false => INTERVAL_MS,
        };
        if allowed && !peek {
            if fits[0] {
                tokens -= cost * MICRO;
                self.buckets.insert(tenant, (tokens, self.now));
            }
            if fits[1] {
                daily_left -= cost;
                self.windows.insert(daily, DAILY - daily_left);
            }
            if fits[2] {
                pool_left -= cost;
                self.windows.insert(pool, POOL - pool_left);
            }
        }
        let numbers = [
            (
                tokens / MICRO,
                (BURST - tokens).div_ceil(PER_MS),
                bucket_wait,
            ),
            (daily_left, end_ms, end_ms),
            (pool_left, end_ms, end_ms),
        ];
        let tell = |i: usize| {
            let outcome = match (fits[i], allowed) {
                (true, true) => Outcome::Allowed,
                (true, false) => Outcome::NotCharged,
                (false, _) if self.shadow[i] => Outcome::ShadowRefused,
                (false, _) => Outcome::Refused,
            };
            let (remaining, reset_ms, wait_ms) = numbers[i];
            let retry_ms = if fits[i] {
                0
            } else {
                wait_ms.clamp(1, INTERVAL_MS)
            };
            (outcome, remaining, reset_ms, retry_ms)
        };
        (0..3).map(tell).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_answer_is_the_models(
        shadow in prop::array::uniform3(prop::bool::weighted(0.2)),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let node = open("us-east", &text(shadow)).await.forgetful();
            let mut model = Model { shadow, now: START.0, ..Model::default() };
            for step in steps {
                match step {
                    Step::Pass { ms } => {
                        node.advance(ms);
                        model.now += ms;
                    }
                    Step::Check { tenant, cost, peek } => {
                        let request = CheckRequest { peek, ..ask(TENANTS[tenant], cost) };
                        let decision = node.engine.check(request).await.unwrap();
                        let told: Vec<_> = decision
                            .limits
                            .iter()
                            .map(|l| (l.outcome, l.remaining, l.reset_ms, l.retry_after_ms))
                            .collect();
                        let expected = model.check(tenant, cost, peek);
                        let refused = expected.iter().any(|(o, ..)| *o == Outcome::Refused);
                        prop_assert_eq!(told, expected);
                        prop_assert_eq!(decision.allowed, !refused);
                        prop_assert_eq!(decision.decided_at, StoreMs(model.now));
                    }
                }
            }
            Ok(())
        })?;
    }
}
