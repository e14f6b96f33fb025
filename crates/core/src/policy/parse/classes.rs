//! Who goes first: classes of requests, and members of a pool.

use super::super::source::{Table, quote};
use super::super::{Class, PoolMembers, Standing, limits};
use super::budget::Kind;
use super::promise::read_percentage;
use super::subject::{attribute_name, value_of};
use std::collections::{BTreeMap, HashMap};

pub(super) fn read_classes(table: &Table<'_>) -> Option<Vec<Class>> {
    let Some(field) = table.get("priority") else {
        return Some(Vec::new());
    };
    let entries = field.items("[[policy.priority]] tables, the most important class first")?;
    if entries.len() > limits::MAX_CLASSES {
        let expected = format!("at most {}", limits::MAX_CLASSES);
        field.wrong(format!("{} classes", entries.len()), expected);
        return None;
    }
    let mut lines = HashMap::new();
    let mut classes: Vec<Class> = Vec::new();
    let mut all_read = true;
    for entry in &entries {
        let class = entry
            .table("a table with class, and refuse_below or exempt")
            .and_then(|table| read_class(&table, &mut lines, &classes));
        all_read &= class.is_some();
        classes.extend(class);
    }
    let is_limited = |class: &Class| class.standing != Standing::Exempt;
    if all_read && !classes.iter().any(is_limited) {
        field.wrong(
            "no class is limited",
            "at least one class with refuse_below, such as \"0%\"",
        );
    }
    Some(classes)
}

fn read_class<'r>(
    table: &Table<'r>,
    lines: &mut HashMap<&'r str, usize>,
    before: &[Class],
) -> Option<Class> {
    const NAME: &str = "1 to 64 of a-z, 0-9, _ and -";
    table.only(&["class", "refuse_below", "exempt"]);
    let name = table.required("class", NAME).and_then(|field| {
        let name = field.text(NAME)?;
        if !limits::is_policy_name(name) {
            field.wrong(format!("{} is no name for a class", quote(name)), NAME);
            return None;
        }
        if let Some(line) = lines.insert(name, field.line()) {
            let what = format!("{} is the class on line {line} as well", quote(name));
            field.wrong(what, "names that differ");
        }
        Some(name)
    });
    let standing = read_standing(table, before);
    Some(Class {
        name: name?.to_owned(),
        standing: standing?,
    })
}

fn read_standing(table: &Table<'_>, before: &[Class]) -> Option<Standing> {
    const ONE: &str = "either refuse_below, such as \"20%\", or exempt = true";
    const PART: &str = "a percentage from 0% to 99%, of at most four decimals, such as \"20%\"";
    match (table.get("refuse_below"), table.get("exempt")) {
        (Some(field), None) => {
            let ppm = read_percentage(&field, limits::REFUSE_BELOW_PPM, PART)?;
            let last = before.iter().rev().find_map(|class| match class.standing {
                Standing::Leaves { ppm } => Some((ppm, class)),
                Standing::Exempt => None,
            });
            if let Some((least, class)) = last
                && ppm < least
            {
                let what = format!("less than that of {:?}, the class before", class.name);
                let percent = f64::from(least) / 10_000.0;
                field.wrong(
                    what,
                    format!("at least {percent}%: the most important class comes first"),
                );
            }
            Some(Standing::Leaves { ppm })
        }
        (None, Some(field)) => {
            if !field.boolean()? {
                field.wrong("false says nothing", ONE);
                return None;
            }
            Some(Standing::Exempt)
        }
        (Some(_), Some(field)) => {
            field.wrong("refuse_below is given as well", ONE);
            None
        }
        (None, None) => {
            table.wrong("neither refuse_below nor exempt", ONE);
            None
        }
    }
}

/// `None` after a complaint, `Some(None)` where it is left out.
pub(super) fn read_pool(
    table: &Table<'_>,
    kind: Option<Kind>,
    key: Option<&[String]>,
) -> Option<Option<PoolMembers>> {
    const BY: &str = "the name of the attribute that tells the members apart";
    let Some(field) = table.get("pool") else {
        return Some(None);
    };
    if kind.is_some_and(|kind| !kind.is_bucket()) {
        field.wrong(
            "what is short is dealt as it comes in, and this algorithm has nothing that comes in bit by bit",
            "a pool with \"token-bucket\" or \"gcra\" alone",
        );
    }
    let pool = field.table("a table such as { by = \"tenant\", weights = { acme = 4 } }")?;
    pool.only(&["by", "default_weight", "weights"]);
    let by = pool.required("by", BY).and_then(|field| {
        let name = attribute_name(&field)?;
        if key.is_some_and(|key| key.iter().any(|attribute| attribute == name)) {
            let what = format!(
                "{} is in key, so that each has a budget of its own",
                quote(name)
            );
            field.wrong(what, "an attribute that isn't in key");
        }
        Some(name)
    });
    let default_weight = match pool.get("default_weight") {
        Some(field) => field.integer(limits::MEMBER_WEIGHT),
        None => Some(1),
    };
    let weights = read_member_weights(&pool);
    Some(Some(PoolMembers {
        by: by?.to_owned(),
        default_weight: u32::try_from(default_weight?).ok()?,
        weights: weights?,
    }))
}

fn read_member_weights(pool: &Table<'_>) -> Option<BTreeMap<String, u32>> {
    let Some(field) = pool.get("weights") else {
        return Some(BTreeMap::new());
    };
    let entries = field.table("a table of members and their weights, such as { acme = 4 }")?;
    if entries.len() > limits::MAX_POOL_WEIGHTS {
        let expected = format!("at most {}", limits::MAX_POOL_WEIGHTS);
        field.wrong(format!("{} weights", entries.len()), expected);
        return None;
    }
    let mut weights = BTreeMap::new();
    for (name, field) in entries.fields() {
        let weight = field.integer(limits::MEMBER_WEIGHT);
        let (Some(weight), Some(name)) = (weight, value_of(&field, name)) else {
            continue;
        };
        let weight = u32::try_from(weight).ok()?;
        if weights.insert(name, weight).is_some() {
            field.wrong(
                "the same member in composed form twice",
                "members that differ",
            );
        }
    }
    Some(weights)
}
