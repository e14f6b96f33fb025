//! What the reading endpoints are asked by: a policy, the values of its key attributes, a span of time.

use crate::errors::Failure;
use apportion_core::key::SubjectHash;
use apportion_core::{Attributes, Key, Policy, PolicySet, StoreMs};
use axum::extract::Query;
use axum::http::Uri;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

const KEY_PREFIX: &str = "key.";

/// The parameters of a query, each given once.
pub(super) struct Parameters(BTreeMap<String, String>);

/// Whose numbers are asked for.
pub(super) enum Subject {
    One {
        values: Attributes,
        key: Key,
    },
    /// No key attribute was given, though the policy has some.
    All,
}

// === impl Parameters ===

impl Parameters {
    /// Refuses a parameter that isn't one of `known` and doesn't begin with `key.`.
    pub(super) fn read(uri: &Uri, known: &[&str]) -> Result<Self, Failure> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Failure::invalid("query", error.body_text()))?;
        let mut parameters = BTreeMap::new();
        for (name, value) in pairs {
            // What isn't UTF-8 was replaced when it was decoded.
            if name.contains('\u{fffd}') || value.contains('\u{fffd}') {
                return Err(Failure::invalid("query", "not valid UTF-8"));
            }
            if !known.contains(&name.as_str()) && !name.starts_with(KEY_PREFIX) {
                let expected = known.join(", ");
                return Err(Failure::invalid(
                    name,
                    format!("unknown parameter; expected {expected} or key.NAME"),
                ));
            }
            if parameters.contains_key(&name) {
                return Err(Failure::invalid(name, "given twice"));
            }
            parameters.insert(name, value);
        }
        Ok(Self(parameters))
    }

    pub(super) fn policy(&self, policies: &PolicySet) -> Result<Arc<Policy>, Failure> {
        let name = self
            .0
            .get("policy")
            .ok_or_else(|| Failure::invalid("policy", "missing; expected the name of a policy"))?;
        policies
            .policies
            .iter()
            .find(|policy| policy.name == *name)
            .cloned()
            .ok_or_else(|| Failure::NotFound(format!("there is no policy {name:?}")))
    }

    pub(super) fn subject(&self, policy: &Policy, hash: &SubjectHash) -> Result<Subject, Failure> {
        let values: Attributes = self
            .0
            .iter()
            .filter_map(|(name, value)| {
                Some((name.strip_prefix(KEY_PREFIX)?.to_owned(), value.clone()))
            })
            .collect();
        if values.is_empty() && !policy.key.is_empty() {
            return Ok(Subject::All);
        }
        let expected = || match policy.key.as_slice() {
            [] => format!("policy {:?} has no key attributes", policy.name),
            key => format!(
                "the key attributes of policy {:?} are {}",
                policy.name,
                key.join(", ")
            ),
        };
        if let Some(name) = values.keys().find(|name| !policy.key.contains(name)) {
            return Err(Failure::invalid(
                format!("{KEY_PREFIX}{name}"),
                format!("unknown; {}", expected()),
            ));
        }
        if let Some(name) = policy.key.iter().find(|name| !values.contains_key(*name)) {
            return Err(Failure::invalid(
                format!("{KEY_PREFIX}{name}"),
                format!("missing; {}", expected()),
            ));
        }
        let key = Key::of(policy, &values, hash)
            .map_err(|error| Failure::invalid("key", error.to_string()))?;
        Ok(Subject::One { values, key })
    }

    /// The span `[from, to)`, either end of it open if left out.
    pub(super) fn span(&self) -> Result<(Option<StoreMs>, Option<StoreMs>), Failure> {
        let (from, to) = (self.moment("from")?, self.moment("to")?);
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            return Err(Failure::invalid("from", "later than to"));
        }
        Ok((from, to))
    }

    fn moment(&self, name: &'static str) -> Result<Option<StoreMs>, Failure> {
        let Some(text) = self.0.get(name) else {
            return Ok(None);
        };
        let moment: Timestamp = text.parse().map_err(|_| {
            let hint = if text.contains(' ') {
                " (a + is to be written as %2B in a query)"
            } else {
                ""
            };
            Failure::invalid(
                name,
                format!(
                    "expected an RFC 3339 time, such as 2026-01-31T00:00:00Z, found {text:?}{hint}"
                ),
            )
        })?;
        // Nothing was counted before 1970.
        let ms = u64::try_from(moment.as_millisecond()).unwrap_or(0);
        Ok(Some(StoreMs(ms)))
    }
}

/// RFC 3339, in UTC.
pub(super) fn rfc3339(moment: StoreMs) -> String {
    i64::try_from(moment.0)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .unwrap_or(Timestamp::MAX)
        .to_string()
}
