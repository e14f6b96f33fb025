//! One `apportion serve` process.

use crate::api::Api;
use crate::cli;
use crate::process::{Process, read_log};
use crate::time::wait_for;
use crate::{Error, ports};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// A debug build on a busy machine takes its time.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// What goes into the region's file.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    pub region: String,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub sync: SocketAddr,
    pub store_url: String,
    /// Far above the product's default: what a busy test machine does to a store call is not what is tested.
    pub store_timeout: String,
    /// More lines of `[store]`.
    pub store_more: String,
    pub interval: String,
    pub loan_term: String,
    /// Where each peer's sync port is reached.
    pub peers: BTreeMap<String, String>,
    /// As written in the file.
    pub policies: String,
}

#[derive(Debug)]
pub struct Node {
    spec: NodeSpec,
    config: PathBuf,
    log: PathBuf,
    process: Option<Process>,
}

// === impl NodeSpec ===

impl NodeSpec {
    /// With free ports, no peers, and `policies.toml` beside its file.
    pub fn new(region: &str, store_url: &str) -> Result<Self, Error> {
        Ok(Self {
            region: region.to_owned(),
            grpc: ports::free_addr()?,
            http: ports::free_addr()?,
            sync: ports::free_addr()?,
            store_url: store_url.to_owned(),
            store_timeout: "1s".to_owned(),
            store_more: String::new(),
            interval: "2s".to_owned(),
            loan_term: "10s".to_owned(),
            peers: BTreeMap::new(),
            policies: "policies.toml".to_owned(),
        })
    }

    pub fn to_toml(&self) -> String {
        let mut text = format!(
            r#"region = "{region}"
policies = "{policies}"

[listen]
grpc = "{grpc}"
http = "{http}"
sync = "{sync}"

[store]
url = "{store_url}"
timeout = "{store_timeout}"
{store_more}
[sync]
interval = "{interval}"
loan_term = "{loan_term}"
"#,
            region = self.region,
            policies = self.policies,
            grpc = self.grpc,
            http = self.http,
            sync = self.sync,
            store_url = self.store_url,
            store_timeout = self.store_timeout,
            store_more = self.store_more,
            interval = self.interval,
            loan_term = self.loan_term,
        );
        for (region, sync) in &self.peers {
            text.push_str(&format!(
                "\n[[peers]]\nregion = \"{region}\"\nsync = \"{sync}\"\n"
            ));
        }
        text
    }

    pub fn http_url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub fn grpc_url(&self) -> String {
        format!("http://{}", self.grpc)
    }
}

// === impl Node ===

impl Node {
    /// Writes `NAME.toml` into `dir`, and starts nothing yet.
    pub fn new(spec: NodeSpec, dir: &Path, name: &str) -> Result<Self, Error> {
        let config = dir.join(format!("{name}.toml"));
        std::fs::write(&config, spec.to_toml())
            .map_err(Error::io(format!("write {}", config.display())))?;
        Ok(Self {
            spec,
            config,
            log: dir.join(format!("{name}.log")),
            process: None,
        })
    }

    /// Writes its file anew; it is read at the next start.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut NodeSpec)) -> Result<(), Error> {
        change(&mut self.spec);
        std::fs::write(&self.config, self.spec.to_toml())
            .map_err(Error::io(format!("write {}", self.config.display())))
    }

    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Starts it on its ports, the same ones each time; doesn't wait.
    pub fn start(&mut self) -> Result<(), Error> {
        self.kill();
        let name = format!("apportion serve ({})", self.spec.region);
        let args = [
            "serve".as_ref(),
            "--config".as_ref(),
            self.config.as_os_str(),
        ];
        self.process = Some(cli::start(&name, &args, &self.log)?);
        Ok(())
    }

    pub fn wait_ready(&mut self) -> Result<(), Error> {
        self.wait_status("/readyz", 200)
    }

    /// Until `GET path` answers with `status`; an error, with the end of the log, once the process has ended.
    pub fn wait_status(&mut self, path: &str, status: u16) -> Result<(), Error> {
        let url = format!("{}{path}", self.spec.http_url());
        let api = self.api();
        let what = format!("{} to answer {path} with {status}", self.spec.region);
        let waited = wait_for(READY_LIMIT, &what, || {
            if let Err(error) = self.check_alive() {
                return Some(Err(error));
            }
            let reply = api.get(&url).ok()?;
            (reply.status == status).then_some(Ok(()))
        });
        waited.map_err(|error| self.with_log(error))?
    }

    fn with_log(&self, error: Error) -> Error {
        match (error, &self.process) {
            (Error::TimedOut { what, limit, .. }, Some(process)) => Error::TimedOut {
                what,
                limit,
                log: process.log_tail(),
            },
            (error, _) => error,
        }
    }

    /// An error with the end of the log if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<(), Error> {
        self.process.as_mut().map_or(Ok(()), Process::check_alive)
    }

    pub fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    pub fn is_running(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.exit_status().is_none())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGTERM, and waits for its end.
    pub fn terminate(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Error> {
        let status = self
            .process
            .as_mut()
            .map(|process| process.terminate(limit))
            .transpose()?;
        self.process = None;
        Ok(status)
    }

    /// Everything it has said, over all its starts.
    pub fn log(&self) -> String {
        read_log(&self.log)
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// This node alone.
    pub fn api(&self) -> Api {
        let urls = vec![self.spec.http_url()];
        Api::new(BTreeMap::from([(self.spec.region.clone(), urls)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_table_of_its_own() {
        let mut spec = NodeSpec::new("us-east", "memory:").unwrap();
        spec.peers = BTreeMap::from([("eu-west".into(), "http://127.0.0.1:1".into())]);
        let text = spec.to_toml();
        assert!(text.starts_with("region = \"us-east\"\n"), "{text}");
        assert!(
            text.ends_with("\n[[peers]]\nregion = \"eu-west\"\nsync = \"http://127.0.0.1:1\"\n"),
            "{text}"
        );
    }
}
