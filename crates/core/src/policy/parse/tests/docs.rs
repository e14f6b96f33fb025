//! `docs/POLICIES.md` says what the parser does.

use super::*;

/// The policy that `docs/POLICIES.md` speaks of, with the lines that a row of its table changes or adds.
fn as_in_the_docs(lines: &[&str]) -> String {
    let name = |line: &str| line.split(" = ").next().unwrap_or_default().to_owned();
    let usual = [
        "name = \"api\"",
        "match = { route = \"/v1/*\" }",
        "key = [\"tenant\"]",
        "algorithm = \"token-bucket\"",
        "limit = 1000",
        "per = \"1m\"",
        "burst = 200",
    ];
    let is = |kind: &str| lines.contains(&&*format!("algorithm = {kind:?}"));
    let bucket = !lines.iter().any(|line| name(line) == "algorithm") || is("gcra");
    let means_nothing = |name: &str| match name {
        "burst" => !bucket,
        "per" => is("concurrency"),
        _ => false,
    };
    let kept = usual
        .iter()
        .filter(|line| !lines.iter().any(|l| name(l) == name(line)) && !means_nothing(&name(line)));
    let all: Vec<_> = kept.chain(lines).copied().collect();
    format!(
        "regions = [\"us-east\", \"eu-west\"]\n[[policy]]\n{}\n",
        all.join("\n")
    )
}

#[test]
fn the_docs_say_of_each_mistake_what_is_told_of_it() {
    let docs = include_str!("../../../../../../docs/POLICIES.md");
    let table = docs
        .split("| you write | you are told |\n|---|---|\n")
        .nth(1)
        .unwrap();
    let mut rows = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [written, told] = cells[..] else {
            panic!("two cells: {row}");
        };
        let lines: Vec<_> = written
            .split("<br>")
            .map(|line| line.trim_matches('`'))
            .collect();
        let text = as_in_the_docs(&lines);
        let errors = parse(&text).expect_err(row);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        // Without file, line and policy.
        let said: Vec<_> = errors
            .iter()
            .filter_map(|e| e.splitn(3, ": ").nth(2))
            .collect();
        assert_eq!(said, [told.trim_matches('`')], "{text}");
        rows += 1;
    }
    assert!(rows > 30, "{rows}");
}
