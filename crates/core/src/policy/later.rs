//! What the file format has and this version doesn't do yet. Its shape is checked, so that a file can be written
//! ahead, and its use is refused: a rule that is silently not applied is worse than none.

use super::limits;
use super::source::{Field, Table};

/// What a message says of such a value.
pub(super) const NOT_YET: &str = "not supported yet";

/// Keys of a policy that are known and of no use yet.
pub(super) const KEYS: &[&str] = &["home", "standby", "slot_ttl", "plans", "override"];

/// Checks and refuses `plans`, `override` and `slot_ttl`.
pub(super) fn refuse(policy: &Table<'_>, key: &[String]) {
    if let Some(field) = policy.get("slot_ttl") {
        field.duration_ms(limits::SLOT_TTL_MS, "30s");
        field.wrong(NOT_YET, "no slot_ttl, until concurrency policies are");
    }
    if let Some(field) = policy.get("plans") {
        check_plans(&field);
        field.wrong(
            NOT_YET,
            "one limit for all requests, or a policy for each plan",
        );
    }
    if let Some(field) = policy.get("override") {
        check_overrides(&field, key);
        field.wrong(NOT_YET, "one limit for all subjects");
    }
}

fn check_plans(plans: &Field<'_>) {
    let Some(plans) = plans.table("a table: by, and a limit for each plan") else {
        return;
    };
    const BY: &str = "the name of the attribute that holds the plan";
    if let Some(by) = plans.required("by", BY)
        && let Some(name) = by.text(BY)
        && !limits::is_attribute_name(name)
    {
        by.wrong("not a name of an attribute", BY);
    }
    if plans.len() > limits::MAX_PLANS + 1 {
        let expected = format!("at most {} plans", limits::MAX_PLANS);
        plans.wrong(format!("{} plans", plans.len() - 1), expected);
    }
    for (name, plan) in plans.fields().filter(|&(name, _)| name != "by") {
        if let Some(plan) = plan.table("a table such as { limit = 100, burst = 10 }") {
            if !limits::is_policy_name(name) {
                plan.wrong("not a name of a plan", "1 to 64 of a-z, 0-9, _ and -");
            }
            plan.only(&["limit", "burst"]);
            check_limit_and_burst(&plan);
        }
    }
}

fn check_overrides(overrides: &Field<'_>, key: &[String]) {
    let Some(overrides) = overrides.items("[[policy.override]] tables") else {
        return;
    };
    if overrides.len() > limits::MAX_OVERRIDES {
        let expected = format!("at most {} overrides", limits::MAX_OVERRIDES);
        overrides[0].wrong(format!("{} overrides", overrides.len()), expected);
        return;
    }
    const KEY: &str =
        "a value for each attribute of the policy's key, such as { tenant = \"acme\" }";
    for entry in overrides {
        let Some(entry) = entry.table("a table with key and limit") else {
            continue;
        };
        entry.only(&["key", "limit", "burst"]);
        check_limit_and_burst(&entry);
        if let Some(subject) = entry.required("key", KEY)
            && let Some(subject) = subject.table(KEY)
        {
            for (name, value) in subject.fields() {
                value.text("a string");
                if !key.iter().any(|attribute| attribute == name) {
                    value.wrong("not an attribute of the policy's key", KEY);
                }
            }
            for attribute in key {
                subject.required(attribute, KEY);
            }
        }
    }
}

fn check_limit_and_burst(table: &Table<'_>) {
    if let Some(limit) = table.required("limit", "a number of units") {
        limit.integer(limits::UNITS);
    }
    if let Some(burst) = table.get("burst") {
        burst.integer(limits::UNITS);
    }
}
