//! The JSON API, health and metrics over HTTP.
//!
//! Nothing is decided here. Every error is `application/problem+json`, and every body has a bound in size and time.

mod body;
mod check;
pub mod headers;
mod problem;
mod query;
mod read;
mod region;
mod retire;
mod usage;

use crate::errors::Failure;
use crate::face::{Face, Limiter};
use crate::metrics;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

/// Every path that the HTTP face serves.
pub(crate) fn router<L: Limiter>(face: Face<L>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check::<L>))
        .route("/v1/release", post(check::release::<L>))
        .route("/v1/usage", get(usage::usage::<L>))
        .route("/v1/shares", get(read::shares::<L>))
        .route("/v1/status", get(read::status::<L>))
        .route("/v1/policies", get(read::policies::<L>))
        .route("/v1/region/close", post(region::close::<L>))
        .route("/v1/region/open", post(region::open::<L>))
        .route("/v1/regions/retire", post(retire::retire::<L>))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz::<L>))
        .route("/metrics", get(render_metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(face)
}

async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz<L: Limiter>(State(face): State<Face<L>>) -> (StatusCode, &'static str) {
    if face.ready() {
        (StatusCode::OK, "ok\n")
    } else if face.limiter.status().closed.is_some() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: the region is closed for a restart of its store\n",
        )
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn render_metrics() -> Response {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        metrics::install().render(),
    )
        .into_response()
}

async fn not_found(uri: Uri) -> Failure {
    Failure::NotFound(format!("nothing is served at {}", uri.path()))
}

async fn method_not_allowed(method: Method, request: Request) -> Failure {
    Failure::MethodNotAllowed {
        method: method.to_string(),
        path: request.uri().path().to_owned(),
    }
}
