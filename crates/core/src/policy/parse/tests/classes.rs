//! Priority and pools.

use super::*;

const ONE: &str = "expected either refuse_below, such as \"20%\", or exempt = true";
const PART: &str =
    "expected a percentage from 0% to 99%, of at most four decimals, such as \"20%\"";

/// `priority = [...]`, all on line 8.
fn classes(list: &str) -> String {
    format!("priority = [{list}]")
}

#[test]
fn classes_are_read_in_their_order() {
    let policy = read_with(
        "[[policy.priority]]\nclass = \"health\"\nexempt = true\n\
         [[policy.priority]]\nclass = \"interactive\"\nrefuse_below = \"0%\"\n\
         [[policy.priority]]\nclass = \"mail\"\nrefuse_below = \"12.3456%\"\n\
         [[policy.priority]]\nclass = \"report\"\nrefuse_below = \"12.3456%\"\n\
         [[policy.priority]]\nclass = \"batch\"\nrefuse_below = \"99%\"",
    );
    let read: Vec<_> = policy
        .classes
        .iter()
        .map(|c| (&*c.name, c.standing))
        .collect();
    assert_eq!(
        read,
        [
            ("health", Standing::Exempt),
            ("interactive", Standing::Leaves { ppm: 0 }),
            ("mail", Standing::Leaves { ppm: 123_456 }),
            ("report", Standing::Leaves { ppm: 123_456 }),
            ("batch", Standing::Leaves { ppm: 990_000 }),
        ]
    );
}

#[test]
fn a_class_that_is_not_understood_is_an_error() {
    for (list, expected) in [
        (
            "{ class = \"a\" }",
            format!("8 priority[0]: neither refuse_below nor exempt; {ONE}"),
        ),
        (
            "{ class = \"a\", refuse_below = \"1%\", exempt = true }",
            format!("8 priority[0].exempt: refuse_below is given as well; {ONE}"),
        ),
        (
            "{ class = \"a\", exempt = false }",
            format!("8 priority[0].exempt: false says nothing; {ONE}"),
        ),
        (
            "{ refuse_below = \"1%\" }",
            "8 priority[0].class: missing; expected 1 to 64 of a-z, 0-9, _ and -".into(),
        ),
        (
            "{ class = \"A\", refuse_below = \"1%\" }",
            "8 priority[0].class: \"A\" is no name for a class; expected 1 to 64 of a-z, 0-9, _ and -".into(),
        ),
        (
            "{ class = \"a\", refuse_below = \"1%\" }, { class = \"a\", refuse_below = \"2%\" }",
            "8 priority[1].class: \"a\" is the class on line 8 as well; expected names that differ".into(),
        ),
        (
            "{ class = \"a\", exempt = true }",
            "8 priority: no class is limited; expected at least one class with refuse_below, such as \"0%\"".into(),
        ),
        (
            "",
            "8 priority: no class is limited; expected at least one class with refuse_below, such as \"0%\"".into(),
        ),
        (
            "{ class = \"a\", refuse_below = 20 }",
            format!("8 priority[0].refuse_below: 20 is a number; {PART}"),
        ),
        (
            "{ class = \"a\", refuse_below = \"1%\", per = 1 }",
            "8 priority[0].per: unknown key; expected one of class, refuse_below, exempt".into(),
        ),
        (
            "{ class = \"a\", refuse_below = \"20.5%\" }, { class = \"b\", exempt = true }, { class = \"c\", refuse_below = \"20%\" }",
            "8 priority[2].refuse_below: less than that of \"a\", the class before; expected at least 20.5%: the most important class comes first".into(),
        ),
    ] {
        assert_added_is_refused(&classes(list), &[&expected]);
    }
    for part in [
        "99.0001%", "100%", "-1%", "1.00001%", "1", "%", ".5%", "1.%",
    ] {
        assert_added_is_refused(
            &classes(&format!("{{ class = \"a\", refuse_below = {part:?} }}")),
            &[&format!(
                "8 priority[0].refuse_below: {part:?} is no such percentage; {PART}"
            )],
        );
    }
}

#[test]
fn there_are_at_most_sixteen_classes() {
    let list = |count: usize| {
        let class = |i| format!("{{ class = \"c{i}\", refuse_below = \"1%\" }}");
        classes(&(0..count).map(class).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(read_with(&list(16)).classes.len(), 16);
    assert_added_is_refused(&list(17), &["8 priority: 17 classes; expected at most 16"]);
}

#[test]
fn a_pool_has_members_by_an_attribute_in_composed_form() {
    let pool = |added: &str| read_with(added).pool.unwrap();
    let read = pool("pool = { by = \"team\", weights = { search = 4, \"cafe\u{301}\" = 2 } }");
    assert_eq!(read.by, "team");
    assert_eq!(read.default_weight, 1);
    let weight = |name| read.weight_of(name);
    assert_eq!(
        [weight("search"), weight("caf\u{e9}"), weight("")],
        [4, 2, 1]
    );
    let read = pool("[policy.pool]\nby = \"team\"\ndefault_weight = 3");
    assert_eq!(read.weight_of("search"), 3);
    only(&of_kind(
        "gcra",
        "limit = 9\nper = \"1m\"\npool = { by = \"team\" }",
    ));
}

#[test]
fn a_pool_that_is_not_understood_is_an_error() {
    const WEIGHT: &str = "expected a whole number from 1 to 1000000";
    let many: Vec<_> = (0..10_001).map(|i| format!("m{i} = 1")).collect();
    for (pool, expected) in [
        (
            "{}".to_owned(),
            "8 pool.by: missing; expected the name of the attribute that tells the members apart".to_owned(),
        ),
        (
            "{ by = \"tenant\" }".into(),
            "8 pool.by: \"tenant\" is in key, so that each has a budget of its own; expected an attribute that isn't in key".into(),
        ),
        (
            "{ by = \"a b\" }".into(),
            "8 pool.by: \"a b\" is no name for an attribute; expected a name of 1 to 64 printable ASCII characters without spaces or =".into(),
        ),
        (
            "{ by = \"team\", default_weight = 0 }".into(),
            format!("8 pool.default_weight: 0 is too small; {WEIGHT}"),
        ),
        (
            "{ by = \"team\", weights = { a = 1000001 } }".into(),
            format!("8 pool.weights.a: 1000001 is too large; {WEIGHT}"),
        ),
        (
            "{ by = \"team\", weight = 1 }".into(),
            "8 pool.weight: unknown key, did you mean \"weights\"?; expected one of by, default_weight, weights".into(),
        ),
        (
            format!("{{ by = \"team\", weights = {{ {} }} }}", many.join(", ")),
            "8 pool.weights: 10001 weights; expected at most 10000".into(),
        ),
        (
            "{ by = \"team\", weights = { \"\u{e9}\" = 1, \"e\u{301}\" = 2 } }".into(),
            "8 pool.weights.\"\u{e9}\": the same member in composed form twice; expected members that differ".into(),
        ),
    ] {
        assert_added_is_refused(&format!("pool = {pool}"), &[&expected]);
    }
    for (kind, rest) in [
        ("fixed-window", "per = \"1m\""),
        ("sliding-log", "per = \"1m\""),
        ("sliding-window", "per = \"1m\""),
        ("concurrency", "mode = \"region\"\nslot_ttl = \"30s\""),
    ] {
        let text = of_kind(
            kind,
            &format!("limit = 9\npool = {{ by = \"team\" }}\n{rest}"),
        );
        assert_api_is_refused(
            &text,
            &[
                "7 pool: what is short is dealt as it comes in, and this algorithm has nothing that comes in bit by bit; expected a pool with \"token-bucket\" or \"gcra\" alone",
            ],
        );
    }
}
