//! `apportion region close` and `open`.

use super::print;
use crate::args::{ClientArgs, Output, RegionOpenArgs};
use crate::client::{Answer, Client};
use crate::exit::{Exit, Failure};
use crate::table::cell;
use serde_json::{Value, json};

pub(crate) fn close(args: ClientArgs) -> Result<Exit, Failure> {
    run(&args, "/v1/region/close", &json!({}))
}

pub(crate) fn open(args: RegionOpenArgs) -> Result<Exit, Failure> {
    let body = json!({ "as_lost": args.as_lost });
    run(&args.client, "/v1/region/open", &body)
}

fn run(args: &ClientArgs, path: &str, body: &Value) -> Result<Exit, Failure> {
    let answer = Client::new(args)?.post(path, body)?;
    match args.output {
        Output::Json => print(&answer.text)?,
        Output::Table => print(&render(&answer))?,
    }
    Ok(Exit::Ok)
}

fn render(answer: &Answer) -> String {
    let region = cell(&answer.json["region"]);
    if answer.json["closed"] == true {
        return format!("{region} is closed: its store can be restarted now\n");
    }
    let life = cell(&answer.json["life"]);
    match answer.json["lost"] == true {
        true => {
            format!("{region} is open, in a new life {life}: the one that was closed is over\n")
        }
        false => format!("{region} is open, in life {life}\n"),
    }
}
