//! Limits that depend on the request: plans, and overrides of single subjects.

use super::super::source::{Field, Table, quote};
use super::super::{Limits, Overrides, Plans, limits};
use super::budget::{Bounds, read_limits};
use super::subject::{attribute_name, value_of};
use crate::key::MAX_SUBJECT_BYTES;
use std::collections::{BTreeMap, HashMap};

/// `None` after a complaint, `Some(None)` where they are left out.
pub(super) fn read_plans(table: &Table<'_>, bounds: &Bounds) -> Option<Option<Plans>> {
    const EXPECTED: &str = "a table: by, and limits for each plan";
    let Some(field) = table.get("plans") else {
        return Some(None);
    };
    let table = field.table(EXPECTED)?;
    let by = table
        .required("by", "the name of the attribute that holds the plan")
        .and_then(|by| attribute_name(&by));
    let entries: Vec<_> = table.fields().filter(|&(name, _)| name != "by").collect();
    if entries.is_empty() || entries.len() > limits::MAX_PLANS {
        let expected = format!("1 to {} of them", limits::MAX_PLANS);
        field.wrong(format!("{} plans", entries.len()), expected);
        return None;
    }
    let mut plans = BTreeMap::new();
    for (name, plan) in entries {
        let Some(limits) = read_plan(&plan, bounds) else {
            continue;
        };
        if let Some(name) = value_of(&plan, name)
            && plans.insert(name, limits).is_some()
        {
            plan.wrong("the same plan in composed form twice", "plans that differ");
        }
    }
    Some(Some(Plans {
        by: by?.to_owned(),
        plans,
    }))
}

fn read_plan(plan: &Field<'_>, bounds: &Bounds) -> Option<Limits> {
    let plan = plan.table("a table such as { limit = 100 }")?;
    plan.only(&["limit", "burst"]);
    read_limits(&plan, bounds)
}

pub(super) fn read_overrides(
    table: &Table<'_>,
    key: Option<&[String]>,
    bounds: &Bounds,
) -> Option<Overrides> {
    let Some(field) = table.get("override") else {
        return Some(Overrides::default());
    };
    let entries = field.items("[[policy.override]] tables")?;
    if entries.len() > limits::MAX_OVERRIDES {
        let expected = format!("at most {} overrides", limits::MAX_OVERRIDES);
        field.wrong(format!("{} overrides", entries.len()), expected);
        return None;
    }
    if key.is_some_and(<[String]>::is_empty) && !entries.is_empty() {
        field.wrong(
            "with key = [] there is one subject alone, whose limit is the policy's own",
            "to be left out",
        );
        return None;
    }
    let mut lines = HashMap::new();
    let mut overrides = Vec::new();
    for entry in &entries {
        let Some(table) = entry.table("a table with key and limit") else {
            continue;
        };
        table.only(&["key", "limit", "burst"]);
        let limits = read_limits(&table, bounds);
        let Some(subject) = read_subject(&table, key) else {
            continue;
        };
        if let Some(line) = lines.insert(subject.clone(), entry.line()) {
            let what = format!("the subject of the override on line {line} as well");
            table.get("key")?.wrong(what, "subjects that differ");
        }
        overrides.extend(limits.map(|limits| (subject, limits)));
    }
    Some(overrides.into_iter().collect())
}

/// The values of the key attributes, in the order of the policy's key.
fn read_subject(entry: &Table<'_>, key: Option<&[String]>) -> Option<Vec<String>> {
    const EXPECTED: &str =
        "a value for each attribute of the policy's key, such as { tenant = \"acme\" }";
    let field = entry.required("key", EXPECTED)?;
    let table = field.table(EXPECTED)?;
    let key = key?;
    for (name, value) in table.fields() {
        if !key.iter().any(|attribute| attribute == name) {
            value.wrong("not an attribute of the policy's key", EXPECTED);
        }
    }
    let values = key.iter().map(|attribute| {
        let field = table.required(attribute, EXPECTED)?;
        value_of(&field, field.text(EXPECTED)?)
    });
    // All are looked at, so that every mistake is told.
    let values: Vec<_> = values.collect();
    let values: Vec<String> = values.into_iter().collect::<Option<_>>()?;
    let bytes: usize = values.iter().map(String::len).sum();
    if bytes > MAX_SUBJECT_BYTES {
        let start = values.first().map(|value| quote(value)).unwrap_or_default();
        field.wrong(
            format!("the subject that begins with {start} has {bytes} bytes"),
            format!("at most {MAX_SUBJECT_BYTES}"),
        );
        return None;
    }
    Some(values)
}
