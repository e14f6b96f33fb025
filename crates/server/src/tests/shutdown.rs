use super::grpc::{acme, channel};
use super::harness::Faces;
use crate::face::fake::Fake;
use apportion_proto::v1::limiter_client::LimiterClient;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const LIMIT: Duration = Duration::from_millis(3_200);

async fn ends_in_time(faces: Faces) -> Duration {
    let start = Instant::now();
    faces.shutdown.cancel();
    timeout(LIMIT, faces.task)
        .await
        .expect("the faces end in time")
        .expect("without a panic");
    start.elapsed()
}

#[tokio::test]
async fn idle_faces_end_at_once() {
    let faces = Faces::start(&Fake::new()).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    client.check(acme()).await.expect("decided");
    let _kept_alive = TcpStream::connect(faces.http).await.expect("it listens");
    assert!(ends_in_time(faces).await < Duration::from_secs(1));
}

#[tokio::test]
async fn a_stream_that_a_client_holds_open_is_told_and_then_dropped() {
    let faces = Faces::start(&Fake::new()).await;
    let mut client = HealthClient::new(channel(&faces).await);
    let mut stream = client
        .watch(HealthCheckRequest::default())
        .await
        .expect("served")
        .into_inner();
    let watch = tokio::spawn(async move {
        let mut told = Vec::new();
        while let Some(Ok(status)) = stream.next().await {
            told.push(status.status);
        }
        told
    });
    sleep(Duration::from_millis(300)).await;
    assert!(ends_in_time(faces).await > Duration::from_secs(1));
    let told = timeout(Duration::from_secs(1), watch)
        .await
        .expect("the stream ends with the faces")
        .expect("without a panic");
    assert_eq!(told.last(), Some(&(ServingStatus::NotServing as i32)));
}

#[tokio::test]
async fn a_request_under_way_is_answered_before_the_end() {
    let fake = Fake::new().delayed(Duration::from_millis(1_000));
    let faces = Faces::start(&fake).await;
    let mut client = LimiterClient::new(channel(&faces).await);
    let grpc = tokio::spawn(async move { client.check(acme()).await });
    let (answer, ()) = tokio::join!(faces.check(r#"{"attributes":{}}"#), async {
        sleep(Duration::from_millis(100)).await;
        faces.shutdown.cancel();
    });
    assert_eq!(answer.status, 200);
    assert!(grpc.await.expect("no panic").is_ok());
    ends_in_time(faces).await;
}

#[tokio::test]
async fn readiness_goes_before_the_door_is_shut() {
    let faces = Faces::start(&Fake::new()).await;
    assert_eq!(faces.get("/readyz").await.status, 200);
    faces.shutdown.cancel();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(faces.get("/readyz").await.status, 503);
    assert_eq!(faces.check(r#"{"attributes":{}}"#).await.status, 200);
    sleep(Duration::from_millis(600)).await;
    assert!(TcpStream::connect(faces.http).await.is_err());
    assert!(TcpStream::connect(faces.grpc).await.is_err());
}
