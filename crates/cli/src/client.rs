//! Asks a region over HTTP.

use crate::args::ClientArgs;
use crate::exit::Failure;
use serde_json::Value;
use std::time::Duration;
use ureq::Agent;
use ureq::http::Response;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(15);
/// A listing of 1,000 subjects fits many times over.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

pub(crate) struct Client {
    agent: Agent,
    address: String,
}

/// An answer that a command can show.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// As the server sent it.
    pub(crate) text: String,
    pub(crate) json: Value,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(args: &ClientArgs) -> Result<Self, Failure> {
        let address = args.address.trim_end_matches('/');
        if address.starts_with("https://") {
            return Err(Failure::usage(format!(
                "{address}: https is not supported yet; expected http://HOST:PORT"
            )));
        }
        let address = match address.contains("://") {
            true => address.to_owned(),
            false => format!("http://{address}"),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("apportion/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            address,
        })
    }

    pub(crate) fn get(&self, path: &str, query: &[(String, String)]) -> Result<Answer, Failure> {
        let pairs = query.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let request = self
            .agent
            .get(format!("{}{path}", self.address))
            .query_pairs(pairs);
        self.answer(request.call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let request = self
            .agent
            .post(format!("{}{path}", self.address))
            .content_type("application/json");
        self.answer(request.send(body.to_string()))
    }

    fn answer(&self, answer: Result<Response<ureq::Body>, ureq::Error>) -> Result<Answer, Failure> {
        let mut response = answer.map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::usage(format!(
                "{}: {error}; expected http://HOST:PORT",
                self.address
            )),
            error => self.could_not_reach(&error),
        })?;
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_string()
            .map_err(|error| self.could_not_reach(&error))?;
        let status = response.status().as_u16();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        let answer = Answer { status, text, json };
        match status {
            200 | 429 if !answer.json.is_null() => Ok(answer),
            409 if answer.json["code"] == "NOT_CLOSED" => {
                Err(Failure::unreachable(answer.detail()))
            }
            400..=499 => Err(Failure::usage(answer.detail())),
            503 => Err(Failure::unreachable(answer.detail())),
            _ => Err(Failure::unreachable(format!(
                "{} answered {status}, but not as Apportion does",
                self.address
            ))),
        }
    }

    fn could_not_reach(&self, error: &ureq::Error) -> Failure {
        Failure::unreachable(format!("could not reach {}: {error}", self.address))
    }
}

// === impl Answer ===

impl Answer {
    /// What a problem says of itself.
    fn detail(&self) -> String {
        match self.json["detail"].as_str() {
            Some(detail) => detail.to_owned(),
            None => format!("the server answered {}", self.status),
        }
    }
}
