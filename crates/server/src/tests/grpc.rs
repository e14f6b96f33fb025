use super::harness::Faces;
use crate::face::fake::Fake;
use apportion_engine::{CheckError, Outcome};
use apportion_proto::v1::check_result::Result as Outcomes;
use apportion_proto::v1::limiter_client::LimiterClient;
use apportion_proto::v1::{self, CheckBatchRequest, CheckRequest};
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

pub(super) async fn channel(faces: &Faces) -> Channel {
    Channel::from_shared(format!("http://{}", faces.grpc))
        .expect("an address makes a URI")
        .connect()
        .await
        .expect("it listens")
}

pub(super) fn acme() -> CheckRequest {
    CheckRequest {
        attributes: [("tenant".to_owned(), "acme".to_owned())].into(),
        ..CheckRequest::default()
    }
}

#[tokio::test]
async fn a_check_says_what_the_json_says() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    let request = CheckRequest {
        cost: Some(7),
        peek: true,
        priority: "batch".into(),
        ..acme()
    };
    let answer = client.check(request).await.expect("decided").into_inner();
    assert_eq!((fake.last().cost, fake.last().peek), (7, true));
    assert_eq!(
        answer,
        v1::CheckResponse {
            allowed: true,
            region: "us-east".into(),
            decided_at_ms: 1_764_444_444_444,
            limits: vec![v1::Limit {
                policy: "api".into(),
                outcome: v1::Outcome::Allowed.into(),
                limit: 1000,
                remaining: 412,
                reset_ms: 1200,
                retry_after_ms: 0,
                decided_by: v1::DecidedBy::Store.into(),
            }],
            reservation: String::new(),
            replayed: false,
        }
    );
    client.check(acme()).await.expect("decided");
    assert_eq!((fake.last().cost, fake.last().peek), (1, false));
}

#[tokio::test]
async fn a_refused_check_is_ok_and_not_allowed() {
    let fake =
        Fake::new().answering(|fake| Ok(fake.decision([fake.report("api", Outcome::Refused)])));
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    let answer = client.check(acme()).await.expect("decided").into_inner();
    assert!(!answer.allowed);
    assert_eq!(answer.limits[0].retry_after_ms, 1200);
}

#[tokio::test]
async fn a_bad_request_is_invalid_argument_and_a_lost_store_unavailable() {
    let fake = Fake::new().answering(|fake| Err(fake.unavailable(false)));
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    let long = [("tenant".to_owned(), "x".repeat(10_000))].into();
    let bad = [
        CheckRequest {
            cost: Some(0),
            ..acme()
        },
        CheckRequest {
            cost: Some(1 << 63),
            ..acme()
        },
        CheckRequest {
            attributes: long,
            ..acme()
        },
    ];
    for request in bad {
        let status = client.check(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    assert_eq!(fake.asked(), 0);
    let status = client.check(acme()).await.expect_err("no store");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        "the store of region us-east is out of reach"
    );
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_one_bad_request_fails_alone() {
    let fake = Fake::new().answering(|fake| match fake.last().cost {
        2 => Err(fake.unavailable(false)),
        3 => Err(CheckError::Invalid {
            field: "cost",
            message: "above".into(),
        }),
        _ => Ok(fake.decision([fake.report("api", Outcome::Allowed)])),
    });
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    let requests = (0..1000)
        .map(|i| CheckRequest {
            cost: Some(i % 5),
            ..acme()
        })
        .collect();
    let answer = client
        .check_batch(CheckBatchRequest { requests })
        .await
        .expect("answered")
        .into_inner();
    let codes: Vec<i32> = answer
        .results
        .into_iter()
        .map(|result| match result.result.expect("one of the two") {
            Outcomes::Response(_) => 0,
            Outcomes::Error(error) => error.code,
        })
        .collect();
    assert_eq!(codes, [3, 0, 14, 3, 0].repeat(200));
}

#[tokio::test]
async fn a_batch_of_none_or_too_many_is_refused_whole() {
    let fake = Fake::new();
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    for size in [0, 1001] {
        let requests = vec![acme(); size];
        let status = client
            .check_batch(CheckBatchRequest { requests })
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("expected 1 to 1000"), "{status}");
    }
    assert_eq!(fake.asked(), 0);
}

#[tokio::test]
async fn health_follows_readiness() {
    let fake = Fake::new();
    fake.set_ready(false);
    let faces = Faces::start(&fake).await;
    let mut client = HealthClient::new(channel(&faces).await);
    for service in ["", "apportion.v1.Limiter"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let mut stream = client.watch(request).await.expect("known").into_inner();
        let mut until = async |wanted: ServingStatus| {
            let told = async {
                while let Some(told) = stream.next().await {
                    if told.expect("told").status == wanted as i32 {
                        return;
                    }
                }
                panic!("the stream ended");
            };
            tokio::time::timeout(Duration::from_secs(5), told)
                .await
                .expect("told in time");
        };
        fake.set_ready(false);
        until(ServingStatus::NotServing).await;
        fake.set_ready(true);
        until(ServingStatus::Serving).await;
    }
}

#[tokio::test]
async fn reflection_lists_what_is_served_and_nothing_else() {
    let faces = Faces::start(&Fake::new()).await;
    let mut client = ServerReflectionClient::new(channel(&faces).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .expect("served")
        .into_inner()
        .next()
        .await
        .expect("an answer")
        .expect("a good one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let mut names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "apportion.v1.Limiter",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        ]
    );
}

#[tokio::test]
async fn a_service_that_is_not_there_is_unimplemented() {
    let faces = Faces::start(&Fake::new()).await;
    let mut client = tonic::client::Grpc::new(channel(&faces).await);
    client.ready().await.expect("connected");
    let path = "/apportion.v1.Nothing/Check".parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<CheckRequest, v1::CheckResponse>::default();
    let status = client
        .unary(tonic::Request::new(acme()), path, codec)
        .await
        .expect_err("not served");
    assert_eq!(status.code(), Code::Unimplemented);
}
