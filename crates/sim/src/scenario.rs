//! What a user wants to see simulated: a policy of theirs, who asks for it where and when, and what fails. One TOML file,
//! read like the other two: whatever is wrong with it is said with its line, all of it at once.

#[cfg(test)]
mod tests;
mod trouble;

pub use trouble::{Kind, Trouble};

use crate::measure::BEGINNING;
use crate::{Faults, Flow, Scripted, Setup, Stated};
use apportion_core::lives::OnEmpty;
use apportion_core::policy::limits;
use apportion_core::policy::source::{self, Field, Problem, Problems, Table, did_you_mean, quote};
use apportion_core::{Algorithm, Policy, PolicySet, Region};
use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// A scenario file, checked. Times are milliseconds from the beginning of its traffic.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// As it is simulated: for one subject that neither a plan nor an override speaks for.
    pub policy: Arc<Policy>,
    /// In name order; others are named by their places here.
    pub regions: Vec<Region>,
    pub duration_ms: u64,
    /// From one region to another, one way.
    pub latency_ms: u64,
    pub traffic: Vec<Flow>,
    pub troubles: Vec<Trouble>,
    /// What is allowed in the policies file but probably not meant.
    pub warnings: Vec<String>,
    policies: String,
    nodes: usize,
    interval_ms: u64,
    loan_term_ms: u64,
}

/// Regions have met before anything is asked, and the traffic begins on a whole minute.
pub const LEAD_IN_MS: u64 = 40_000;
const _: () = assert!((BEGINNING + LEAD_IN_MS).is_multiple_of(60_000));

const DURATION_MS: RangeInclusive<u64> = 1_000..=86_400_000;
const LATENCY_MS: RangeInclusive<u64> = 0..=10_000;
const DEFAULT_LATENCY_MS: u64 = 75;
const INTERVAL_MS: RangeInclusive<u64> = 100..=3_600_000;
const DEFAULT_INTERVAL_MS: u64 = 2_000;
const LOAN_TERM_MS: RangeInclusive<u64> = 200..=86_400_000;
const DEFAULT_LOAN_TERM_MS: u64 = 10_000;
const NODES: RangeInclusive<u64> = 1..=16;
const DEFAULT_NODES: usize = 2;
const PER_SECOND_MAX: f64 = 100_000.0;
/// Each is remembered until its run is summed up.
const REQUESTS_MAX: f64 = 2_000_000.0;
const TABLES_MAX: usize = 1_000;

const KEYS: &[&str] = &[
    "policies",
    "policy",
    "duration",
    "latency",
    "interval",
    "loan_term",
    "nodes",
    "traffic",
    "fault",
];

/// Fields of a policy that one subject's budget doesn't depend on, or that the simulated regions don't act on.
const NOT_SIMULATED: &[&str] = &[
    "match",
    "sensitive",
    "new_subjects_per_second",
    "plans",
    "override",
    "priority",
    "pool",
    "shadow",
];

// === impl Scenario ===

impl Scenario {
    /// Reads a scenario file and the policies file that it names.
    ///
    /// # Errors
    /// Everything that is wrong with either.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let file = path.display().to_string();
        let bytes = read_bounded(path).map_err(|error| {
            let what = format!("can't be read: {error}");
            Problem::of_file(&file, what, Some("a scenario file"))
        })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::parse(source::utf8(&bytes, &file)?, &file, directory)
    }

    /// `file` is the name by which complaints call it; the policies file is looked for from `directory`.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn parse(text: &str, file: &str, directory: &Path) -> Result<Self, Problems> {
        source::read(text, file, |root| read_scenario(root, directory))
    }

    /// What is simulated, its times shifted by the lead-in.
    pub fn setup(&self) -> Setup {
        let flows = self.traffic.iter().map(|flow| Flow {
            from_ms: flow.from_ms + LEAD_IN_MS,
            until_ms: flow.until_ms + LEAD_IN_MS,
            ..flow.clone()
        });
        let faults = self.troubles.iter().flat_map(|trouble| {
            let times = (trouble.at_ms + LEAD_IN_MS, trouble.until_ms + LEAD_IN_MS);
            trouble.faults.iter().map(move |fault| Scripted {
                at_ms: times.0,
                until_ms: times.1,
                fault: fault.clone(),
            })
        });
        Setup {
            policies: self.policies.clone(),
            pair: None,
            regions: self.regions.len(),
            nodes: self.nodes,
            duration_ms: self.duration_ms + LEAD_IN_MS,
            delay_ms: (self.latency_ms, self.latency_ms),
            faults: Faults::default(),
            faults_until_ms: 0,
            boots_ms: 0,
            requests_per_s: 0,
            one_sided: false,
            flip_at_ms: None,
            on_empty: OnEmpty::Ask,
            stated: Some(Stated {
                policy: self.policy.name.clone(),
                flows: flows.collect(),
                faults: faults.collect(),
                interval_ms: self.interval_ms,
                term_ms: self.loan_term_ms,
                keys: 1,
            }),
        }
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = limits::MAX_FILE_BYTES as u64;
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn read_scenario(root: &Table<'_>, directory: &Path) -> Option<Scenario> {
    root.only(KEYS);
    let set = read_policies(root, directory);
    let policy = set
        .as_ref()
        .and_then(|(text, set)| read_policy(root, text, set));
    let duration_ms = root
        .required("duration", "how long to simulate, such as \"2m\"")
        .and_then(|field| field.duration_ms(DURATION_MS, "2m"));
    let latency_ms = read_duration(root, "latency", LATENCY_MS, DEFAULT_LATENCY_MS);
    let times = read_interval_and_term(root);
    let nodes = match root.get("nodes") {
        Some(field) => field.integer(NODES).map(|nodes| nodes as usize),
        None => Some(DEFAULT_NODES),
    };
    let (_, set) = set?;
    let duration_ms = duration_ms?;
    let capacity = policy.as_ref().map_or(u64::MAX, |(_, policy)| {
        policy.limits.capacity(&policy.algorithm)
    });
    let traffic = read_traffic(root, &set.regions, duration_ms, capacity);
    let troubles = trouble::read_all(root, &set.regions, duration_ms);
    let (policies, policy) = policy?;
    let (interval_ms, loan_term_ms) = times?;
    Some(Scenario {
        policy,
        regions: set.regions,
        duration_ms,
        latency_ms: latency_ms?,
        traffic: traffic?,
        troubles: troubles?,
        warnings: set.warnings,
        policies,
        nodes: nodes?,
        interval_ms,
        loan_term_ms,
    })
}

/// The text of the policies file, and what is in it.
fn read_policies(root: &Table<'_>, directory: &Path) -> Option<(String, PolicySet)> {
    const EXPECTED: &str = "the path of the policies file, relative to this file";
    let field = root.required("policies", EXPECTED)?;
    let path = directory.join(field.text(EXPECTED)?);
    let file = path.display().to_string();
    let bytes = match read_bounded(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            field.wrong(format!("{file} can't be read: {error}"), EXPECTED);
            return None;
        }
    };
    let set = source::utf8(&bytes, &file)
        .and_then(|text| Ok((text.to_owned(), PolicySet::parse(text, &file)?)));
    set.map_err(|problems| field.wrong_inside(problems)).ok()
}

/// The policy as it is simulated, and a policies file with it alone.
fn read_policy(root: &Table<'_>, text: &str, set: &PolicySet) -> Option<(String, Arc<Policy>)> {
    const EXPECTED: &str = "the name of one of the policies";
    let field = root.required("policy", EXPECTED)?;
    let name = field.text(EXPECTED)?;
    let Some(policy) = set.policy(name) else {
        let hint = did_you_mean(name, set.policies.iter().map(|policy| policy.name.as_str()));
        field.wrong(
            format!("no policy is called {}{hint}", quote(name)),
            EXPECTED,
        );
        return None;
    };
    if matches!(policy.algorithm, Algorithm::Concurrency { .. }) {
        let what = format!("{} is a concurrency policy", quote(name));
        field.wrong(what, "one whose budget the regions share");
        return None;
    }
    let text = alone(text, name)?;
    let set = PolicySet::parse(&text, "simulated").ok();
    let Some(policy) = set.as_ref().and_then(|set| set.policy(name)) else {
        field.wrong(format!("{} can't be simulated", quote(name)), EXPECTED);
        return None;
    };
    Some((text, Arc::clone(policy)))
}

/// A policies file with one policy, and of that only what matters to one subject's budget.
fn alone(text: &str, name: &str) -> Option<String> {
    let mut file: toml::Table = text.parse().ok()?;
    let policies = file.get_mut("policy")?.as_array_mut()?;
    policies.retain(|policy| policy.get("name").and_then(|n| n.as_str()) == Some(name));
    let policy = policies.first_mut()?.as_table_mut()?;
    policy.retain(|key, _| !NOT_SIMULATED.contains(&key));
    policy.insert("key".into(), vec!["tenant"].into());
    toml::to_string(&file).ok()
}

fn read_duration(
    table: &Table<'_>,
    name: &str,
    range_ms: RangeInclusive<u64>,
    default_ms: u64,
) -> Option<u64> {
    match table.get(name) {
        Some(field) => field.duration_ms(range_ms, &source::show_ms(default_ms)),
        None => Some(default_ms),
    }
}

fn read_interval_and_term(root: &Table<'_>) -> Option<(u64, u64)> {
    let interval_ms = read_duration(root, "interval", INTERVAL_MS, DEFAULT_INTERVAL_MS);
    let term_ms = read_duration(root, "loan_term", LOAN_TERM_MS, DEFAULT_LOAN_TERM_MS);
    let (interval_ms, term_ms) = (interval_ms?, term_ms?);
    if term_ms < 2 * interval_ms {
        let (shown, field) = match root.get("loan_term") {
            Some(field) => ("", field),
            None => (" (left out)", root.get("interval")?),
        };
        let [term, least] = [term_ms, 2 * interval_ms].map(source::show_ms);
        field.wrong(
            format!("a loan_term of {term}{shown} is less than two intervals"),
            format!("a loan_term of at least {least}"),
        );
    }
    Some((interval_ms, term_ms))
}

fn read_traffic(
    root: &Table<'_>,
    regions: &[Region],
    duration_ms: u64,
    capacity: u64,
) -> Option<Vec<Flow>> {
    const EXPECTED: &str = "[[traffic]] tables with region and rate";
    let field = root.required("traffic", EXPECTED)?;
    let flows: Vec<_> = items(&field, EXPECTED)?
        .iter()
        .map(|item| read_flow(&item.table(EXPECTED)?, regions, duration_ms, capacity))
        .collect();
    let flows: Vec<Flow> = flows.into_iter().collect::<Option<_>>()?;
    let seconds = |flow: &Flow| (flow.until_ms - flow.from_ms) as f64 / 1_000.0;
    let requests: f64 = flows.iter().map(|f| f.per_second * seconds(f)).sum();
    if requests > REQUESTS_MAX {
        let expected = format!("at most {REQUESTS_MAX:.0} requests in one run");
        field.wrong(format!("some {requests:.0} requests"), expected);
    }
    Some(flows)
}

fn items<'r>(field: &Field<'r>, expected: &str) -> Option<Vec<Field<'r>>> {
    let items = field.items(expected)?;
    if items.len() > TABLES_MAX {
        field.wrong(
            format!("{} of them", items.len()),
            format!("at most {TABLES_MAX}"),
        );
        return None;
    }
    Some(items)
}

fn read_flow(
    table: &Table<'_>,
    regions: &[Region],
    duration_ms: u64,
    capacity: u64,
) -> Option<Flow> {
    table.only(&["region", "rate", "from", "until", "cost"]);
    let region = read_region(table, "region", regions);
    let rate = table
        .required("rate", RATE)
        .and_then(|field| read_rate(&field));
    let from_ms = read_duration(table, "from", 0..=duration_ms - 1, 0);
    let until_ms = read_duration(table, "until", 1..=duration_ms, duration_ms);
    let cost = match table.get("cost") {
        Some(field) => field.integer(1..=capacity),
        None => Some(1),
    };
    let (from_ms, until_ms) = (from_ms?, until_ms?);
    if until_ms <= from_ms {
        let [from, until] = [from_ms, until_ms].map(source::show_ms);
        let field = table.get("until").or_else(|| table.get("from"))?;
        field.wrong(
            format!("traffic until {until} that begins at {from}"),
            "a beginning before the end",
        );
        return None;
    }
    Some(Flow {
        region: region?,
        per_second: rate?,
        from_ms,
        until_ms,
        cost: cost?,
        keys: 1,
    })
}

const RATE: &str = "requests a second, such as 150, or \"150/s\", \"90/m\" or \"20/h\"";

fn read_rate(field: &Field<'_>) -> Option<f64> {
    let Some(text) = field.peek_text() else {
        let whole = field.integer(1..=PER_SECOND_MAX as u64)?;
        return Some(whole as f64);
    };
    let rate = text.split_once('/').and_then(|(count, unit)| {
        let seconds = match unit.trim() {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        let count: u32 = count.trim().parse().ok()?;
        Some(f64::from(count) / seconds)
    });
    match rate {
        Some(rate) if rate > PER_SECOND_MAX => {
            let expected = format!("at most {PER_SECOND_MAX} requests a second");
            field.wrong(format!("{} is too much", quote(text)), expected);
            None
        }
        Some(rate) if rate > 0.0 => Some(rate),
        _ => {
            field.wrong(format!("{} is no such rate", quote(text)), RATE);
            None
        }
    }
}

fn read_region(table: &Table<'_>, name: &str, regions: &[Region]) -> Option<usize> {
    let field = table.required(name, "a region of the policies file")?;
    region_of(&field, regions)
}

fn region_of(field: &Field<'_>, regions: &[Region]) -> Option<usize> {
    let name = field.text("a region of the policies file")?;
    let found = regions.iter().position(|region| region.as_str() == name);
    if found.is_none() {
        let names: Vec<_> = regions.iter().map(Region::as_str).collect();
        let hint = did_you_mean(name, names.iter().copied());
        field.wrong(
            format!("{} is no region of the policies file{hint}", quote(name)),
            format!("one of {}", names.join(", ")),
        );
    }
    found
}
