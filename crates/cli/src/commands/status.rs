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
    let mut regions = Table::new([
        "REGION",
        "REACHABLE",
        "READY",
        "STORE",
        "SYNC LAG",
        "REVISION",
    ]);
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
        cell(&status["rollout"]["revision"]),
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
            revision(seen),
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
    let waits: Vec<String> = elements(&status["rollout"]["waits_for"])
        .map(cell)
        .collect();
    let waits = match waits.is_empty() {
        true => String::new(),
        false => format!("\nThe roll-out waits for {}.\n", waits.join(", ")),
    };
    format!("{}{waits}\n{}", regions.render(), policies.render())
}

/// The peer's revision, and what is wrong with it.
fn revision(seen: &Value) -> String {
    if seen["revision"].is_null() {
        return NONE.into();
    }
    let note = match (
        seen["revision_conflicts"].as_bool(),
        seen["policies_differ"].as_bool(),
    ) {
        (Some(true), _) => " (other policies under this number)",
        (_, Some(true)) => " (no trade)",
        _ => "",
    };
    format!("{}{note}", cell(&seen["revision"]))
}
