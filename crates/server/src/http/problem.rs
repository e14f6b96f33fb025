//! Failures and refusals as `application/problem+json` (RFC 9457).

use crate::errors::Failure;
use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
    /// What to look at, of a request that isn't well formed.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
    /// The request may have been charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome_unknown: Option<bool>,
}

/// An answer of this kind; `body` holds the members.
pub(super) fn respond(status: StatusCode, body: &impl Serialize) -> Response {
    (status, [(CONTENT_TYPE, MEDIA_TYPE)], Json(body)).into_response()
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let kind = self.kind();
        let mut problem = Problem {
            r#type: "about:blank",
            title: kind.title,
            status: kind.status.as_u16(),
            code: kind.code,
            detail: self.to_string(),
            field: None,
            region: None,
            outcome_unknown: None,
        };
        match &self {
            Self::Invalid { field, .. } => problem.field = Some(field),
            Self::StoreUnavailable {
                region,
                outcome_unknown,
            } => {
                problem.region = Some(region.as_str());
                problem.outcome_unknown = Some(*outcome_unknown);
            }
            Self::RegionClosed { region, .. }
            | Self::NotClosed { region, .. }
            | Self::NotOpen { region, .. } => problem.region = Some(region.as_str()),
            _ => {}
        }
        respond(kind.status, &problem)
    }
}
