//! `POST /v1/region/close` and `/v1/region/open`: a planned restart of the region's store.

use super::body;
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct Closed<'a> {
    region: &'a str,
    closed: bool,
}

#[derive(Serialize)]
struct Open<'a> {
    region: &'a str,
    closed: bool,
    life: String,
    /// The life that was closed couldn't go on, and another one began.
    lost: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct CloseBody {}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct OpenBody {
    as_lost: bool,
}

pub(super) async fn close<L: Limiter>(
    State(face): State<Face<L>>,
    body: Body,
) -> Result<Response, Failure> {
    let CloseBody {} = understand(body).await?;
    let region = face.limiter.region();
    let closed = face.limiter.close().await;
    closed.map_err(|why| Failure::NotClosed {
        region: region.clone(),
        why,
    })?;
    Ok(Json(Closed {
        region: region.as_str(),
        closed: true,
    })
    .into_response())
}

pub(super) async fn open<L: Limiter>(
    State(face): State<Face<L>>,
    body: Body,
) -> Result<Response, Failure> {
    let OpenBody { as_lost } = understand(body).await?;
    let region = face.limiter.region();
    let opened = face.limiter.open(as_lost).await;
    let opened = opened.map_err(|why| Failure::NotOpen {
        region: region.clone(),
        why,
    })?;
    Ok(Json(Open {
        region: region.as_str(),
        closed: false,
        life: opened.life.to_string(),
        lost: opened.lost,
    })
    .into_response())
}

/// Nothing is as good as an empty object.
async fn understand<T: Default + for<'de> Deserialize<'de>>(body: Body) -> Result<T, Failure> {
    let bytes = body::read(body).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|error| Failure::invalid("body", error.to_string()))
}
