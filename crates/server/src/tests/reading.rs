use super::harness::Faces;
use crate::face::fake::Fake;

#[tokio::test]
async fn usage_of_one_key_is_answered_as_documented() {
    let faces = Faces::start(&Fake::new()).await;
    let answer = faces
        .get("/v1/usage?policy=api&key.tenant=acme&from=2026-01-01T02:00:00%2B02:00&to=2026-01-02T00:00:00Z")
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.body,
        concat!(
            r#"{"policy":"api","key":{"tenant":"acme"},"periods":[{"start":"2026-01-01T00:00:00Z","end":"2026-01-01T01:00:00Z","#,
            r#""admitted":100,"refunded":0,"refused":800,"#,
            r#""by_region":{"us-east":{"admitted":34,"refunded":0,"refused":800,"through":"2026-01-01T00:00:00.005Z"}},"#,
            r#""complete":false,"low":100,"high":100}]}"#,
        )
    );
}

#[tokio::test]
async fn usage_without_a_key_lists_every_key() {
    let faces = Faces::start(&Fake::new()).await;
    let json = faces.get("/v1/usage?policy=api").await.json();
    let tenants: Vec<_> = json["keys"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|key| key["key"]["tenant"].clone())
        .collect();
    assert_eq!(tenants, ["acme", "globex"]);
    assert_eq!(json["keys"][0]["periods"][0]["admitted"], 100);
    assert_eq!(json["truncated"], false);
}

#[tokio::test]
async fn usage_of_a_policy_that_keeps_none_is_empty_and_of_one_without_a_key_is_of_all() {
    let faces = Faces::start(&Fake::new()).await;
    let none = faces
        .get("/v1/usage?policy=search&key.tenant=acme&key.route=/v1/search")
        .await;
    assert_eq!(
        none.body,
        r#"{"policy":"search","key":{"route":"/v1/search","tenant":"acme"},"periods":[]}"#
    );
    let all = faces.get("/v1/usage?policy=all").await.json();
    assert_eq!(all["key"], serde_json::json!({}));
    assert_eq!(all["periods"][0]["admitted"], 100);
}

#[tokio::test]
async fn a_query_that_is_not_understood_is_refused_by_the_name_of_its_parameter() {
    let faces = Faces::start(&Fake::new()).await;
    let cases = [
        ("/v1/usage", "policy", "missing"),
        (
            "/v1/usage?policy=api&tenant=acme",
            "tenant",
            "unknown parameter",
        ),
        ("/v1/usage?policy=api&policy=all", "policy", "given twice"),
        (
            "/v1/usage?policy=api&key.user=x",
            "key.user",
            "the key attributes of policy \"api\" are tenant",
        ),
        (
            "/v1/usage?policy=search&key.tenant=x",
            "key.route",
            "missing",
        ),
        (
            "/v1/usage?policy=all&key.tenant=x",
            "key.tenant",
            "has no key attributes",
        ),
        (
            "/v1/usage?policy=api&from=yesterday",
            "from",
            "expected an RFC 3339 time",
        ),
        (
            "/v1/usage?policy=api&from=2026-01-01T00:00:00+02:00",
            "from",
            "%2B",
        ),
        (
            "/v1/usage?policy=api&from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
            "from",
            "later than to",
        ),
        ("/v1/usage?policy=%ff", "query", "not valid UTF-8"),
        ("/v1/shares?policy=api", "key.tenant", "missing"),
        (
            "/v1/shares?policy=api&key.tenant=a&from=2026-01-01T00:00:00Z",
            "from",
            "unknown parameter",
        ),
    ];
    for (path, field, detail) in cases {
        let found = faces
            .get(path)
            .await
            .problem(400, "INVALID_REQUEST", Some(field));
        assert!(found.contains(detail), "{path}: {found}");
    }
    for path in ["/v1/usage?policy=none", "/v1/shares?policy=none"] {
        let found = faces.get(path).await.problem(404, "NOT_FOUND", None);
        assert_eq!(found, "there is no policy \"none\"");
    }
}

#[tokio::test]
async fn shares_are_answered_as_documented_and_unknown_parts_are_null() {
    let faces = Faces::start(&Fake::new()).await;
    let answer = faces.get("/v1/shares?policy=api&key.tenant=acme").await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.body,
        concat!(
            r#"{"policy":"api","key":{"tenant":"acme"},"limit":1000,"regions":{"#,
            r#""eu-west":{"base":500,"lent":null,"borrowed":null,"given":null,"received":null,"in_force":null,"used":null,"as_of_ms":null},"#,
            r#""us-east":{"base":500,"lent":0,"borrowed":33.25,"given":0,"received":7,"in_force":533.25,"used":412,"as_of_ms":1764444444444}}}"#,
        )
    );
}

#[tokio::test]
async fn status_and_policies_are_answered_as_documented() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    let mut status = faces.get("/v1/status").await.json();
    let digest = status["policies"][0]["digest"].take();
    assert_eq!(digest.as_str().map(str::len), Some(16));
    status["policies"] = status["policies"][0].take();
    assert_eq!(
        status,
        serde_json::json!({
            "region": "us-east", "ready": true, "life": "AAAAAAAB", "epoch": 0, "standing": "first",
            "closed": false,
            "store": {"ok": true, "breaker": null},
            "peers": {
                "ap-south": {
                    "reachable": false, "lag_ms": null,
                    "revision": null, "policies_differ": false, "revision_conflicts": false,
                },
                "eu-west": {
                    "reachable": true, "lag_ms": 1250,
                    "revision": 1, "policies_differ": false, "revision_conflicts": false,
                },
            },
            "policies": {"name": "api", "version": 1, "digest": null},
            "rollout": {"revision": 1, "oldest": 1, "waits_for": [], "retired": []},
        })
    );
    let policies = faces.get("/v1/policies").await.json();
    assert_eq!(policies["revision"], 1);
    assert_eq!(
        policies["regions"],
        serde_json::json!(["eu-west", "us-east"])
    );
    let mut search = policies["policies"][1].clone();
    search["digest"].take();
    assert_eq!(
        search,
        serde_json::json!({
            "name": "search", "version": 1, "digest": null, "match": {"route": "/v1/search*"},
            "key": ["tenant", "route"], "algorithm": "token-bucket", "limit": 600, "per_ms": 60000,
            "burst": 60, "weights": {"eu-west": 1, "us-east": 1}, "usage_ms": null, "shadow": false,
        })
    );
}

#[tokio::test]
async fn reading_while_the_store_is_away_is_a_503() {
    let fake = Fake::new();
    fake.lose_store();
    let faces = Faces::start(&fake).await;
    for path in [
        "/v1/usage?policy=api",
        "/v1/usage?policy=api&key.tenant=acme",
        "/v1/shares?policy=api&key.tenant=acme",
    ] {
        let answer = faces.get(path).await;
        answer.problem(503, "STORE_UNAVAILABLE", None);
        assert!(!answer.body.contains("redis://"), "{answer:?}");
    }
    assert_eq!(faces.get("/v1/status").await.json()["store"]["ok"], false);
}

#[tokio::test]
async fn readiness_follows_the_node_and_liveness_does_not() {
    let fake = Fake::new();
    fake.set_ready(false);
    let faces = Faces::start(&fake).await;
    assert_eq!(faces.get("/readyz").await.status, 503);
    assert_eq!(faces.get("/livez").await.status, 200);
    fake.set_ready(true);
    assert_eq!(faces.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_closed_region_says_so_everywhere() {
    let fake = Fake::new().answering(|fake| Err(fake.unavailable(false)));
    let faces = Faces::start(&fake).await;
    let close = || faces.send("POST", "/v1/region/close", b"");
    assert_eq!(close().await.body, r#"{"region":"us-east","closed":true}"#);
    let closed = faces.check(r#"{"attributes":{}}"#).await;
    closed.problem(503, "STORE_UNAVAILABLE", None);
    assert_eq!(
        closed.json()["detail"],
        "region us-east is closed for a restart of its store"
    );
    fake.set_ready(false);
    let ready = faces.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(
        ready.body,
        "not ready: the region is closed for a restart of its store\n"
    );
    assert_eq!(faces.get("/v1/status").await.json()["closed"], true);

    let open = |body: &'static [u8]| faces.send("POST", "/v1/region/open", body);
    fake.lose_store();
    let waits = open(b"{}").await;
    waits.problem(503, "STORE_UNAVAILABLE", None);
    assert_eq!(
        waits.json()["detail"],
        "region us-east is still closed: eu-west must strike off the nonce first, and can't be reached"
    );
    assert_eq!(
        faces.get("/v1/usage?policy=api").await.json()["detail"],
        "region us-east is closed for a restart of its store, and waits for eu-west to confirm it"
    );
    let lost = open(br#"{"as_lost":true}"#).await;
    assert_eq!(
        lost.body,
        r#"{"region":"us-east","closed":false,"life":"AAAAAAAB","lost":true}"#
    );
    assert_eq!(faces.get("/v1/status").await.json()["closed"], false);
    let refused = close().await;
    refused.problem(409, "NOT_CLOSED", None);
    assert_eq!(
        refused.json()["detail"],
        "region us-east isn't closed: not confirmed by eu-west: they have to know before the store is stopped"
    );
    open(br#"{"lost":true}"#)
        .await
        .problem(400, "INVALID_REQUEST", Some("body"));
}
