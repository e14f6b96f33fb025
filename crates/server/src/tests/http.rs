use super::harness::Faces;
use crate::face::fake::Fake;
use apportion_engine::{CheckError, DecidedBy, Decision, Outcome};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ACME: &str = r#"{"attributes":{"tenant":"acme"}}"#;

#[tokio::test]
async fn an_admitted_check_is_answered_as_documented() {
    let faces = Faces::start(&Fake::new()).await;
    let answer = faces.check(ACME).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.headers,
        "connection: close\n\
         content-length: 198\n\
         content-type: application/json\n\
         ratelimit-policy: \"api\";q=1000;w=60\n\
         ratelimit: \"api\";r=412;t=2\n\
         x-ratelimit-limit: 1000\n\
         x-ratelimit-remaining: 412\n\
         x-ratelimit-reset: 2"
    );
    assert_eq!(
        answer.body,
        r#"{"allowed":true,"region":"us-east","decided_at_ms":1764444444444,"limits":[{"policy":"api","outcome":"allowed","limit":1000,"remaining":412,"reset_ms":1200,"retry_after_ms":0,"decided_by":"store"}]}"#
    );
}

#[tokio::test]
async fn a_refused_check_is_answered_as_documented() {
    let fake = Fake::new().answering(|fake| {
        let refused = fake.report("api", Outcome::Refused);
        let mut spared = fake.report("search", Outcome::NotCharged);
        spared.decided_by = DecidedBy::FailureMode;
        Ok(fake.decision([refused, spared]))
    });
    let faces = Faces::start(&fake).await;
    let answer = faces.check(ACME).await;
    assert_eq!(answer.status, 429);
    assert_eq!(
        answer.headers,
        "connection: close\n\
         content-length: 501\n\
         content-type: application/problem+json\n\
         ratelimit-policy: \"api\";q=1000;w=60\n\
         ratelimit: \"api\";r=0;t=2\n\
         retry-after: 2\n\
         x-ratelimit-limit: 1000\n\
         x-ratelimit-remaining: 0\n\
         x-ratelimit-reset: 2"
    );
    assert_eq!(
        answer.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","#,
            r#""status":429,"code":"RATE_LIMITED","violated-policies":["api"],"retry_after_ms":1200,"region":"us-east","#,
            r#""decided_at_ms":1764444444444,"limits":["#,
            r#"{"policy":"api","outcome":"refused","limit":1000,"remaining":0,"reset_ms":1200,"retry_after_ms":1200,"decided_by":"store"},"#,
            r#"{"policy":"search","outcome":"not-charged","limit":600,"remaining":412,"reset_ms":1200,"retry_after_ms":0,"decided_by":"failure-mode"}]}"#,
        )
    );
}

#[tokio::test]
async fn a_check_that_no_policy_matches_is_admitted_without_limits() {
    let fake = Fake::new().answering(|fake| Ok(fake.decision([])));
    let faces = Faces::start(&fake).await;
    let answer = faces.check(r#"{"attributes":{}}"#).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["limits"], serde_json::json!([]));
    assert!(!answer.headers.contains("ratelimit"), "{answer:?}");
}

#[tokio::test]
async fn all_fields_of_a_check_reach_the_limiter() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    faces.check(ACME).await;
    assert_eq!((fake.last().cost, fake.last().peek), (1, false));

    let body = r#"{"attributes":{"tenant":"acme","route":"/v1/é"},"cost":7,"priority":"batch","request_id":"r1","peek":true}"#;
    assert_eq!(faces.check(body).await.status, 200);
    let asked = fake.last();
    assert_eq!(asked.priority.as_deref(), Some("batch"));
    assert_eq!(asked.request_id.as_deref(), Some("r1"));
    assert_eq!((asked.cost, asked.peek), (7, true));
    assert_eq!(asked.attributes["tenant"], "acme");
    assert_eq!(asked.attributes["route"], "/v1/é");
}

#[tokio::test]
async fn a_replayed_answer_has_the_first_ones_body_and_says_so_in_a_header() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    let first = faces.check(ACME).await;
    assert!(!first.headers.contains("idempotent-replayed"));
    let again = Fake::new().answering(|fake| {
        Ok(Decision {
            replayed: true,
            ..fake.decision([fake.report("api", Outcome::Allowed)])
        })
    });
    let faces = Faces::start(&again).await;
    let replayed = faces.check(ACME).await;
    assert_eq!(replayed.body, first.body);
    assert!(replayed.headers.contains("idempotent-replayed: true"));
}

#[tokio::test]
async fn a_request_id_with_another_content_is_a_409() {
    let fake = Fake::new().answering(|_| Err(CheckError::RequestIdReused));
    let faces = Faces::start(&fake).await;
    let answer = faces.check(ACME).await;
    assert_eq!(answer.status, 409);
    assert!(
        answer.body.contains(r#""code":"REQUEST_ID_REUSED""#),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_release_says_whether_there_was_anything_to_release() {
    let faces = Faces::start(&Fake::new()).await;
    for (body, status, said) in [
        (
            r#"{"reservation":"taken"}"#,
            200,
            r#"{"released":true,"region":"us-east"}"#,
        ),
        (
            r#"{"reservation":"over"}"#,
            200,
            r#"{"released":false,"region":"us-east"}"#,
        ),
        (r#"{"reservation":"?"}"#, 400, "reservation: unreadable"),
        (
            r#"{"reservation":1}"#,
            400,
            "reservation: expected a string, found 1",
        ),
        (r#"{"slot":"x"}"#, 400, "slot: unknown field"),
        ("{}", 400, "reservation: missing"),
        ("", 400, "body: empty"),
    ] {
        let answer = faces.send("POST", "/v1/release", body.as_bytes()).await;
        assert_eq!(answer.status, status, "{body}");
        assert!(answer.body.contains(said), "{body}: {}", answer.body);
    }
}

#[tokio::test]
async fn bad_input_is_a_400_that_names_the_field_and_asks_the_limiter_nothing() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    let long = format!(r#"{{"attributes":{{"tenant":"{}"}}}}"#, "x".repeat(10_000));
    let many: Vec<String> = (0..65).map(|i| format!(r#""a{i}":"x""#)).collect();
    let many = format!(r#"{{"attributes":{{{}}}}}"#, many.join(","));
    let deep = r#"{"a":"#.repeat(10_000);
    let cost = |cost: &str| format!(r#"{{"attributes":{{"tenant":"acme"}},"cost":{cost}}}"#);
    let cases = [
        ("", "body", "empty; expected a JSON object"),
        ("{", "body", "not valid JSON: EOF"),
        (deep.as_str(), "body", "not valid JSON: recursion limit"),
        ("[]", "body", "expected an object, found an array"),
        ("{}", "attributes", "missing"),
        (
            r#"{"attributes":[]}"#,
            "attributes",
            "expected an object of strings, found an array",
        ),
        (
            r#"{"attributes":{"a":1}}"#,
            "attributes.a",
            "expected a string, found 1",
        ),
        (
            r#"{"attributes":{"a":null}}"#,
            "attributes.a",
            "expected a string, found null",
        ),
        (
            r#"{"attributes":{"a":"1","a":"2"}}"#,
            "attributes.a",
            "given twice",
        ),
        (
            r#"{"attributes":{},"attributes":{}}"#,
            "attributes",
            "given twice",
        ),
        (
            r#"{"attributes":{},"tenant":"a"}"#,
            "tenant",
            "unknown field",
        ),
        (
            r#"{"attributes":{},"peek":"yes"}"#,
            "peek",
            "expected true or false, found a string",
        ),
        (
            r#"{"attributes":{},"priority":1}"#,
            "priority",
            "expected a string, found 1",
        ),
        (
            r#"{"attributes":{},"request_id":7}"#,
            "request_id",
            "expected a string, found 7",
        ),
        (
            &cost("0"),
            "cost",
            "expected a whole number from 1 to 9007199254, found 0",
        ),
        (&cost("-1"), "cost", "found -1"),
        (&cost("1.5"), "cost", "found 1.5"),
        (&cost("\"1\""), "cost", "found a string"),
        (&cost("null"), "cost", "found null"),
        (&cost("9007199255"), "cost", "found 9007199255"),
        (
            &cost("9223372036854775808"),
            "cost",
            "found 9223372036854775808",
        ),
        (&cost("1e40"), "cost", "found 1e+40"),
        (&long, "attributes", "has 10000 bytes"),
        (&many, "attributes", "65 attributes"),
        (r#"{"attributes":{"":"x"}}"#, "attributes", "without a name"),
    ];
    for (body, field, detail) in cases {
        let answer = faces.check(body).await;
        let found = answer.problem(400, "INVALID_REQUEST", Some(field));
        assert!(found.contains(detail), "{found:?} lacks {detail:?}");
    }
    let answer = faces
        .send("POST", "/v1/check", b"{\"attributes\":{\"a\":\"\xff\"}}")
        .await;
    let found = answer.problem(400, "INVALID_REQUEST", Some("body"));
    assert!(found.contains("not valid UTF-8 at byte 20"), "{found}");
    assert_eq!(fake.asked(), 0);
}

#[tokio::test]
async fn what_the_limiter_finds_invalid_is_a_400_too() {
    let fake = Fake::new().answering(|_| {
        Err(CheckError::Invalid {
            field: "cost",
            message: "above the capacity of policy \"api\", 1000".into(),
        })
    });
    let faces = Faces::start(&fake).await;
    let detail = faces
        .check(ACME)
        .await
        .problem(400, "INVALID_REQUEST", Some("cost"));
    assert_eq!(detail, r#"cost: above the capacity of policy "api", 1000"#);
}

#[tokio::test]
async fn a_store_out_of_reach_is_a_503_that_tells_no_address() {
    let fake = Fake::new().answering(|fake| Err(fake.unavailable(true)));
    let faces = Faces::start(&fake).await;
    let answer = faces.check(ACME).await;
    answer.problem(503, "STORE_UNAVAILABLE", None);
    assert_eq!(
        answer.body,
        r#"{"type":"about:blank","title":"The request could not be decided","status":503,"code":"STORE_UNAVAILABLE","detail":"the store of region us-east is out of reach; the request may have been charged","region":"us-east","outcome_unknown":true}"#
    );
}

#[tokio::test]
async fn a_body_over_64_kib_is_a_413_and_one_of_64_kib_is_looked_at() {
    let faces = Faces::start(&Fake::new()).await;
    let fits = format!("{ACME}{}", " ".repeat(64 * 1024 - ACME.len()));
    assert_eq!(faces.check(&fits).await.status, 200);
    for size in [64 * 1024 + 1, 300_000] {
        let over = format!("{ACME}{}", " ".repeat(size - ACME.len()));
        faces.check(&over).await.problem(413, "TOO_LARGE", None);
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let faces = Faces::start(&Fake::new()).await;
    let detail = faces
        .get("/v1/nothing")
        .await
        .problem(404, "NOT_FOUND", None);
    assert_eq!(detail, "nothing is served at /v1/nothing");
    let answer = faces.get("/v1/check").await;
    let detail = answer.problem(405, "METHOD_NOT_ALLOWED", None);
    assert_eq!(detail, "/v1/check does not take GET");
    assert!(answer.headers.contains("allow: POST"), "{answer:?}");
}

#[tokio::test]
async fn a_head_that_is_too_large_or_no_http_ends_its_connection_and_no_other() {
    let faces = Faces::start(&Fake::new()).await;
    let huge = format!("GET /livez HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET /livez HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(100));
    for request in [huge.as_str(), many.as_str(), "nonsense\r\n\r\n"] {
        let mut stream = TcpStream::connect(faces.http).await.expect("it listens");
        // The end of it may be refused already.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    assert_eq!(faces.get("/livez").await.body, "ok\n");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_a_408() {
    let faces = Faces::start(&Fake::new()).await;
    let answer = faces
        .raw(b"POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\n{")
        .await;
    let detail = answer.problem(408, "TOO_SLOW", None);
    assert_eq!(detail, "the body did not arrive within 10 seconds");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_asks_nothing_is_ended() {
    let faces = Faces::start(&Fake::new()).await;
    for (address, beginning) in [(faces.http, ""), (faces.http, "P"), (faces.grpc, "PRI")] {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream
            .write_all(beginning.as_bytes())
            .await
            .expect("it reads");
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(120), ended)
            .await
            .expect("the server ends it")
            .ok();
    }
}

#[tokio::test]
async fn metrics_count_decisions_without_naming_subjects() {
    let fake = Fake::in_region("metrics-test").answering(|fake| {
        Ok(fake.decision([
            fake.report("api", Outcome::Refused),
            fake.report("search", Outcome::NotCharged),
        ]))
    });
    let faces = Faces::start(&fake).await;
    for _ in 0..3 {
        faces.check(ACME).await;
    }
    faces
        .check(r#"{"attributes":{"tenant":"acme"},"peek":true}"#)
        .await;
    faces.check("{}").await;
    let answer = faces.get("/metrics").await;
    assert!(
        answer
            .headers
            .contains("content-type: text/plain; version=0.0.4")
    );
    for line in [
        r#"apportion_decisions_total{policy="api",region="metrics-test",outcome="refused"} 3"#,
        r#"apportion_decisions_total{policy="search",region="metrics-test",outcome="not-charged"} 3"#,
        r#"apportion_decisions_total{policy="api",region="metrics-test",outcome="allowed"} 0"#,
        r#"apportion_check_failures_total{region="metrics-test",code="INVALID_REQUEST"} 1"#,
        r#"apportion_check_duration_seconds_count{region="metrics-test",protocol="http"} 4"#,
        r#"apportion_check_duration_seconds_bucket{region="metrics-test",protocol="http",le="0.005"}"#,
        r#"apportion_peer_reachable{region="metrics-test",peer="eu-west"} 1"#,
        r#"apportion_peer_lag_seconds{region="metrics-test",peer="eu-west"} 1.25"#,
        r#"apportion_store_up{region="metrics-test"} 1"#,
        r#"apportion_ready{region="metrics-test"} 1"#,
        "# TYPE apportion_decisions_total counter",
        "# TYPE apportion_check_duration_seconds histogram",
        "# HELP apportion_ready Whether the region's node is ready to serve.",
    ] {
        assert!(
            answer.body.contains(line),
            "{line} is not in\n{}",
            answer.body
        );
    }
    assert!(!answer.body.contains("acme"));
}
