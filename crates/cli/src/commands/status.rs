//! `apportion status`.

use super::print;
use crate::args::{ClientArgs, Output};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::table::{NONE, Table, cell, duration, elements, members};
use serde_json::Value;

pub(crate) fn run(args: ClientArgs) -> Result<Exit, Failure> {
    let answer = Client::new(&args)?.get("/v1/status", &[])?;
    match args.output {
        Output::Json => print(&answer.text)?,
        Output::Table => print(&render(&answer.json))?,
    }
    Ok(Exit::Ok)
}

/// The region that was asked comes first, then the others as it sees them.
fn render(status: &Value) -> String {
    let mut regions = Table::new(["REGION", "REACHABLE", "READY", "STORE", "SYNC LAG"]);
    let store = match status["store"]["ok"].as_bool() {
        Some(true) => "ok",
        _ => "out of reach",
    };
    regions.row([
        cell(&status["region"]),
        "yes".into(),
        cell(&status["ready"]),
        store.into(),
        NONE.into(),
    ]);
    for (peer, seen) in members(&status["peers"]) {
        let lag = match seen["lag_ms"].is_null() {
            true => "never heard".to_owned(),
            false => duration(&seen["lag_ms"]),
        };
        regions.row([
            peer.clone(),
            cell(&seen["reachable"]),
            NONE.into(),
            NONE.into(),
            lag,
        ]);
    }
    let mut policies = Table::new(["POLICY", "VERSION", "DIGEST"]);
    for policy in elements(&status["policies"]) {
        policies.row([
            cell(&policy["name"]),
            cell(&policy["version"]),
            cell(&policy["digest"]),
        ]);
    }
    format!("{}\n{}", regions.render(), policies.render())
}
