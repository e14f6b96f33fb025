//! `POST /v1/check` and `POST /v1/release`.

use super::headers::{rate_limit_headers, retry_after_ms};
use super::{body, problem};
use crate::errors::Failure;
use crate::face::{Face, Limiter, decided_by_name, outcome_name};
use crate::metrics::Protocol;
use apportion_engine::{CheckRequest, Decision, LimitReport, Outcome};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// "quota-exceeded" of the IANA registry of HTTP problem types.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The answer is that of an earlier request with the same id; nothing was charged for this one.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

#[derive(Serialize)]
struct Allowed<'a> {
    allowed: bool,
    region: &'a str,
    decided_at_ms: u64,
    limits: Vec<Limit<'a>>,
    /// Where a slot was taken: what releases it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<&'a str>,
}

#[derive(Serialize)]
struct Released<'a> {
    /// False: there was nothing (any more) to release.
    released: bool,
    region: &'a str,
}

#[derive(Serialize)]
struct Refused<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
    retry_after_ms: u64,
    region: &'a str,
    decided_at_ms: u64,
    limits: Vec<Limit<'a>>,
}

#[derive(Serialize)]
struct Limit<'a> {
    policy: &'a str,
    outcome: &'static str,
    limit: u64,
    remaining: u64,
    reset_ms: u64,
    retry_after_ms: u64,
    decided_by: &'static str,
}

pub(super) async fn check<L: Limiter>(State(face): State<Face<L>>, body: Body) -> Response {
    let request = match understand(body).await {
        Ok(request) => request,
        Err(failure) => return face.failed(failure).into_response(),
    };
    match face.check(request, Protocol::Http).await {
        Ok(decision) => answer(&decision),
        Err(failure) => failure.into_response(),
    }
}

pub(super) async fn release<L: Limiter>(
    State(face): State<Face<L>>,
    body: Body,
) -> Result<Response, Failure> {
    let read = async { body::parse_release(&body::read(body).await?) };
    let reservation = read.await.map_err(|failure| face.failed(failure))?;
    let released = face.release(&reservation).await?;
    Ok(Json(Released {
        released,
        region: face.limiter.region().as_str(),
    })
    .into_response())
}

async fn understand(body: Body) -> Result<CheckRequest, Failure> {
    body::parse(&body::read(body).await?)?.into_request()
}

fn answer(decision: &Decision) -> Response {
    let limits = decision.limits.iter().map(Limit::from).collect();
    let region = decision.region.as_str();
    let decided_at_ms = decision.decided_at.0;
    let mut response = if decision.allowed {
        Json(Allowed {
            allowed: true,
            region,
            decided_at_ms,
            limits,
            reservation: decision.reservation.as_deref(),
        })
        .into_response()
    } else {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let refused = Refused {
            r#type: QUOTA_EXCEEDED,
            title: "Quota exceeded",
            status: status.as_u16(),
            code: "RATE_LIMITED",
            violated_policies: violated(decision),
            retry_after_ms: retry_after_ms(decision),
            region,
            decided_at_ms,
            limits,
        };
        problem::respond(status, &refused)
    };
    response.headers_mut().extend(rate_limit_headers(decision));
    if decision.replayed {
        // The body is that of the first answer, to the letter.
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

fn violated(decision: &Decision) -> Vec<&str> {
    decision
        .limits
        .iter()
        .filter(|limit| limit.outcome == Outcome::Refused)
        .map(|limit| limit.policy.name.as_str())
        .collect()
}

impl<'a> From<&'a LimitReport> for Limit<'a> {
    fn from(report: &'a LimitReport) -> Self {
        Self {
            policy: &report.policy.name,
            outcome: outcome_name(report.outcome),
            limit: report.limit,
            remaining: report.remaining,
            reset_ms: report.reset_ms,
            retry_after_ms: report.retry_after_ms,
            decided_by: decided_by_name(report.decided_by),
        }
    }
}
