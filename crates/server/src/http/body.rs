//! The body of a check: read within bounds, and understood or refused by the name of the field at fault.

use crate::ask::{Ask, expected_cost};
use crate::errors::Failure;
use apportion_core::Attributes;
use axum::body::Body;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::time::Duration;
use tokio_stream::StreamExt;

/// Largest body that is looked at.
pub(super) const MAX_BYTES: usize = 64 * 1024;
/// Of a body that is too large, this much is still read, so that the caller gets to see the answer.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// What a JSON text says, members in order and repeated ones kept: a request that says two things is not understood.
enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    Array,
    Object(Vec<(String, Json)>),
}

pub(super) async fn read(body: Body) -> Result<Vec<u8>, Failure> {
    let mut chunks = body.into_data_stream();
    let whole = async {
        let mut bytes = Vec::new();
        let mut size = 0;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Failure::invalid("body", "broke off"))?;
            size += chunk.len();
            if size <= MAX_BYTES {
                bytes.extend_from_slice(&chunk);
            } else if size > MAX_DISCARDED_BYTES {
                break;
            }
        }
        if size > MAX_BYTES {
            return Err(Failure::TooLarge {
                max_bytes: MAX_BYTES,
            });
        }
        Ok(bytes)
    };
    tokio::time::timeout(READ_TIMEOUT, whole)
        .await
        .unwrap_or(Err(Failure::TooSlow {
            seconds: READ_TIMEOUT.as_secs(),
        }))
}

pub(super) fn parse(bytes: &[u8]) -> Result<Ask, Failure> {
    const EXAMPLE: &str = r#"{"attributes":{"tenant":"acme"}}"#;
    ask(members(bytes, EXAMPLE)?)
}

/// The reservation that a release names.
pub(super) fn parse_release(bytes: &[u8]) -> Result<String, Failure> {
    const EXAMPLE: &str = r#"{"reservation":"..."}"#;
    let members = members(bytes, EXAMPLE)?;
    once_each("", &members)?;
    let mut reservation = None;
    for (name, value) in members {
        match (name.as_str(), value) {
            ("reservation", Json::String(token)) => reservation = Some(token),
            ("reservation", other) => return Err(wrong("reservation", "a string", &other)),
            _ => {
                return Err(Failure::invalid(
                    shown(&name),
                    "unknown field; expected reservation",
                ));
            }
        }
    }
    reservation.ok_or_else(|| {
        Failure::invalid(
            "reservation",
            "missing; expected what the check that took the slot answered",
        )
    })
}

/// The members of the body's object.
fn members(bytes: &[u8], example: &str) -> Result<Vec<(String, Json)>, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Failure::invalid("body", format!("not valid UTF-8 at byte {at}"))
    })?;
    if text.trim().is_empty() {
        return Err(Failure::invalid(
            "body",
            format!("empty; expected a JSON object, such as {example}"),
        ));
    }
    let json: Json = serde_json::from_str(text)
        .map_err(|error| Failure::invalid("body", format!("not valid JSON: {error}")))?;
    match json {
        Json::Object(members) => Ok(members),
        other => Err(wrong("body", "an object", &other)),
    }
}

fn ask(members: Vec<(String, Json)>) -> Result<Ask, Failure> {
    let mut ask = Ask::default();
    let mut has_attributes = false;
    once_each("", &members)?;
    for (name, value) in members {
        match name.as_str() {
            "attributes" => {
                ask.attributes = attributes(value)?;
                has_attributes = true;
            }
            "cost" => ask.cost = Some(cost(&value)?),
            "peek" => match value {
                Json::Bool(peek) => ask.peek = peek,
                other => return Err(wrong("peek", "true or false", &other)),
            },
            "request_id" => match value {
                Json::String(id) => ask.request_id = Some(id),
                other => return Err(wrong("request_id", "a string", &other)),
            },
            "priority" => match value {
                Json::String(class) => ask.priority = Some(class),
                other => return Err(wrong("priority", "a string", &other)),
            },
            _ => {
                return Err(Failure::invalid(
                    shown(&name),
                    "unknown field; expected attributes, cost, priority, request_id or peek",
                ));
            }
        }
    }
    if !has_attributes {
        return Err(Failure::invalid(
            "attributes",
            r#"missing; expected an object of strings, such as {"tenant":"acme"}"#,
        ));
    }
    Ok(ask)
}

fn attributes(value: Json) -> Result<Attributes, Failure> {
    let Json::Object(members) = value else {
        return Err(wrong("attributes", "an object of strings", &value));
    };
    once_each("attributes.", &members)?;
    members
        .into_iter()
        .map(|(name, value)| match value {
            Json::String(value) => Ok((name, value)),
            other => Err(wrong(
                format!("attributes.{}", shown(&name)),
                "a string",
                &other,
            )),
        })
        .collect()
}

fn cost(value: &Json) -> Result<u64, Failure> {
    match value {
        Json::Number(number) => number.as_u64(),
        _ => None,
    }
    .ok_or_else(|| {
        Failure::invalid(
            "cost",
            format!("{}, found {}", expected_cost(), value.describe()),
        )
    })
}

fn once_each(prefix: &str, members: &[(String, Json)]) -> Result<(), Failure> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Failure::invalid(
            format!("{prefix}{}", shown(pair[0])),
            "given twice",
        )),
        None => Ok(()),
    }
}

fn wrong(
    field: impl Into<std::borrow::Cow<'static, str>>,
    expected: &str,
    found: &Json,
) -> Failure {
    Failure::invalid(
        field,
        format!("expected {expected}, found {}", found.describe()),
    )
}

/// A name of the caller's, short enough to be repeated to them.
fn shown(name: &str) -> String {
    const LONGEST: usize = 64;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

// === impl Json ===

impl Json {
    fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.to_string(),
            Self::String(_) => "a string".into(),
            Self::Array => "an array".into(),
            Self::Object(_) => "an object".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Json::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}
