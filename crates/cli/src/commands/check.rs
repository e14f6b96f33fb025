//! `apportion check`.

use super::print;
use crate::args::{CheckArgs, Output, attributes};
use crate::client::{Answer, Client};
use crate::exit::{Exit, Failure};
use crate::table::{Table, cell, duration, elements};
use serde_json::json;

pub(crate) fn run(args: CheckArgs) -> Result<Exit, Failure> {
    let mut body = json!({
        "attributes": attributes(args.attributes).map_err(Failure::usage)?,
        "cost": args.cost,
        "peek": args.peek,
    });
    for (name, value) in [("priority", args.priority), ("request_id", args.request_id)] {
        if let Some(value) = value {
            body[name] = value.into();
        }
    }
    let answer = Client::new(&args.client)?.post("/v1/check", &body)?;
    match args.client.output {
        Output::Json => print(&answer.text)?,
        Output::Table => print(&render(&answer))?,
    }
    Ok(match answer.status {
        429 => Exit::Refused,
        _ => Exit::Ok,
    })
}

fn render(answer: &Answer) -> String {
    let json = &answer.json;
    let region = cell(&json["region"]);
    let mut text = match answer.status {
        429 => format!(
            "refused by {region}; retry after {}\n",
            duration(&json["retry_after_ms"])
        ),
        _ => format!("allowed by {region}\n"),
    };
    if let Some(reservation) = json["reservation"].as_str() {
        text.push_str(&format!("reservation {reservation}\n"));
    }
    let mut table = Table::new([
        "POLICY",
        "OUTCOME",
        "LIMIT",
        "REMAINING",
        "RESET",
        "RETRY AFTER",
        "DECIDED BY",
    ]);
    let mut matched = false;
    for limit in elements(&json["limits"]) {
        matched = true;
        table.row([
            cell(&limit["policy"]),
            cell(&limit["outcome"]),
            cell(&limit["limit"]),
            cell(&limit["remaining"]),
            duration(&limit["reset_ms"]),
            duration(&limit["retry_after_ms"]),
            cell(&limit["decided_by"]),
        ]);
    }
    match matched {
        true => text.push_str(&table.render()),
        false => text.push_str("no policy matches\n"),
    }
    text
}
