//! Which requests a policy limits, and what their subject is.

use super::super::source::{Field, Table, quote};
use super::super::{Pattern, limits};
use std::collections::{BTreeMap, BTreeSet};

/// What is expected of an attribute's name.
const ATTRIBUTE: &str = "a name of 1 to 64 printable ASCII characters without spaces or =";

pub(super) fn read_match(table: &Table<'_>) -> Option<BTreeMap<String, Pattern>> {
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

pub(super) fn read_key(table: &Table<'_>) -> Option<Vec<String>> {
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
        let Some(name) = attribute_name(item) else {
            continue;
        };
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

/// Key attributes whose values are hashed.
pub(super) fn read_sensitive(
    table: &Table<'_>,
    key: Option<&[String]>,
) -> Option<BTreeSet<String>> {
    const EXPECTED: &str = "attributes of the policy's key, such as [\"email\"]";
    let Some(field) = table.get("sensitive") else {
        return Some(BTreeSet::new());
    };
    let mut sensitive = BTreeSet::new();
    for item in field.items(EXPECTED)? {
        let Some(name) = item.text(EXPECTED) else {
            continue;
        };
        if key.is_some_and(|key| !key.iter().any(|attribute| attribute == name)) {
            let what = format!("{} is not an attribute of the policy's key", quote(name));
            item.wrong(what, EXPECTED);
        }
        if !sensitive.insert(name.to_owned()) {
            item.wrong(
                format!("{} is listed twice", quote(name)),
                "each attribute once",
            );
        }
    }
    Some(sensitive)
}

/// `None` after a complaint, `Some(None)` where it is left out.
pub(super) fn read_new_subjects(table: &Table<'_>, key: Option<&[String]>) -> Option<Option<u32>> {
    let Some(field) = table.get("new_subjects_per_second") else {
        return Some(None);
    };
    if key.is_some_and(<[String]>::is_empty) {
        field.wrong("with key = [] there is one subject alone", "to be left out");
    }
    let most = field.integer(limits::NEW_SUBJECTS_PER_S)?;
    Some(u32::try_from(most).ok())
}

/// An attribute's name, checked.
pub(super) fn attribute_name<'r>(field: &Field<'r>) -> Option<&'r str> {
    let name = field.text(ATTRIBUTE)?;
    if !limits::is_attribute_name(name) {
        field.wrong(
            format!("{} is no name for an attribute", quote(name)),
            ATTRIBUTE,
        );
        return None;
    }
    Some(name)
}

/// A value of an attribute in composed form, checked for its length.
pub(super) fn value_of(field: &Field<'_>, value: &str) -> Option<String> {
    match crate::key::bounded("", value) {
        Ok(value) => Some(value.into_owned()),
        Err(_) => {
            field.wrong(
                format!("{} is too long", quote(value)),
                format!(
                    "at most {} bytes, in composed form",
                    crate::key::MAX_VALUE_BYTES
                ),
            );
            None
        }
    }
}
