//! One file for each command that asks, reads or checks.

pub(crate) mod check;
pub(crate) mod policy;
pub(crate) mod region;
pub(crate) mod retire;
pub(crate) mod shares;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod usage;

use crate::args::{Pair, attributes};
use crate::exit::Failure;
use std::io::{self, ErrorKind, Write};

/// Prints to stdout; whoever closes the pipe early has seen enough.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| match text.ends_with('\n') {
            true => Ok(()),
            false => stdout.write_all(b"\n"),
        })
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::usage(format!(
            "could not write to stdout: {error}"
        ))),
        _ => Ok(()),
    }
}

/// The query that names one subject, or with no pairs, all.
fn key_query(policy: &str, key: Vec<Pair>) -> Result<Vec<(String, String)>, Failure> {
    if policy.contains('=') {
        return Err(Failure::usage(format!(
            "{policy}: expected the name of a policy before the first KEY=VALUE"
        )));
    }
    let mut query = vec![("policy".to_owned(), policy.to_owned())];
    for (name, value) in attributes(key).map_err(Failure::usage)? {
        query.push((format!("key.{name}"), value));
    }
    Ok(query)
}
