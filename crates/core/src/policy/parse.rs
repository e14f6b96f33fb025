//! From the text of `policies.toml` to checked policies.
//!
//! Every field of the format is known here, also those that only a later version acts on (see `later`): such a value
//! is refused, never ignored.

mod budget;
mod promise;
#[cfg(test)]
mod tests;

use self::budget::{KINDS, SUPPORTED_KINDS, read_algorithm, warn_of_few_units};
use self::promise::{read_mode, read_on_store_failure, read_tolerance, read_weights};
use super::source::{self, Field, Problem, Table, any_of, quote};
use super::{Overrides, Pattern, Policy, PolicyErrors, PolicySet, later, limits};
use crate::ids::Region;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const FILE_KEYS: &[&str] = &["revision", "regions", "policy"];
const POLICY_KEYS: &[&str] = &[
    "name",
    "version",
    "match",
    "key",
    "algorithm",
    "limit",
    "per",
    "burst",
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
    let kind = table
        .required("algorithm", &any_of(SUPPORTED_KINDS))
        .and_then(|field| field.choice(&KINDS, &any_of(SUPPORTED_KINDS)));
    let algorithm = read_algorithm(table, kind);
    let mode = read_mode(table, kind, regions);
    let tolerance = read_tolerance(table);
    let on_store_failure = read_on_store_failure(table, tolerance);
    let weights = read_weights(table, regions);
    let usage_ms = match table.get("usage") {
        Some(field) => field.duration_ms(limits::USAGE_MS, "1h").map(Some),
        None => Some(None),
    };
    let shadow = match table.get("shadow") {
        Some(field) => field.boolean(),
        None => Some(false),
    };
    later::refuse(table, key.as_deref().unwrap_or_default());

    let (algorithm, limits) = algorithm?;
    let mut policy = Policy {
        name: name?,
        version: u32::try_from(version?).expect("the range of versions is that of u32"),
        attributes: attributes?,
        key: key?,
        algorithm,
        limits,
        plans: None,
        overrides: Overrides::new(),
        fill_ms: 0,
        classes: Vec::new(),
        pool: None,
        mode: mode?,
        tolerance: tolerance?,
        on_store_failure: on_store_failure?,
        weights: weights?,
        usage_ms: usage_ms?,
        sensitive: BTreeSet::new(),
        new_subjects_per_s: None,
        shadow: shadow?,
    };
    policy.fill_ms = policy.longest_fill_ms();
    warnings.extend(warn_of_few_units(table, &policy));
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

// === what a request must be ===

const ATTRIBUTE: &str = "a name of 1 to 64 printable ASCII characters without spaces or =";

fn read_match(table: &Table<'_>) -> Option<BTreeMap<String, Pattern>> {
    const EXPECTED: &str = "a table of attributes and patterns, such as { route = \"/v1/*\" }";
    let Some(field) = table.get("match") else {
        return Some(BTreeMap::new());
    };
    let entries = field.table(EXPECTED)?;
    if entries.len() > limits::MAX_MATCH_ATTRIBUTES {
        let expected = format!("at most {}", limits::MAX_MATCH_ATTRIBUTES);
        field.wrong(format!("{} attributes", entries.len()), expected);
    }
    let mut attributes = BTreeMap::new();
    for (name, field) in entries.fields() {
        if !limits::is_attribute_name(name) {
            field.wrong("no name for an attribute", ATTRIBUTE);
        }
        let Some(pattern) = field.text("a pattern, in which * matches any run of characters")
        else {
            continue;
        };
        if pattern.len() > limits::MAX_PATTERN_BYTES {
            let expected = format!("at most {}", limits::MAX_PATTERN_BYTES);
            field.wrong(format!("the pattern has {} bytes", pattern.len()), expected);
        }
        attributes.insert(name.to_owned(), Pattern::new(pattern));
    }
    Some(attributes)
}

fn read_key(table: &Table<'_>) -> Option<Vec<String>> {
    const EXPECTED: &str =
        "the attributes that make the subject, such as [\"tenant\"]; [] is one budget for all";
    let field = table.required("key", EXPECTED)?;
    let items = field.items(EXPECTED)?;
    if items.len() > limits::MAX_KEY_ATTRIBUTES {
        let expected = format!("at most {}", limits::MAX_KEY_ATTRIBUTES);
        field.wrong(format!("{} attributes", items.len()), expected);
    }
    let mut key = Vec::new();
    for item in &items {
        let Some(name) = item.text(ATTRIBUTE) else {
            continue;
        };
        if !limits::is_attribute_name(name) {
            item.wrong(
                format!("{} is no name for an attribute", quote(name)),
                ATTRIBUTE,
            );
        }
        if key.iter().any(|earlier| earlier == name) {
            item.wrong(
                format!("{} is listed twice", quote(name)),
                "each attribute once",
            );
        }
        key.push(name.to_owned());
    }
    Some(key)
}
