//! From the text of `policies.toml` to checked policies.
//!
//! Every field of the format is known here, also those that only a later version acts on (see `later`): such a value
//! is refused, never ignored.

mod budget;
mod classes;
mod promise;
mod subject;
#[cfg(test)]
mod tests;
mod tiers;

use self::budget::{
    Bounds, KINDS, read_algorithm, read_limits, warn_of_few_units, warn_of_tolerance,
};
use self::classes::{read_classes, read_pool};
use self::promise::{read_mode, read_on_store_failure, read_tolerance, read_weights};
use self::subject::{read_key, read_match, read_new_subjects, read_sensitive};
use self::tiers::{read_overrides, read_plans};
use super::source::{self, Field, Problem, Table, any_of, quote};
use super::{Policy, PolicyErrors, PolicySet, later, limits};
use crate::ids::Region;
use crate::key::SubjectHash;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const FILE_KEYS: &[&str] = &["revision", "regions", "policy"];
const POLICY_KEYS: &[&str] = &[
    "name",
    "version",
    "match",
    "key",
    "sensitive",
    "new_subjects_per_second",
    "algorithm",
    "limit",
    "per",
    "burst",
    "buckets",
    "slot_ttl",
    "plans",
    "override",
    "priority",
    "pool",
    "mode",
    "tolerance",
    "weights",
    "on_store_failure",
    "usage",
    "shadow",
];

impl PolicySet {
    /// Reads a policies file. `file` is the name by which errors call it.
    pub fn parse(text: &str, file: &str) -> Result<Self, PolicyErrors> {
        if text.len() > limits::MAX_FILE_BYTES {
            let what = format!("the file has {} bytes", text.len());
            let expected = format!("at most {}", limits::MAX_FILE_BYTES);
            return Err(Problem::of_file(file, what, Some(&expected)).into());
        }
        source::read(text, file, read_set)
    }
}

fn read_set(file: &Table<'_>) -> Option<PolicySet> {
    file.only(FILE_KEYS);
    let revision = match file.get("revision") {
        Some(field) => field.integer(limits::REVISION),
        None => Some(1),
    };
    let regions = read_regions(file);
    let mut warnings = Vec::new();
    let mut policies = Vec::new();
    match file.get("policy") {
        Some(field) => {
            let tables = field.items("[[policy]] tables")?;
            if tables.len() > limits::MAX_POLICIES {
                let expected = format!("at most {}", limits::MAX_POLICIES);
                field.wrong(format!("{} policies", tables.len()), expected);
                return None;
            }
            let mut lines = HashMap::new();
            for (i, table) in tables.iter().enumerate() {
                if let Some(table) = table.table("a [[policy]] table") {
                    let table = called_by_name(&table, i);
                    refuse_a_second(&mut lines, &table);
                    policies.push(read_policy(&table, regions.as_deref(), &mut warnings));
                }
            }
        }
        None => warnings.push("the file has no [[policy]]: every request is allowed".to_owned()),
    }
    let policies: Option<Vec<_>> = policies.into_iter().map(|p| p.map(Arc::new)).collect();
    Some(PolicySet {
        revision: revision?,
        regions: regions?,
        policies: policies?,
        warnings,
        subject_hash: SubjectHash::default(),
    })
}

fn refuse_a_second<'r>(lines: &mut HashMap<&'r str, usize>, table: &Table<'r>) {
    if let Some(field) = table.get("name")
        && let Some(name) = field.peek_text()
        && let Some(line) = lines.insert(name, field.line())
    {
        let what = format!(
            "{} is the name of the policy on line {line} as well",
            quote(name)
        );
        field.wrong(what, "names that differ");
    }
}

fn read_regions(file: &Table<'_>) -> Option<Vec<Region>> {
    const EXPECTED: &str =
        "every region that shares the budgets, such as [\"us-east\", \"eu-west\"]";
    let field = file.required("regions", EXPECTED)?;
    let items = field.items(EXPECTED)?;
    if items.is_empty() || items.len() > limits::MAX_REGIONS {
        let expected = format!("1 to {} of them", limits::MAX_REGIONS);
        field.wrong(format!("{} regions", items.len()), expected);
        return None;
    }
    let names: Vec<_> = items.iter().map(region_name).collect();
    let mut regions = BTreeSet::new();
    for (item, name) in items.iter().zip(&names) {
        if let Some(name) = name
            && !regions.insert(name.clone())
        {
            item.wrong(
                format!("{:?} is listed twice", name.as_str()),
                "each region once",
            );
        }
    }
    names
        .iter()
        .all(Option::is_some)
        .then(|| regions.into_iter().collect())
}

/// A region's name, checked.
pub fn region_name(field: &Field<'_>) -> Option<Region> {
    const EXPECTED: &str = "a region's name: 1 to 32 of a-z, 0-9 and -";
    let name = field.text(EXPECTED)?;
    if !limits::is_region_name(name) {
        field.wrong(format!("{} is no name for a region", quote(name)), EXPECTED);
        return None;
    }
    Some(Region::new(name))
}

fn called_by_name<'r>(table: &Table<'r>, index: usize) -> Table<'r> {
    let name = table.get("name").and_then(|field| field.peek_text());
    table.called(&match name {
        Some(name) => format!("policy {}", quote(name)),
        None => format!("policy #{}", index + 1),
    })
}

fn read_policy(
    table: &Table<'_>,
    regions: Option<&[Region]>,
    warnings: &mut Vec<String>,
) -> Option<Policy> {
    table.only_or(POLICY_KEYS, later::KEYS);

    let name = read_name(table);
    let version = match table.get("version") {
        Some(field) => field.integer(limits::VERSION),
        None => Some(1),
    };
    let attributes = read_match(table);
    let key = read_key(table);
    let sensitive = read_sensitive(table, key.as_deref());
    let new_subjects_per_s = read_new_subjects(table, key.as_deref());
    let kinds = any_of(KINDS.map(|(name, _)| name));
    let kind = table
        .required("algorithm", &kinds)
        .and_then(|field| field.choice(&KINDS, &kinds));
    let algorithm = read_algorithm(table, kind);
    let bounds = Bounds::of(kind, algorithm.as_ref());
    let limits = read_limits(table, &bounds);
    let plans = read_plans(table, &bounds);
    let overrides = read_overrides(table, key.as_deref(), &bounds);
    let classes = read_classes(table);
    let pool = read_pool(table, kind, key.as_deref());
    let mode = read_mode(table, kind, regions);
    let tolerance = read_tolerance(table, kind);
    let on_store_failure = read_on_store_failure(table, tolerance);
    let weights = read_weights(table, kind, regions);
    let usage_ms = match table.get("usage") {
        Some(field) => field.duration_ms(limits::USAGE_MS, "1h").map(Some),
        None => Some(None),
    };
    let shadow = match table.get("shadow") {
        Some(field) => field.boolean(),
        None => Some(false),
    };

    let mut policy = Policy {
        name: name?,
        version: u32::try_from(version?).expect("the range of versions is that of u32"),
        attributes: attributes?,
        key: key?,
        algorithm: algorithm?,
        limits: limits?,
        plans: plans?,
        overrides: overrides?,
        fill_ms: 0,
        classes: classes?,
        pool: pool?,
        mode: mode?,
        tolerance: tolerance?,
        on_store_failure: on_store_failure?,
        weights: weights?,
        usage_ms: usage_ms?,
        sensitive: sensitive?,
        new_subjects_per_s: new_subjects_per_s?,
        shadow: shadow?,
    };
    policy.fill_ms = policy.longest_fill_ms();
    warnings.extend(warn_of_few_units(table, &policy));
    warnings.extend(warn_of_tolerance(table, &policy));
    Some(policy)
}

fn read_name(table: &Table<'_>) -> Option<String> {
    const EXPECTED: &str = "1 to 64 of a-z, 0-9, _ and -";
    let field = table.required("name", EXPECTED)?;
    let name = field.text(EXPECTED)?;
    if !limits::is_policy_name(name) {
        field.wrong(format!("{} is no name for a policy", quote(name)), EXPECTED);
        return None;
    }
    Some(name.to_owned())
}
