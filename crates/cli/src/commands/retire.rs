//! `apportion region retire`.

use super::print;
use crate::args::{Output, RetireArgs};
use crate::client::Client;
use crate::exit::{Exit, Failure};
use serde_json::json;

pub(crate) fn run(args: RetireArgs) -> Result<Exit, Failure> {
    let client = Client::new(&args.client)?;
    let body = json!({ "region": args.region, "force": args.force });
    let answer = client.post("/v1/regions/retire", &body)?;
    match args.client.output {
        Output::Json => print(&answer.text)?,
        Output::Table => print(&format!("{}: retired", args.region))?,
    }
    Ok(Exit::Ok)
}
