//! `apportion.v1.Limiter` over gRPC, with the standard health and reflection services.

use crate::ask::Ask;
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use crate::metrics::Protocol;
use apportion_engine::{DecidedBy, Decision, LimitReport, Outcome};
use apportion_proto::FILE_DESCRIPTOR_SET;
use apportion_proto::v1::check_result::Result as Outcomes;
use apportion_proto::v1::limiter_server::{self, LimiterServer};
use apportion_proto::v1::{
    self, CheckBatchRequest, CheckBatchResponse, CheckError, CheckRequest, CheckResponse,
    CheckResult, ReleaseRequest, ReleaseResponse,
};
use futures_util::StreamExt;
use futures_util::stream;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

pub(crate) const MAX_BATCH: usize = 1000;
/// Requests of a batch that wait for the store at once.
const BATCH_CONCURRENCY: usize = 64;
/// How often the health service looks whether the node is ready.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);
const LIMITER_SERVICE: &str = limiter_server::SERVICE_NAME;

struct LimiterFace<L>(Face<L>);

/// Every service of the gRPC face, and the hand that turns its health.
pub(crate) fn services<L: Limiter>(face: Face<L>) -> (axum::Router, HealthReporter) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let v1 = reflection()
        .build_v1()
        .expect("the build wrote well-formed descriptors");
    let v1alpha = reflection()
        .build_v1alpha()
        .expect("the build wrote well-formed descriptors");
    let routes = Routes::new(LimiterServer::new(LimiterFace(face)))
        .add_service(health)
        .add_service(v1)
        .add_service(v1alpha);
    (routes.prepare().into_axum_router(), reporter)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Says over the health service whether the node is ready, until `shutdown`; then that it isn't.
pub(crate) async fn report_health<L: Limiter>(
    face: Face<L>,
    reporter: HealthReporter,
    shutdown: CancellationToken,
) {
    let mut told = None;
    loop {
        let ready = face.ready() && !shutdown.is_cancelled();
        if told != Some(ready) {
            told = Some(ready);
            let status = match ready {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            };
            reporter.set_service_status("", status).await;
            reporter.set_service_status(LIMITER_SERVICE, status).await;
        }
        if shutdown.is_cancelled() {
            return;
        }
        let pause = tokio::time::sleep(HEALTH_INTERVAL);
        shutdown.run_until_cancelled(pause).await;
    }
}

// === impl LimiterFace ===

impl<L: Limiter> LimiterFace<L> {
    async fn decide(&self, request: CheckRequest) -> Result<CheckResponse, Failure> {
        let request = Ask::from(request)
            .into_request()
            .map_err(|failure| self.0.failed(failure))?;
        let decision = self.0.check(request, Protocol::Grpc).await?;
        Ok(response(&decision))
    }
}

#[tonic::async_trait]
impl<L: Limiter> limiter_server::Limiter for LimiterFace<L> {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(self.decide(request.into_inner()).await?))
    }

    async fn check_batch(
        &self,
        request: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        let requests = request.into_inner().requests;
        if !(1..=MAX_BATCH).contains(&requests.len()) {
            let failure = Failure::invalid(
                "requests",
                format!("expected 1 to {MAX_BATCH}, found {}", requests.len()),
            );
            return Err(self.0.failed(failure).into());
        }
        let results = stream::iter(requests)
            .map(|request| async { result(self.decide(request).await) })
            .buffered(BATCH_CONCURRENCY)
            .collect()
            .await;
        Ok(Response::new(CheckBatchResponse { results }))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let released = self.0.release(&request.into_inner().reservation).await?;
        Ok(Response::new(ReleaseResponse { released }))
    }
}

// === conversions ===

impl From<CheckRequest> for Ask {
    fn from(request: CheckRequest) -> Self {
        let CheckRequest {
            attributes,
            cost,
            priority,
            request_id,
            peek,
        } = request;
        Self {
            attributes,
            cost,
            priority: Some(priority).filter(|class| !class.is_empty()),
            request_id: Some(request_id).filter(|id| !id.is_empty()),
            peek,
        }
    }
}

fn result(answer: Result<CheckResponse, Failure>) -> CheckResult {
    let result = match answer {
        Ok(response) => Outcomes::Response(response),
        Err(failure) => Outcomes::Error(CheckError {
            code: failure.kind().grpc.into(),
            message: failure.to_string(),
        }),
    };
    CheckResult {
        result: Some(result),
    }
}

fn response(decision: &Decision) -> CheckResponse {
    CheckResponse {
        allowed: decision.allowed,
        region: decision.region.to_string(),
        decided_at_ms: decision.decided_at.0,
        limits: decision.limits.iter().map(limit).collect(),
        reservation: decision.reservation.clone().unwrap_or_default(),
        replayed: decision.replayed,
    }
}

fn limit(report: &LimitReport) -> v1::Limit {
    v1::Limit {
        policy: report.policy.name.clone(),
        outcome: outcome(report.outcome).into(),
        limit: report.limit,
        remaining: report.remaining,
        reset_ms: report.reset_ms,
        retry_after_ms: report.retry_after_ms,
        decided_by: decided_by(report.decided_by).into(),
    }
}

fn outcome(outcome: Outcome) -> v1::Outcome {
    match outcome {
        Outcome::Allowed => v1::Outcome::Allowed,
        Outcome::Refused => v1::Outcome::Refused,
        Outcome::ShadowRefused => v1::Outcome::ShadowRefused,
        Outcome::NotCharged => v1::Outcome::NotCharged,
    }
}

fn decided_by(decided_by: DecidedBy) -> v1::DecidedBy {
    match decided_by {
        DecidedBy::Store => v1::DecidedBy::Store,
        DecidedBy::DeniedCache => v1::DecidedBy::DeniedCache,
        DecidedBy::FailureMode => v1::DecidedBy::FailureMode,
    }
}
