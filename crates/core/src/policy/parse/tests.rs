//! What a policies file may say, what is said of one that says something else, and that every message has its line.

mod budget;
mod classes;
mod docs;
mod file;
mod promise;
mod read;
mod subject;
mod tiers;

use super::*;
use crate::policy::{Algorithm, Limits, Mode, OnStoreFailure, Pattern, Standing, Tolerance};
use std::collections::BTreeMap;

fn parse(text: &str) -> Result<PolicySet, PolicyErrors> {
    PolicySet::parse(text, "policies.toml")
}

fn region(name: &str) -> Region {
    Region::new(name)
}

/// A policy that is fine but for the lines `added`, which begin at line 8.
fn with(added: &str) -> String {
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\nname = \"api\"\nkey = [\"tenant\"]\n\
         algorithm = \"token-bucket\"\nlimit = 1000\nper = \"1m\"\n{added}\n"
    )
}

/// The one policy of such a file.
fn read_with(added: &str) -> Policy {
    only(&with(added))
}

#[track_caller]
fn only(text: &str) -> Policy {
    let set = parse(text).unwrap_or_else(|errors| panic!("{errors}"));
    Policy::clone(&set.policies[0])
}

/// A policy of an algorithm whose other lines, `added`, begin at line 6.
fn of_kind(kind: &str, added: &str) -> String {
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\nname = \"api\"\nkey = [\"tenant\"]\n\
         algorithm = {kind:?}\n{added}\n"
    )
}

const fn limits(limit: u64, burst: u64) -> Limits {
    Limits { limit, burst }
}

/// As `with`, but for one field in another form.
fn where_(field: &str, value: &str) -> String {
    let fields = [
        ("name", "\"api\""),
        ("key", "[\"tenant\"]"),
        ("algorithm", "\"fixed-window\""),
        ("limit", "100"),
        ("per", "\"1m\""),
    ];
    let lines = fields
        .map(|(name, usual)| format!("{name} = {}\n", if name == field { value } else { usual }));
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\n{}",
        lines.concat()
    )
}

#[track_caller]
fn assert_refused(text: &str, expected: &[&str]) {
    let errors = parse(text).expect_err(text);
    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(lines, expected, "{text}");
    assert_eq!(errors.to_string(), expected.join("\n"));
}

#[track_caller]
fn assert_added_is_refused(added: &str, expected: &[&str]) {
    assert_api_is_refused(&with(added), expected);
}

/// Messages without file and policy: their line, and what is said.
#[track_caller]
fn assert_api_is_refused(text: &str, expected: &[&str]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|e| match e.split_once(' ') {
            Some((line, message)) => format!("policies.toml:{line}: policy \"api\": {message}"),
            None => (*e).to_owned(),
        })
        .collect();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_refused(text, &expected);
}
