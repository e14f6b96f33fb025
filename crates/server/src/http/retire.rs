//! `POST /v1/regions/retire`.

use super::body;
use crate::errors::Failure;
use crate::face::{Face, Limiter};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retire {
    region: String,
    #[serde(default)]
    force: bool,
}

pub(super) async fn retire<L: Limiter>(
    State(face): State<Face<L>>,
    body: Body,
) -> Result<Response, Failure> {
    let bytes = body::read(body).await?;
    let Retire { region, force } = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::invalid(
            "body",
            format!("{error}; expected {{\"region\":\"ap-south\"}}, with \"force\":true if wanted"),
        )
    })?;
    let region = face.limiter.retire(&region, force).await?;
    Ok(Json(json!({ "region": region.as_str(), "retired": true })).into_response())
}
