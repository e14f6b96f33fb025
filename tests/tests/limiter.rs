//! One region's limiter as a caller sees it: plans, priorities, pools, slots, request ids, and what is kept private.

use apportion_tests::start_met;
use chaos::api::{Period, Reply};
use chaos::{Cluster, ClusterSpec, StoreKind, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const POLICIES: &str = r#"
[[policy]]
name = "plan"
match = { route = "/plan" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 3
per = "366d"
usage = "1h"

[policy.plans]
by = "plan"
free = { limit = 5 }
pro = { limit = 20 }

[[policy.override]]
key = { tenant = "vip" }
limit = 50

[[policy]]
name = "classes"
match = { route = "/classes" }
key = ["tenant"]
algorithm = "token-bucket"
limit = 10
per = "366d"

[[policy.priority]]
class = "probe"
exempt = true
[[policy.priority]]
class = "interactive"
refuse_below = "0%"
[[policy.priority]]
class = "batch"
refuse_below = "50%"

[[policy]]
name = "pool"
match = { route = "/pool" }
key = []
algorithm = "token-bucket"
limit = 40
per = "1s"
burst = 40

[policy.pool]
by = "tenant"
weights = { large = 3 }

[[policy]]
name = "slots"
match = { route = "/slots" }
key = ["tenant"]
algorithm = "concurrency"
mode = "region"
limit = 2
slot_ttl = "2s"

[[policy]]
name = "slots-of-all"
match = { route = "/slots" }
key = []
algorithm = "concurrency"
mode = "region"
limit = 100
slot_ttl = "30s"

[[policy]]
name = "once"
match = { route = "/once" }
key = ["tenant"]
algorithm = "sliding-log"
limit = 10
per = "1h"
usage = "1h"

[[policy]]
name = "once-for-all"
match = { route = "/once" }
key = []
algorithm = "gcra"
limit = 1000
per = "366d"

[[policy]]
name = "month"
match = { route = "/month" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 2
per = "month"

[[policy]]
name = "crowd"
match = { route = "/crowd" }
key = ["visitor"]
algorithm = "token-bucket"
limit = 10
per = "1m"
new_subjects_per_second = 3

[[policy]]
name = "private"
match = { route = "/private" }
key = ["login"]
algorithm = "sliding-window"
limit = 10
per = "1m"
"#;

/// Three rules on one key, and two on others.
const HIERARCHY: &str = r#"
[[policy]]
name = "minute"
match = { route = "/search" }
key = ["tenant"]
algorithm = "sliding-window"
limit = 100
per = "1m"

[[policy]]
name = "hour"
match = { route = "/search" }
key = ["tenant"]
algorithm = "gcra"
limit = 5_000
per = "1h"

[[policy]]
name = "day"
match = { route = "/search" }
key = ["tenant"]
algorithm = "fixed-window"
limit = 50_000
per = "day"

[[policy]]
name = "checkout"
match = { route = "/checkout" }
key = ["tenant"]
algorithm = "token-bucket"
limit = 10
per = "1h"
"#;

struct Region {
    cluster: Cluster,
    base: String,
}

impl Region {
    fn start(store: StoreKind) -> Self {
        Self::with(store, POLICIES, "/month")
    }

    fn with(store: StoreKind, policies: &str, probe: &str) -> Self {
        let spec = ClusterSpec::new(store, policies)
            .regions(&["solo"])
            .probe(&[("route", probe), ("tenant", "probe")]);
        let mut cluster = start_met(&spec);
        let node = cluster.node("solo", 0).expect("it has a node");
        let base = node.spec().http_url();
        Self { cluster, base }
    }

    fn post(&self, path: &str, body: &Value) -> (Reply, Value) {
        let url = format!("{}{path}", self.base);
        let body = body.to_string();
        let reply = self
            .cluster
            .api()
            .post(&url, "application/json", body.as_bytes());
        let reply = reply.expect("it answers");
        let json = serde_json::from_str(&reply.body).expect("it answers JSON");
        (reply, json)
    }

    fn ask(&self, route: &str, more: &[(&str, &str)], rest: Value) -> (Reply, Value) {
        let mut attributes = json!({ "route": route });
        for (name, value) in more {
            attributes[*name] = json!(value);
        }
        let mut body = rest;
        body["attributes"] = attributes;
        self.post("/v1/check", &body)
    }

    /// How many of so many requests of one are admitted.
    fn admitted(&self, times: usize, route: &str, more: &[(&str, &str)], rest: &Value) -> usize {
        let asked = (0..times).filter(|_| self.ask(route, more, rest.clone()).0.status == 200);
        asked.count()
    }

    fn metrics(&self) -> String {
        let url = format!("{}/metrics", self.base);
        self.cluster.api().get(&url).expect("it answers").body
    }
}

fn on_each(story: impl Fn(&Region)) {
    for store in [StoreKind::Memory, StoreKind::Redis] {
        story(&Region::start(store));
    }
}

#[test]
fn plans_and_overrides_set_the_limit_and_what_is_spent_stays_spent() {
    on_each(|region| {
        let of = |plan| [("tenant", "acme"), ("plan", plan)];
        assert_eq!(region.admitted(9, "/plan", &of("free"), &json!({})), 5);
        assert_eq!(region.admitted(30, "/plan", &of("pro"), &json!({})), 15);
        assert_eq!(region.admitted(9, "/plan", &of("free"), &json!({})), 0);
        assert_eq!(
            region.admitted(9, "/plan", &[("tenant", "none")], &json!({})),
            3
        );
        let (_, said) = region.ask("/plan", &[("tenant", "vip"), ("plan", "free")], json!({}));
        assert_eq!(
            (&said["limits"][0]["limit"], &said["limits"][0]["remaining"]),
            (&json!(50), &json!(49))
        );
        let (reply, said) = region.ask("/plan", &of("free"), json!({"cost": 6}));
        assert_eq!(reply.status, 400, "{said}");
    });
}

#[test]
fn less_important_classes_are_refused_first_and_an_exempt_one_never() {
    on_each(|region| {
        let tenant = [("tenant", "acme")];
        let of = |class| json!({ "priority": class });
        assert_eq!(region.admitted(9, "/classes", &tenant, &of("batch")), 5);
        assert_eq!(
            region.admitted(9, "/classes", &tenant, &of("unheard-of")),
            0
        );
        assert_eq!(region.admitted(9, "/classes", &tenant, &json!({})), 5);
        assert_eq!(region.admitted(9, "/classes", &tenant, &of("probe")), 9);
    });
}

#[test]
fn a_pool_that_is_short_is_dealt_by_weight() {
    on_each(|region| {
        let mut given = [0, 0];
        let until = std::time::Instant::now() + Duration::from_secs(6);
        let begun = std::time::Instant::now() + Duration::from_secs(2);
        while std::time::Instant::now() < until {
            for (i, tenant) in ["large", "small"].into_iter().enumerate() {
                let admitted = region.admitted(1, "/pool", &[("tenant", tenant)], &json!({}));
                if std::time::Instant::now() > begun {
                    given[i] += admitted;
                }
            }
        }
        let [large, small] = given;
        assert!(large + small >= 100, "{given:?} of 160");
        assert!(large >= 2 * small && large <= 4 * small, "{given:?}");
    });
}

#[test]
fn slots_are_released_by_id_once_and_come_back_by_themselves() {
    on_each(|region| {
        let tenant = [("tenant", "acme")];
        let (reply, first) = region.ask("/slots", &tenant, json!({}));
        assert_eq!(reply.status, 200, "{first}");
        assert_eq!(region.ask("/slots", &tenant, json!({})).0.status, 200);
        let (reply, refused) = region.ask("/slots", &tenant, json!({}));
        assert_eq!(
            (reply.status, &refused["violated-policies"]),
            (429, &json!(["slots"]))
        );
        let release = json!({ "reservation": first["reservation"] });
        assert_eq!(region.post("/v1/release", &release).1["released"], true);
        assert_eq!(region.post("/v1/release", &release).1["released"], false);
        assert_eq!(
            region.admitted(3, "/slots", &tenant, &json!({})),
            1,
            "one came back, not two"
        );
        wait_until(
            Duration::from_secs(30),
            "the slots of who is gone to come back",
            || region.admitted(1, "/slots", &tenant, &json!({})) == 1,
        )
        .unwrap();
        for (body, field) in [
            (json!({"reservation": "x"}), "reservation"),
            (json!({}), "reservation"),
        ] {
            let (reply, said) = region.post("/v1/release", &body);
            assert_eq!(reply.status, 400);
            assert!(said.to_string().contains(field), "{said}");
        }
    });
}

#[test]
fn a_request_id_is_charged_once_and_answered_the_same() {
    on_each(|region| {
        let tenant = [("tenant", "acme")];
        let once = json!({"request_id": "r-1", "cost": 4});
        let (first, said) = region.ask("/once", &tenant, once.clone());
        assert_eq!(first.status, 200, "{said}");
        for _ in 0..5 {
            let (again, _) = region.ask("/once", &tenant, once.clone());
            assert_eq!((again.status, &again.body), (200, &first.body));
            assert_eq!(
                again.headers.get("idempotent-replayed").map(String::as_str),
                Some("true")
            );
        }
        let (_, peeked) = region.ask("/once", &tenant, json!({"peek": true}));
        assert_eq!(peeked["limits"][0]["remaining"], 6);
        assert_eq!(
            peeked["limits"][1]["remaining"], 996,
            "and in the other partition"
        );
        let other_cost = json!({"request_id": "r-1", "cost": 5});
        for (tenant, body) in [("acme", other_cost), ("other", once)] {
            let (reply, said) = region.ask("/once", &[("tenant", tenant)], body);
            assert_eq!(reply.status, 409, "{said}");
            assert_eq!(said["code"], "REQUEST_ID_REUSED");
        }
        // A refused one is tried again.
        let dear = json!({"request_id": "r-2", "cost": 7});
        assert_eq!(region.ask("/once", &tenant, dear).0.status, 429);
        let usage = region.cluster.api().usage("solo", "once", &tenant).unwrap();
        let net = |p: &Period| p.admitted - p.refunded;
        assert_eq!(usage.periods.iter().map(net).sum::<u64>(), 4, "{usage:?}");
        let (reply, _) = region.ask("/once", &tenant, json!({"request_id": ""}));
        assert_eq!(reply.status, 400);
    });
}

#[test]
fn a_calendar_month_ends_with_the_month() {
    on_each(|region| {
        let tenant = [("tenant", "acme")];
        let (_, said) = region.ask("/month", &tenant, json!({}));
        let now = said["decided_at_ms"].as_u64().unwrap()
            + said["limits"][0]["reset_ms"].as_u64().unwrap();
        // At the end, a first of a month, midnight: days are whole, and the day before is of another month.
        assert_eq!(now % 86_400_000, 0);
        assert_eq!(region.admitted(3, "/month", &tenant, &json!({})), 1);
        let (_, refused) = region.ask("/month", &tenant, json!({}));
        assert_eq!(
            refused["limits"][0]["retry_after_ms"],
            refused["limits"][0]["reset_ms"]
        );
    });
}

#[test]
fn a_refusal_that_nothing_can_change_asks_no_store() {
    on_each(|region| {
        let tenant = [("tenant", "hot")];
        assert_eq!(region.admitted(3, "/month", &tenant, &json!({})), 2);
        let (reply, refused) = region.ask("/month", &tenant, json!({}));
        assert_eq!(reply.status, 429);
        assert_eq!(refused["limits"][0]["decided_by"], "denied-cache");
        assert!(reply.headers.contains_key("retry-after"));
        let metric = r#"apportion_denied_cache_refusals_total{policy="month",region="solo"}"#;
        assert!(region.metrics().contains(metric));
    });
}

#[test]
fn so_many_subjects_are_new_in_a_second() {
    on_each(|region| {
        let burst = |name: &str| {
            let admitted = (0..20).filter(|i| {
                let visitor = format!("{name}-{i}");
                region
                    .ask("/crowd", &[("visitor", &visitor)], json!({}))
                    .0
                    .status
                    == 200
            });
            admitted.count()
        };
        let began = std::time::Instant::now();
        let admitted = burst("a");
        let seconds = began.elapsed().as_secs() as usize + 2;
        assert!(
            (3..=3 * seconds).contains(&admitted),
            "{admitted} in {seconds} s"
        );
        let known = region.admitted(5, "/crowd", &[("visitor", "a-0")], &json!({}));
        assert_eq!(known, 5, "who is known goes on");
        let metric = "apportion_new_subjects_refused_total{policy=\"crowd\",region=\"solo\"}";
        assert!(region.metrics().contains(metric));
    });
}

#[test]
fn nothing_that_is_not_safe_to_show_is_in_the_store_or_the_metrics() {
    let mut region = Region::start(StoreKind::Redis);
    let secrets = [
        "kim@example.com",
        "Bearer abcdefgh",
        "eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl",
    ];
    for secret in secrets {
        let login = [("login", secret)];
        assert_eq!(
            region.admitted(12, "/private", &login, &json!({})),
            10,
            "{secret}"
        );
    }
    let redis = region.cluster.redis("solo").unwrap();
    let names = "return table.concat(redis.call('KEYS', '*'), ' ')";
    let names = redis.command(&["EVAL", names, "0"]).unwrap();
    assert!(names.contains("private@1:"), "{names}");
    let metrics = region.metrics();
    for secret in ["kim", "abcdefgh", "eyJ", "example"] {
        assert!(!names.contains(secret), "{secret} in {names}");
        assert!(!metrics.contains(secret));
    }
}

#[test]
fn three_rules_on_one_key_are_one_round_trip_and_rules_of_other_routes_are_their_own() {
    let mut region = Region::with(StoreKind::Redis, HIERARCHY, "/checkout");
    let calls = |region: &mut Region| -> u64 {
        let redis = region.cluster.redis("solo").unwrap();
        let stats = redis.command(&["INFO", "commandstats"]).unwrap();
        let line = stats
            .lines()
            .find_map(|l| l.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|l| l.split(',').next()?.parse().ok())
            .unwrap()
    };
    let tenant = [("tenant", "acme")];
    let before = calls(&mut region);
    assert_eq!(region.admitted(100, "/search", &tenant, &json!({})), 100);
    let asked = calls(&mut region) - before;
    // Beside them, a node speaks to its store a few times a second.
    assert!(
        (100..150).contains(&asked),
        "{asked} calls for 100 requests"
    );
    let (_, refused) = region.ask("/search", &tenant, json!({}));
    assert_eq!(refused["violated-policies"], json!(["minute"]));
    let of = |name: &str, field: &str| {
        let limits = refused["limits"].as_array().unwrap();
        let limit = limits.iter().find(|l| l["policy"] == name).unwrap();
        limit[field].clone()
    };
    assert_eq!(of("hour", "outcome"), "not-charged");
    assert_eq!(of("day", "remaining"), 49_900);
    assert_eq!(region.admitted(20, "/checkout", &tenant, &json!({})), 10);
    assert_eq!(
        region.admitted(1, "/search", &[("tenant", "other")], &json!({})),
        1
    );
}
