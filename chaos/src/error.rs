//! What can go wrong in the harness itself.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

#[derive(thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },

    #[error("no `apportion` binary at {}: build it with `cargo build -p apportion-cli`, or set APPORTION_BIN", looked.display())]
    NoBinary { looked: PathBuf },

    #[error("no free block of ports in {from}..{to}")]
    NoPorts { from: u16, to: u16 },

    #[error("{process} ended with {status}; the end of its log:\n{log}")]
    Exited {
        process: String,
        status: ExitStatus,
        log: String,
    },

    #[error("waited {limit:?} in vain for: {what}{}", tail(log))]
    TimedOut {
        what: String,
        limit: Duration,
        /// The end of a log that may say why; empty where there is none.
        log: String,
    },

    #[error("GET {url}: {message}")]
    Read { url: String, message: String },

    #[error("there is no region {0}")]
    NoRegion(String),

    #[error("{0}")]
    Scenario(String),
}

// === impl Error ===

impl Error {
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// As `Display`: a test's `expect` prints the `Debug` form, and a log's tail is of no use on one line.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn tail(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("\n{log}")
    }
}
