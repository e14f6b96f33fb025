//! The product's HTTP face, as a client sees it: blocking, keep-alive, and honest about what isn't known.

use crate::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use ureq::Agent;

const TIME_LIMIT: Duration = Duration::from_secs(10);
const IDLE_CONNECTIONS: usize = 128;

/// The HTTP addresses of a deployment, by region. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Api {
    agent: Agent,
    regions: Arc<BTreeMap<String, Vec<String>>>,
    turn: Arc<AtomicUsize>,
}

/// Attributes of a request.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Refused,
    /// 503: not decided, so nothing was let through.
    Unavailable,
    /// Any other status.
    Rejected(u16),
    /// Nobody listens there: certainly not decided.
    NotSent,
    /// Sent, but no answer came: it may have been charged.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub outcome: Outcome,
    pub region: Option<String>,
    pub decided_at_ms: Option<u64>,
    pub retry_after_ms: Option<u64>,
    pub limits: Vec<Limit>,
    /// The whole body, or the words of a transport error.
    pub body: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Limit {
    pub policy: String,
    pub outcome: String,
    pub limit: u64,
    pub remaining: u64,
    pub reset_ms: u64,
    pub retry_after_ms: u64,
    pub decided_by: String,
}

/// Any HTTP answer, as it came.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Usage {
    pub policy: String,
    pub key: BTreeMap<String, String>,
    pub periods: Vec<Period>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Period {
    pub start: Value,
    pub end: Value,
    pub admitted: u64,
    pub refunded: u64,
    pub refused: u64,
    pub by_region: BTreeMap<String, Counts>,
    pub complete: bool,
    pub low: u64,
    pub high: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Counts {
    pub admitted: u64,
    pub refunded: u64,
    pub refused: u64,
    pub through: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Shares {
    pub policy: String,
    pub key: BTreeMap<String, String>,
    pub limit: f64,
    pub regions: BTreeMap<String, Share>,
}

/// In units of the limit.
#[derive(Debug, Clone, Deserialize)]
pub struct Share {
    pub base: f64,
    // Of a region that is out of reach only the base is known; the rest reads as nothing.
    #[serde(deserialize_with = "null_is_zero")]
    pub lent: f64,
    #[serde(deserialize_with = "null_is_zero")]
    pub borrowed: f64,
    #[serde(deserialize_with = "null_is_zero")]
    pub given: f64,
    #[serde(deserialize_with = "null_is_zero")]
    pub received: f64,
    #[serde(deserialize_with = "null_is_zero")]
    pub in_force: f64,
    #[serde(deserialize_with = "null_is_zero")]
    pub used: f64,
    pub as_of_ms: Option<u64>,
}

fn null_is_zero<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(0.0))
}

#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    pub region: String,
    /// Unknown before the first contact with the store.
    pub life: Option<Value>,
    pub epoch: u64,
    /// In words: "first", "asking", "later".
    pub standing: String,
    /// Nothing is decided for the sake of a restart of the store.
    pub closed: bool,
    pub store: StoreStatus,
    pub peers: BTreeMap<String, PeerStatus>,
    pub policies: Vec<PolicyStatus>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct StoreStatus {
    pub ok: bool,
    pub breaker: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct PeerStatus {
    pub reachable: bool,
    pub lag_ms: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct PolicyStatus {
    pub name: String,
    pub version: u64,
    pub digest: Value,
}

#[derive(Debug, Default, Deserialize)]
struct CheckBody {
    region: Option<String>,
    decided_at_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    limits: Vec<Limit>,
}

// === impl Api ===

impl Api {
    /// From the base URLs (`http://127.0.0.1:7201`) of each region's nodes.
    pub fn new(regions: BTreeMap<String, Vec<String>>) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIME_LIMIT))
            .max_idle_connections(IDLE_CONNECTIONS)
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .build()
            .new_agent();
        Self {
            agent,
            regions: Arc::new(regions),
            turn: Arc::default(),
        }
    }

    pub fn regions(&self) -> Vec<String> {
        self.regions.keys().cloned().collect()
    }

    /// A node of the region, each in turn.
    pub fn base(&self, region: &str) -> Result<&str, Error> {
        let nodes = self.regions.get(region).filter(|nodes| !nodes.is_empty());
        let nodes = nodes.ok_or_else(|| Error::NoRegion(region.to_owned()))?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Ok(&nodes[turn % nodes.len()])
    }

    pub fn check(
        &self,
        region: &str,
        attributes: Attributes<'_>,
        cost: u64,
    ) -> Result<Answer, Error> {
        let body = json!({ "attributes": object(attributes), "cost": cost });
        Ok(self.ask(self.base(region)?, &body))
    }

    /// As [`Api::check`], without consuming.
    pub fn peek(&self, region: &str, attributes: Attributes<'_>) -> Result<Answer, Error> {
        let body = json!({ "attributes": object(attributes), "peek": true });
        Ok(self.ask(self.base(region)?, &body))
    }

    /// `POST /v1/check` to one node.
    pub fn ask(&self, base: &str, body: &Value) -> Answer {
        match self.post(
            &format!("{base}/v1/check"),
            "application/json",
            body.to_string().as_bytes(),
        ) {
            Ok(reply) => Answer::from_reply(reply),
            Err(error) => Answer::from_error(&error),
        }
    }

    pub fn post(&self, url: &str, content_type: &str, body: &[u8]) -> Result<Reply, ureq::Error> {
        self.agent
            .post(url)
            .header("content-type", content_type)
            .send(body)
            .and_then(reply)
    }

    pub fn get(&self, url: &str) -> Result<Reply, ureq::Error> {
        self.agent.get(url).call().and_then(reply)
    }

    /// The status of `GET path` at some node of the region; `None`: no answer.
    pub fn get_status(&self, region: &str, path: &str) -> Result<Option<u16>, Error> {
        let url = format!("{}{path}", self.base(region)?);
        Ok(self.get(&url).ok().map(|reply| reply.status))
    }

    pub fn usage(&self, region: &str, policy: &str, key: Attributes<'_>) -> Result<Usage, Error> {
        self.read(region, &format!("/v1/usage?{}", key_query(policy, key)))
    }

    pub fn shares(&self, region: &str, policy: &str, key: Attributes<'_>) -> Result<Shares, Error> {
        self.read(region, &format!("/v1/shares?{}", key_query(policy, key)))
    }

    pub fn status(&self, region: &str) -> Result<Status, Error> {
        self.read(region, "/v1/status")
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, region: &str, path: &str) -> Result<T, Error> {
        let url = format!("{}{path}", self.base(region)?);
        let failed = |message: String| Error::Read {
            url: url.clone(),
            message,
        };
        let reply = self.get(&url).map_err(|error| failed(error.to_string()))?;
        if reply.status != 200 {
            return Err(failed(format!("{} {}", reply.status, reply.body)));
        }
        serde_json::from_str(&reply.body).map_err(|e| failed(format!("{e} in {}", reply.body)))
    }
}

// === impl Answer ===

impl Answer {
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    fn from_reply(reply: Reply) -> Self {
        let outcome = match reply.status {
            200 => Outcome::Allowed,
            429 => Outcome::Refused,
            503 => Outcome::Unavailable,
            status => Outcome::Rejected(status),
        };
        let said: CheckBody = serde_json::from_str(&reply.body).unwrap_or_default();
        Self {
            outcome,
            region: said.region,
            decided_at_ms: said.decided_at_ms,
            retry_after_ms: said.retry_after_ms,
            limits: said.limits,
            body: reply.body,
        }
    }

    fn from_error(error: &ureq::Error) -> Self {
        let outcome = match error {
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Outcome::NotSent
            }
            ureq::Error::ConnectionFailed => Outcome::NotSent,
            _ => Outcome::Unknown,
        };
        Self {
            outcome,
            region: None,
            decided_at_ms: None,
            retry_after_ms: None,
            limits: Vec::new(),
            body: error.to_string(),
        }
    }
}

// === impl Usage ===

impl Usage {
    /// Over all periods.
    pub fn admitted(&self) -> u64 {
        self.periods.iter().map(|period| period.admitted).sum()
    }

    /// Over all periods; regions that admitted nothing are left out.
    pub fn admitted_by_region(&self) -> BTreeMap<String, u64> {
        let mut split = BTreeMap::new();
        for (region, counts) in self.periods.iter().flat_map(|period| &period.by_region) {
            if counts.admitted > 0 {
                *split.entry(region.clone()).or_default() += counts.admitted;
            }
        }
        split
    }
}

fn reply(mut response: ureq::http::Response<ureq::Body>) -> Result<Reply, ureq::Error> {
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect();
    Ok(Reply {
        status: response.status().as_u16(),
        headers,
        body: response.body_mut().read_to_string()?,
    })
}

fn object(attributes: Attributes<'_>) -> Value {
    attributes
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn key_query(policy: &str, key: Attributes<'_>) -> String {
    let mut query = format!("policy={}", percent_encoded(policy));
    for (name, value) in key {
        query.push_str(&format!(
            "&key.{}={}",
            percent_encoded(name),
            percent_encoded(value)
        ));
    }
    query
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_query() {
        assert_eq!(
            key_query("api", &[("tenant", "a b&c/ü")]),
            "policy=api&key.tenant=a%20b%26c%2F%C3%BC"
        );
    }

    #[test]
    fn nobody_listening_is_known_not_to_have_decided() {
        let addr = crate::ports::free_addr().unwrap();
        let regions = BTreeMap::from([("r".to_owned(), vec![format!("http://{addr}")])]);
        let answer = Api::new(regions).check("r", &[("tenant", "t")], 1).unwrap();
        assert_eq!(answer.outcome, Outcome::NotSent, "{}", answer.body);
    }

    #[test]
    fn a_connection_that_breaks_leaves_the_outcome_unknown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || drop(listener.accept()));
        let api = Api::new(BTreeMap::from([("r".to_owned(), vec![base])]));
        let answer = api.check("r", &[("tenant", "t")], 1).unwrap();
        assert_eq!(answer.outcome, Outcome::Unknown, "{}", answer.body);
    }
}
