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
    let notes = notes(status);
    let notes = match notes.is_empty() {
        true => String::new(),
        false => format!("\n{}\n", notes.join("\n")),
    };
    format!("{}{notes}\n{}", regions.render(), policies.render())
}

/// What isn't as it is when nothing changes.
fn notes(status: &Value) -> Vec<String> {
    let rollout = &status["rollout"];
    let mut notes = Vec::new();
    for (peer, seen) in members(&status["peers"]) {
        let revision = &seen["revision"];
        if seen["revision_conflicts"] == true {
            notes.push(format!(
                "{peer} has other policies under revision {}; nothing is traded with it",
                cell(&rollout["revision"])
            ));
        } else if !revision.is_null() && *revision != rollout["revision"] {
            notes.push(format!("{peer} goes by revision {}", cell(revision)));
        }
    }
    let names = |list: &Value| {
        let names: Vec<String> = elements(list).map(cell).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(names) = names(&rollout["waits_for"]) {
        notes.push(format!(
            "revision {} waits for {names}",
            cell(&rollout["revision"])
        ));
    }
    if let Some(names) = names(&rollout["retired"]) {
        notes.push(format!("retired: {names}"));
    }
    notes
}
