//! From the text of `policies.toml` to checked policies.
//!
//! Every field of the format is known here, also those that only a later version acts on (see `later`): such a value
//! is refused, never ignored.

use super::later::{self, NOT_YET};
use super::source::{self, Field, Problem, Table, any_of, quote};
use super::{
    Algorithm, Mode, OnStoreFailure, Pattern, Policy, PolicyErrors, PolicySet, Tolerance, limits,
};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    Gcra,
    Concurrency,
}

const KINDS: [(&str, Kind); 6] = [
    ("fixed-window", Kind::FixedWindow),
    ("sliding-window", Kind::SlidingWindow),
    ("sliding-log", Kind::SlidingLog),
    ("token-bucket", Kind::TokenBucket),
    ("gcra", Kind::Gcra),
    ("concurrency", Kind::Concurrency),
];

/// What is recommended, of `KINDS`.
const SUPPORTED_KINDS: [&str; 2] = ["fixed-window", "token-bucket"];

const CALENDAR: [&str; 3] = ["day", "week", "month"];

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

    let policy = Policy {
        name: name?,
        version: u32::try_from(version?).expect("the range of versions is that of u32"),
        attributes: attributes?,
        key: key?,
        algorithm: algorithm?,
        mode: mode?,
        tolerance: tolerance?,
        on_store_failure: on_store_failure?,
        weights: weights?,
        usage_ms: usage_ms?,
        shadow: shadow?,
    };
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

// === how much ===

enum Period {
    Fixed(u64),
    Calendar,
}

fn read_algorithm(table: &Table<'_>, kind: Option<Kind>) -> Option<Algorithm> {
    let limit = table
        .required("limit", "the number of units to admit in each period")
        .and_then(|field| field.integer(limits::UNITS));
    let period = read_period(table, kind);
    let burst = read_burst(table, kind);
    let (kind, limit) = (kind?, limit?);
    match (kind, period) {
        (Kind::FixedWindow, Some(Period::Fixed(per_ms))) => {
            Some(Algorithm::FixedWindow { limit, per_ms })
        }
        (Kind::TokenBucket, Some(Period::Fixed(per_ms))) => Some(Algorithm::TokenBucket {
            limit,
            per_ms,
            burst: burst?.unwrap_or(limit),
        }),
        (Kind::FixedWindow | Kind::TokenBucket, _) => None,
        (Kind::SlidingWindow | Kind::SlidingLog | Kind::Gcra | Kind::Concurrency, _) => {
            let (name, _) = KINDS.iter().find(|(_, k)| *k == kind)?;
            table
                .get("algorithm")?
                .wrong(format!("{name:?} is {NOT_YET}"), any_of(SUPPORTED_KINDS));
            None
        }
    }
}

fn read_period(table: &Table<'_>, kind: Option<Kind>) -> Option<Period> {
    if kind == Some(Kind::Concurrency) {
        if let Some(field) = table.get("per") {
            field.wrong("concurrency has no period", "no per");
        }
        return None;
    }
    let field = table.required("per", "a duration, such as \"1m\"")?;
    let Some(calendar) = field.peek_text().filter(|text| CALENDAR.contains(text)) else {
        return field.duration_ms(limits::PER_MS, "1m").map(Period::Fixed);
    };
    match kind {
        Some(Kind::FixedWindow) => field.wrong(
            format!("{calendar:?}, a calendar period, is {NOT_YET}"),
            "a duration, such as \"24h\"",
        ),
        Some(_) => field.wrong(
            format!("{calendar:?}, a calendar period, is for fixed windows alone"),
            "a duration, such as \"24h\"",
        ),
        None => {}
    }
    Some(Period::Calendar)
}

/// `None` after a complaint, `Some(None)` where it is left out.
fn read_burst(table: &Table<'_>, kind: Option<Kind>) -> Option<Option<u64>> {
    let Some(field) = table.get("burst") else {
        return Some(None);
    };
    let burst = field.integer(limits::UNITS);
    if let Some(kind) = kind
        && !matches!(kind, Kind::TokenBucket | Kind::Gcra)
    {
        let what = "this algorithm has no burst";
        field.wrong(what, "a burst with \"token-bucket\" or \"gcra\" alone");
        return None;
    }
    burst.map(Some)
}

fn warn_of_few_units(table: &Table<'_>, policy: &Policy) -> Option<String> {
    let regions = policy
        .weights
        .values()
        .filter(|&&weight| weight > 0)
        .count() as u64;
    let capacity = policy.capacity();
    if regions == 1 || capacity >= regions * limits::FEW_UNITS_A_REGION {
        return None;
    }
    let field = table.get("burst").or_else(|| table.get("limit"))?;
    Some(format!(
        "{}: {capacity} over {regions} regions is less than {} each, so that many requests will have to wait for a \
         loan; consider fewer regions with a weight above 0 (or home mode, once it is supported)",
        field.place(),
        limits::FEW_UNITS_A_REGION,
    ))
}

// === where ===

fn read_mode(table: &Table<'_>, kind: Option<Kind>, regions: Option<&[Region]>) -> Option<Mode> {
    #[derive(Clone, Copy, PartialEq)]
    enum Name {
        Shares,
        Home,
        Region,
    }
    const NAMES: [(&str, Name); 3] = [
        ("shares", Name::Shares),
        ("home", Name::Home),
        ("region", Name::Region),
    ];
    let field = table.get("mode");
    let name = match &field {
        Some(field) => field.choice(&NAMES, &any_of(["shares"])),
        None => Some(Name::Shares),
    };
    let [home, standby] = ["home", "standby"].map(|key| read_home(table, key, regions));
    if let (Some(home), Some(standby)) = (&home, &standby)
        && home == standby
    {
        table
            .get("standby")?
            .wrong("the same region as home", "another region");
    }
    if matches!(name, Some(Name::Shares | Name::Region)) {
        for key in ["home", "standby"] {
            if let Some(field) = table.get(key) {
                field.wrong(
                    "without mode = \"home\" this means nothing",
                    "to be left out",
                );
            }
        }
    }
    match (name?, field) {
        (Name::Shares, Some(field)) if kind == Some(Kind::Concurrency) => {
            field.wrong("slots are not dealt in shares", any_of(["region", "home"]));
            None
        }
        (Name::Shares, _) => Some(Mode::Shares),
        (Name::Region, field) => {
            if kind != Some(Kind::Concurrency) {
                field?.wrong("\"region\" is for concurrency alone", any_of(["shares"]));
                return None;
            }
            field?.wrong(format!("\"region\" is {NOT_YET}"), any_of(["shares"]));
            Some(Mode::Region)
        }
        (Name::Home, field) => {
            field?.wrong(format!("\"home\" is {NOT_YET}"), any_of(["shares"]));
            table.required("home", "the region that decides")?;
            Some(Mode::Home {
                home: home?,
                standby,
            })
        }
    }
}

fn read_home(table: &Table<'_>, key: &str, regions: Option<&[Region]>) -> Option<Region> {
    let field = table.get(key)?;
    let region = region_name(&field)?;
    refuse_a_stranger(&field, &region, regions);
    Some(region)
}

fn refuse_a_stranger(field: &Field<'_>, region: &Region, regions: Option<&[Region]>) {
    if let Some(regions) = regions
        && !regions.contains(region)
    {
        let names = || regions.iter().map(Region::as_str);
        let hint = source::nearest(region.as_str(), names())
            .map(|near| format!(", did you mean {near:?}?"))
            .unwrap_or_default();
        let what = format!("{:?} is not one of regions{hint}", region.as_str());
        field.wrong(what, any_of(names()));
    }
}

fn read_weights(table: &Table<'_>, regions: Option<&[Region]>) -> Option<BTreeMap<Region, u64>> {
    const EXPECTED: &str = "a weight for each region, such as { us-east = 2, eu-west = 1 }";
    let Some(field) = table.get("weights") else {
        return regions.map(|regions| regions.iter().map(|r| (r.clone(), 1)).collect());
    };
    let entries = field.table(EXPECTED)?;
    let mut weights = BTreeMap::new();
    for (name, field) in entries.fields() {
        let region = Region::new(name);
        refuse_a_stranger(&field, &region, regions);
        weights.insert(region, field.integer(limits::WEIGHT).unwrap_or(1));
    }
    let missing: Vec<_> = regions?
        .iter()
        .filter(|region| !weights.contains_key(region))
        .map(Region::as_str)
        .collect();
    if !missing.is_empty() {
        let what = format!("no weight for {}", missing.join(", "));
        field.wrong(
            what,
            "a weight for every region, 0 for one without a base share",
        );
        return None;
    }
    if weights.values().all(|&weight| weight == 0) {
        field.wrong(
            "all weights are 0",
            "a weight above 0 for at least one region",
        );
        return None;
    }
    Some(weights)
}

// === what if ===

fn read_tolerance(table: &Table<'_>) -> Option<Tolerance> {
    const EXPECTED: &str = "\"never-over\"";
    let Some(field) = table.get("tolerance") else {
        return Some(Tolerance::NeverOver);
    };
    let tolerance = if field.is_table() {
        let over = field.table(EXPECTED)?;
        over.only(&["over"]);
        let over = over.required("over", "a percentage, such as \"5%\"")?;
        Tolerance::Over {
            ppm: read_percentage(&over)?,
        }
    } else if field.peek_text().is_some() {
        const NAMES: [(&str, Tolerance); 2] = [
            ("never-over", Tolerance::NeverOver),
            ("never-under", Tolerance::NeverUnder),
        ];
        field.choice(&NAMES, &any_of(["never-over"]))?
    } else {
        field.text(EXPECTED).map(|_| Tolerance::NeverOver)?
    };
    match tolerance {
        Tolerance::NeverOver => {}
        Tolerance::NeverUnder => {
            field.wrong(
                format!("\"never-under\" is {NOT_YET}"),
                any_of(["never-over"]),
            );
        }
        Tolerance::Over { .. } => {
            field.wrong(
                format!("{{ over = ... }} is {NOT_YET}"),
                any_of(["never-over"]),
            );
        }
    }
    Some(tolerance)
}

/// Millionths, from `"5%"` or `"0.25%"`.
fn read_percentage(field: &Field<'_>) -> Option<u32> {
    const EXPECTED: &str =
        "a percentage above 0% and up to 100%, of at most four decimals, such as \"5%\"";
    let text = field.text(EXPECTED)?;
    let ppm = (|| {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits =
            |s: &str, most| (1..=most).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole, 3) || !digits(decimals, 4) {
            return None;
        }
        let millionths: u32 = format!("{whole}{decimals:0<4}").parse().ok()?;
        (1..=1_000_000).contains(&millionths).then_some(millionths)
    })();
    if ppm.is_none() {
        field.wrong(format!("{} is no such percentage", quote(text)), EXPECTED);
    }
    ppm
}

fn read_on_store_failure(
    table: &Table<'_>,
    tolerance: Option<Tolerance>,
) -> Option<OnStoreFailure> {
    const NAMES: [(&str, OnStoreFailure); 3] = [
        ("closed", OnStoreFailure::Closed),
        ("open", OnStoreFailure::Open),
        ("local", OnStoreFailure::Local),
    ];
    let Some(field) = table.get("on_store_failure") else {
        return tolerance.map(OnStoreFailure::default_for);
    };
    let closed = any_of(["closed"]);
    let chosen = field.choice(&NAMES, &closed)?;
    match (chosen, tolerance) {
        (OnStoreFailure::Closed, _) => {}
        (_, Some(Tolerance::NeverOver)) => field.wrong(
            "never-over can't hold while requests are admitted without the store",
            closed,
        ),
        (OnStoreFailure::Open | OnStoreFailure::Local, _) => {
            let text = field.peek_text().map(quote).unwrap_or_default();
            field.wrong(format!("{text} is {NOT_YET}"), closed);
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests;
