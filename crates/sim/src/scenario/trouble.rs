//! The `[[fault]]` tables.

use super::{items, read_region, region_of};
use crate::Fault;
use apportion_core::Region;
use apportion_core::policy::source::{Field, Table, any_of, quote, show_ms};
use std::time::Duration;

/// Something that fails, and how it is put to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub kind: Kind,
    pub at_ms: u64,
    /// The same as `at_ms` for what happens in a moment.
    pub until_ms: u64,
    /// What begins then, such as `eu-west is cut off`.
    pub begins: String,
    /// What is over then; empty for what happens in a moment.
    pub ends: String,
    pub faults: Vec<Fault>,
    /// From here to the end nothing else may happen to the same.
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Cut,
    Loss,
    LoseStore,
    RollBack,
    ClockStep,
    Crash,
    Pause,
}

const KINDS: [(&str, Kind); 7] = [
    ("cut", Kind::Cut),
    ("loss", Kind::Loss),
    ("lose-store", Kind::LoseStore),
    ("roll-back", Kind::RollBack),
    ("clock-step", Kind::ClockStep),
    ("crash", Kind::Crash),
    ("pause", Kind::Pause),
];
const PERCENT_MAX: u64 = 100;
const STEP_MS_MAX: u64 = 3_600_000;

// === impl Trouble ===

impl Trouble {
    /// Whether nothing gets from one region to another at a moment.
    pub fn cuts(&self, from: usize, to: usize, at_ms: u64) -> bool {
        self.lasts_at(at_ms) && self.faults.contains(&Fault::CutLink(from, to))
    }

    /// Whether the nodes of a region do nothing at a moment.
    pub fn stops(&self, region: usize, at_ms: u64) -> bool {
        let stops =
            |fault: &Fault| *fault == Fault::Crash(region) || *fault == Fault::Pause(region);
        self.lasts_at(at_ms) && self.faults.iter().any(stops)
    }

    fn lasts_at(&self, at_ms: u64) -> bool {
        (self.at_ms..self.until_ms).contains(&at_ms)
    }

    fn disturbs(&self, other: &Self) -> bool {
        let meet = self.since_ms <= other.until_ms && other.since_ms <= self.until_ms;
        let same = |a: &Fault, b: &Fault| match (a, b) {
            (Fault::RollBack(a, _), Fault::RollBack(b, _))
            | (Fault::Step(a, _), Fault::Step(b, _)) => a == b,
            (Fault::Lose(_), Fault::Lose(_)) => true,
            (a, b) => a == b,
        };
        meet && self
            .faults
            .iter()
            .any(|a| other.faults.iter().any(|b| same(a, b)))
    }
}

pub(super) fn read_all(
    root: &Table<'_>,
    regions: &[Region],
    duration_ms: u64,
) -> Option<Vec<Trouble>> {
    const EXPECTED: &str = "[[fault]] tables with at and kind";
    let Some(field) = root.get("fault") else {
        return Some(Vec::new());
    };
    let mut troubles: Vec<(usize, Trouble)> = Vec::new();
    let mut all_read = true;
    for item in items(&field, EXPECTED)? {
        let trouble = item
            .table(EXPECTED)
            .and_then(|table| read(&table, regions, duration_ms));
        let Some(trouble) = trouble else {
            all_read = false;
            continue;
        };
        if let Some((line, _)) = troubles
            .iter()
            .find(|(_, earlier)| earlier.disturbs(&trouble))
        {
            item.wrong(
                format!("the fault on line {line} does the same to the same at that time"),
                "one after the other",
            );
        }
        troubles.push((item.line(), trouble));
    }
    all_read.then(|| troubles.into_iter().map(|(_, trouble)| trouble).collect())
}

fn read(table: &Table<'_>, regions: &[Region], duration_ms: u64) -> Option<Trouble> {
    let names = any_of(KINDS.map(|(name, _)| name));
    let field = table.required("kind", &names)?;
    let kind = field.choice(&KINDS, &names)?;
    table.only(match kind {
        Kind::Cut => &["at", "kind", "for", "regions", "from", "to"],
        Kind::Loss => &["at", "kind", "for", "percent"],
        Kind::LoseStore => &["at", "kind", "region"],
        Kind::RollBack | Kind::ClockStep => &["at", "kind", "region", "by"],
        Kind::Crash | Kind::Pause => &["at", "kind", "for", "region"],
    });
    let at_ms = table
        .required("at", "when it happens, such as \"30s\"")
        .and_then(|field| field.duration_ms(0..=duration_ms - 1, "30s"));
    let lasts_ms = match kind {
        Kind::Cut | Kind::Loss | Kind::Crash | Kind::Pause => table
            .required("for", "how long it lasts, such as \"20s\"")
            .and_then(|field| field.duration_ms(1..=duration_ms, "20s")),
        Kind::LoseStore | Kind::RollBack | Kind::ClockStep => Some(0),
    };
    let read = match kind {
        Kind::Cut => read_cut(table, regions),
        Kind::Loss => read_loss(table),
        _ => read_of_region(kind, table, regions, at_ms),
    };
    let ((begins, ends, faults), at_ms) = (read?, at_ms?);
    let since_ms = match faults.first() {
        Some(Fault::RollBack(_, by_ms)) => at_ms.saturating_sub(*by_ms),
        _ => at_ms,
    };
    Some(Trouble {
        kind,
        at_ms,
        until_ms: at_ms + lasts_ms?,
        begins,
        ends,
        faults,
        since_ms,
    })
}

/// What begins, what ends, and what happens.
type Read = (String, String, Vec<Fault>);

fn read_cut(table: &Table<'_>, regions: &[Region]) -> Option<Read> {
    const EXPECTED: &str = "either regions, such as [\"eu-west\"], or from and to";
    let Some(field) = table.get("regions") else {
        if table.get("from").is_none() && table.get("to").is_none() {
            table.wrong("a cut of nothing", EXPECTED);
            return None;
        }
        let (from, to) = (
            read_region(table, "from", regions),
            read_region(table, "to", regions),
        );
        let (from, to) = (from?, to?);
        if from == to {
            table
                .get("to")?
                .wrong("the same region as from", "another region");
            return None;
        }
        let way = format!("{} to {}", regions[from], regions[to]);
        return Some((
            format!("nothing gets from {way}"),
            format!("messages get from {way} again"),
            vec![Fault::CutLink(from, to)],
        ));
    };
    for one_way in ["from", "to"] {
        if let Some(field) = table.get(one_way) {
            field.wrong("there are regions as well", EXPECTED);
            return None;
        }
    }
    let named = field.items("the regions that are cut off from all others")?;
    let cut: Vec<_> = named.iter().map(|item| region_of(item, regions)).collect();
    let cut: Vec<usize> = cut.into_iter().collect::<Option<_>>()?;
    let others = (0..regions.len()).filter(|other| !cut.contains(other));
    let mut links = Vec::new();
    for other in others {
        for one in &cut {
            links.extend([Fault::CutLink(*one, other), Fault::CutLink(other, *one)]);
        }
    }
    if links.is_empty() {
        field.wrong(
            "no region on one side of the cut",
            "some of the regions, but not all",
        );
        return None;
    }
    let names: Vec<_> = cut.iter().map(|i| regions[*i].as_str()).collect();
    let (names, verb) = (names.join(", "), if cut.len() > 1 { "are" } else { "is" });
    Some((
        format!("{names} {verb} cut off"),
        format!("{names} {verb} back"),
        links,
    ))
}

fn read_loss(table: &Table<'_>) -> Option<Read> {
    let percent = table
        .required("percent", "how many of a hundred messages are lost")?
        .integer(1..=PERCENT_MAX)?;
    Some((
        format!("{percent}% of messages are lost"),
        "messages are no longer lost".into(),
        vec![Fault::Lose(percent as u32 * 10)],
    ))
}

fn read_of_region(
    kind: Kind,
    table: &Table<'_>,
    regions: &[Region],
    at_ms: Option<u64>,
) -> Option<Read> {
    let region = read_region(table, "region", regions);
    let by = |expected| table.required("by", expected);
    let at_once = String::new();
    Some(match kind {
        Kind::RollBack => {
            let field = by("how far the store goes back, such as \"1s\"")?;
            let by_ms = field.duration_ms(1..=at_ms?.max(1), "1s")?;
            let region = region?;
            let begins = format!(
                "{}'s store goes back by {}",
                regions[region],
                show_ms(by_ms)
            );
            (begins, at_once, vec![Fault::RollBack(region, by_ms)])
        }
        Kind::ClockStep => {
            let by_ms = read_step(&by(STEP)?)?;
            let region = region?;
            let (way, by) = if by_ms < 0 {
                ("back", -by_ms)
            } else {
                ("on", by_ms)
            };
            let by = show_ms(by.unsigned_abs());
            let begins = format!("{}'s clock steps {way} by {by}", regions[region]);
            (begins, at_once, vec![Fault::Step(region, by_ms)])
        }
        Kind::Crash => {
            let region = region?;
            let name = &regions[region];
            let begins = format!("{name}'s nodes crash");
            (
                begins,
                format!("{name}'s nodes are back"),
                vec![Fault::Crash(region)],
            )
        }
        Kind::Pause => {
            let region = region?;
            let name = &regions[region];
            let begins = format!("{name}'s nodes stand still");
            (
                begins,
                format!("{name}'s nodes go on"),
                vec![Fault::Pause(region)],
            )
        }
        _ => {
            let region = region?;
            let begins = format!("{}'s store restarts empty", regions[region]);
            (begins, at_once, vec![Fault::LoseStore(region)])
        }
    })
}

const STEP: &str = "how far the clock steps, up to 1h either way, such as \"3s\" or \"-3s\"";

fn read_step(field: &Field<'_>) -> Option<i64> {
    let text = field.text(STEP)?;
    let (sign, length) = match text.strip_prefix('-') {
        Some(length) => (-1, length),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let ms = humantime::parse_duration(length)
        .ok()
        .filter(|length| length.subsec_nanos().is_multiple_of(1_000_000))
        .map(|length: Duration| length.as_millis())
        .filter(|ms| (1..=u128::from(STEP_MS_MAX)).contains(ms));
    if ms.is_none() {
        field.wrong(format!("{} is no such step", quote(text)), STEP);
    }
    ms.and_then(|ms| i64::try_from(ms).ok()).map(|ms| sign * ms)
}
