//! What a policy promises: who decides, how the budget is dealt, which side it may err on, and what holds without a store.

use super::super::later::NOT_YET;
use super::super::source::{Field, Table, any_of, did_you_mean, quote};
use super::super::{Mode, OnStoreFailure, Tolerance, limits};
use super::budget::Kind;
use super::region_name;
use crate::ids::Region;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

// === where ===

pub(super) fn read_mode(
    table: &Table<'_>,
    kind: Option<Kind>,
    regions: Option<&[Region]>,
) -> Option<Mode> {
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
    let supported = match kind {
        Some(Kind::Concurrency) => any_of(["region"]),
        _ => any_of(["shares"]),
    };
    let field = table.get("mode");
    let name = match &field {
        Some(field) => field.choice(&NAMES, &supported),
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
        (Name::Shares, field) if kind == Some(Kind::Concurrency) => {
            let place = field.or_else(|| table.get("algorithm"))?;
            place.wrong(
                "slots are not dealt in shares",
                "mode = \"region\" or mode = \"home\"",
            );
            None
        }
        (Name::Shares, _) => Some(Mode::Shares),
        (Name::Region, field) => {
            if kind.is_some_and(|kind| kind != Kind::Concurrency) {
                field?.wrong("\"region\" is for concurrency alone", any_of(["shares"]));
                return None;
            }
            Some(Mode::Region)
        }
        (Name::Home, field) => {
            field?.wrong(format!("\"home\" is {NOT_YET}"), supported);
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
        let hint = did_you_mean(region.as_str(), names());
        let what = format!("{:?} is not one of regions{hint}", region.as_str());
        field.wrong(what, any_of(names()));
    }
}

pub(super) fn read_weights(
    table: &Table<'_>,
    kind: Option<Kind>,
    regions: Option<&[Region]>,
) -> Option<BTreeMap<Region, u64>> {
    const EXPECTED: &str = "a weight for each region, such as { us-east = 2, eu-west = 1 }";
    let Some(field) = table.get("weights") else {
        return regions.map(|regions| regions.iter().map(|r| (r.clone(), 1)).collect());
    };
    if kind == Some(Kind::Concurrency) {
        field.wrong(
            "slots are not dealt: each region has the limit for itself",
            "to be left out",
        );
        return None;
    }
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

pub(super) fn read_tolerance(table: &Table<'_>, kind: Option<Kind>) -> Option<Tolerance> {
    const EXPECTED: &str = "\"never-over\", \"never-under\" or { over = \"5%\" }";
    const PERCENTAGE: &str =
        "a percentage above 0% and up to 100%, of at most four decimals, such as \"5%\"";
    let Some(field) = table.get("tolerance") else {
        return Some(Tolerance::NeverOver);
    };
    let tolerance = if field.is_table() {
        let over = field.table(EXPECTED)?;
        over.only(&["over"]);
        let over = over.required("over", "a percentage, such as \"5%\"")?;
        Tolerance::Over {
            ppm: read_percentage(&over, limits::OVER_PPM, PERCENTAGE)?,
        }
    } else if field.peek_text().is_some() {
        const NAMES: [(&str, Tolerance); 2] = [
            ("never-over", Tolerance::NeverOver),
            ("never-under", Tolerance::NeverUnder),
        ];
        field.choice(&NAMES, EXPECTED)?
    } else {
        field.text(EXPECTED).map(|_| Tolerance::NeverOver)?
    };
    if kind == Some(Kind::Concurrency) && tolerance != Tolerance::NeverOver {
        field.wrong(
            "slots are not shared: each region has the limit for itself",
            any_of(["never-over"]),
        );
        return None;
    }
    Some(tolerance)
}

/// Millionths, from `"5%"` or `"0.25%"`.
pub(super) fn read_percentage(
    field: &Field<'_>,
    range: RangeInclusive<u32>,
    expected: &str,
) -> Option<u32> {
    let text = field.text(expected)?;
    let ppm = (|| {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits =
            |s: &str, most| (1..=most).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole, 3) || !digits(decimals, 4) {
            return None;
        }
        let millionths: u32 = format!("{whole}{decimals:0<4}").parse().ok()?;
        range.contains(&millionths).then_some(millionths)
    })();
    if ppm.is_none() {
        field.wrong(format!("{} is no such percentage", quote(text)), expected);
    }
    ppm
}

pub(super) fn read_on_store_failure(
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
