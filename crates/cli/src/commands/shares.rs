//! `apportion shares`.

use super::{key_query, print};
use crate::args::{Output, SharesArgs};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::table::{Table, cell, members, pairs};
use serde_json::Value;

pub(crate) fn run(args: SharesArgs) -> Result<Exit, Failure> {
    let query = key_query(&args.policy, args.key)?;
    let answer = Client::new(&args.client)?.get("/v1/shares", &query)?;
    match args.client.output {
        Output::Json => print(&answer.text)?,
        Output::Table => print(&render(&answer.json))?,
    }
    Ok(Exit::Ok)
}

fn render(shares: &Value) -> String {
    let mut table = Table::new([
        "REGION", "BASE", "LENT", "BORROWED", "GIVEN", "RECEIVED", "IN FORCE", "USED",
    ]);
    for (region, share) in members(&shares["regions"]) {
        table.row([
            region.clone(),
            cell(&share["base"]),
            cell(&share["lent"]),
            cell(&share["borrowed"]),
            cell(&share["given"]),
            cell(&share["received"]),
            cell(&share["in_force"]),
            cell(&share["used"]),
        ]);
    }
    format!(
        "{} {}  limit {}\n{}",
        cell(&shares["policy"]),
        pairs(&shares["key"], cell),
        cell(&shares["limit"]),
        table.render()
    )
}
