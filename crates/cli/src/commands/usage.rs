//! `apportion usage list`.

use super::{key_query, print};
use crate::args::{Output, UsageListArgs};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::table::{Table, cell, elements, pairs};
use serde_json::Value;

pub(crate) fn list(args: UsageListArgs) -> Result<Exit, Failure> {
    let client = Client::new(&args.client)?;
    let queries = match &args.policy {
        Some(policy) => vec![key_query(policy, args.key)?],
        None => counted(&client)?
            .iter()
            .map(|policy| key_query(policy, Vec::new()))
            .collect::<Result<_, _>>()?,
    };
    let mut answers = Vec::with_capacity(queries.len());
    for mut query in queries {
        for (name, time) in [("from", &args.from), ("to", &args.to)] {
            if let Some(time) = time {
                query.push((name.to_owned(), time.clone()));
            }
        }
        let answer = client.get("/v1/usage", &query)?;
        match args.client.output {
            // One answer a line.
            Output::Json => print(&answer.text)?,
            Output::Table => answers.push(answer.json),
        }
    }
    if args.client.output == Output::Table {
        print(&render(&answers))?;
    }
    if answers.iter().any(|answer| answer["truncated"] == true) {
        eprintln!("apportion: there are more subjects than one answer holds; ask for one");
    }
    Ok(Exit::Ok)
}

/// The policies that count usage.
fn counted(client: &Client) -> Result<Vec<String>, Failure> {
    let policies = client.get("/v1/policies", &[])?.json;
    Ok(elements(&policies["policies"])
        .filter(|policy| !policy["usage_ms"].is_null())
        .map(|policy| cell(&policy["name"]))
        .collect())
}

fn render(answers: &[Value]) -> String {
    let mut table = Table::new([
        "POLICY",
        "KEY",
        "START",
        "END",
        "ADMITTED",
        "REFUNDED",
        "REFUSED",
        "COMPLETE",
        "ADMITTED BY REGION",
    ]);
    for answer in answers {
        // One subject that was asked for, or a list of all.
        let one = [answer];
        let listed: Vec<&Value> = elements(&answer["keys"]).collect();
        let subjects = match answer["keys"].is_array() {
            true => listed.as_slice(),
            false => one.as_slice(),
        };
        for subject in subjects {
            for period in elements(&subject["periods"]) {
                table.row([
                    cell(&answer["policy"]),
                    pairs(&subject["key"], cell),
                    cell(&period["start"]),
                    cell(&period["end"]),
                    cell(&period["admitted"]),
                    cell(&period["refunded"]),
                    cell(&period["refused"]),
                    cell(&period["complete"]),
                    pairs(&period["by_region"], |region| cell(&region["admitted"])),
                ]);
            }
        }
    }
    table.render()
}
