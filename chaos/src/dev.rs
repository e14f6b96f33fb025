//! `apportion dev`: a whole deployment in one process, on ports that are always the same.
//!
//! One at a time on a machine, then: a locked file in the temporary folder keeps test processes apart.

use crate::api::Api;
use crate::process::Process;
use crate::time::wait_for;
use crate::{Error, cli};
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

const REGIONS: [&str; 3] = crate::cluster::REGIONS;
const TURN_LIMIT: Duration = Duration::from_secs(300);
const PORTS_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Dev {
    process: Process,
    api: Api,
    /// Locked while it is open; after the process, so that the next one finds the ports free.
    _turn: File,
}

// === impl Dev ===

impl Dev {
    /// With its log in `dir`, and more arguments such as `["--redis", "URL,URL,URL"]`; waits for the word `ready`.
    pub fn start(dir: &Path, policies: &Path, extra: &[&str]) -> Result<Self, Error> {
        let turn = take_turn()?;
        let mut args = vec!["dev".as_ref(), "--policies".as_ref(), policies.as_os_str()];
        args.extend(extra.iter().map(|arg| std::ffi::OsStr::new(*arg)));
        let mut process = cli::start("apportion dev", &args, dir.join("dev.log"))?;
        let waited = wait_for(READY_LIMIT, "`apportion dev` to say ready", || {
            if let Err(error) = process.check_alive() {
                return Some(Err(error));
            }
            let ready = process.log().lines().any(|line| line.trim() == "ready");
            ready.then_some(Ok(()))
        });
        waited.map_err(|error| match error {
            Error::TimedOut { what, limit, .. } => Error::TimedOut {
                what,
                limit,
                log: process.log_tail(),
            },
            error => error,
        })??;
        let addresses = REGIONS
            .iter()
            .zip(7201..)
            .map(|(region, port)| {
                (
                    (*region).to_owned(),
                    vec![format!("http://127.0.0.1:{port}")],
                )
            })
            .collect();
        Ok(Self {
            process,
            api: Api::new(addresses),
            _turn: turn,
        })
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn take_turn() -> Result<File, Error> {
    let path = std::env::temp_dir().join("apportion-dev-ports.lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::io(format!("open {}", path.display())))?;
    wait_for(
        TURN_LIMIT,
        "the turn of another test that runs `apportion dev`",
        || file.try_lock().ok(),
    )?;
    let mut taken = Vec::new();
    let free = wait_for(PORTS_LIMIT, "the ports of `apportion dev`", || {
        taken = ports().filter(|port| !is_free(*port)).collect();
        taken.is_empty().then_some(())
    });
    free.map_err(|_| {
        Error::Scenario(format!(
            "`apportion dev` has fixed ports, and {taken:?} of them are in use: is another `apportion dev` running? Stop it, and run the tests again"
        ))
    })?;
    Ok(file)
}

fn ports() -> impl Iterator<Item = u16> {
    [7101, 7201, 7301]
        .into_iter()
        .flat_map(|first| (first..).take(REGIONS.len()))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn dev_has_nine_ports() {
        let ports: Vec<u16> = super::ports().collect();
        assert_eq!(
            ports,
            [7101, 7102, 7103, 7201, 7202, 7203, 7301, 7302, 7303]
        );
    }
}
