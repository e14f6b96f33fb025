//! Files of policies that replace each other during a run: drawn from the seed, each a revision of the one before.

use apportion_core::PolicySet;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::fmt::Write as _;
use std::sync::Arc;

/// What changes from one file to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollouts {
    /// So many files after the first; 0: the file is the same throughout.
    pub files: usize,
    /// A fourth region joins with one of them, and another one goes for good with a later one.
    pub regions_move: bool,
}

/// Name, algorithm and limits to choose from.
const POLICIES: [(&str, &str, [u64; 3]); 7] = [
    (
        "day",
        "algorithm = \"fixed-window\"\nper = \"day\"\nusage = \"1h\"",
        [60, 100, 201],
    ),
    (
        "short",
        "algorithm = \"fixed-window\"\nper = \"10s\"",
        [30, 61, 120],
    ),
    (
        "rate",
        "algorithm = \"token-bucket\"\nper = \"1m\"\nusage = \"1h\"",
        [120, 240, 600],
    ),
    ("gcra", "algorithm = \"gcra\"\nper = \"1m\"", [90, 180, 400]),
    (
        "log",
        "algorithm = \"sliding-log\"\nper = \"25s\"\nusage = \"1h\"",
        [30, 60, 121],
    ),
    (
        "cells",
        "algorithm = \"sliding-window\"\nper = \"25s\"",
        [30, 60, 121],
    ),
    (
        "classic",
        "algorithm = \"sliding-window\"\nbuckets = 1\nper = \"20s\"",
        [25, 50, 100],
    ),
];

impl Rollouts {
    /// The files of one run, oldest first.
    pub(crate) fn draw(self, rng: &mut SmallRng) -> Vec<Arc<PolicySet>> {
        let mut regions = vec!["a", "b", "c"];
        let mut number = 1;
        let mut limits: Vec<(u64, u64)> = POLICIES
            .iter()
            .map(|(.., all)| (all[1], all[1] / 4))
            .collect();
        let mut weights: Vec<[u64; 4]> = vec![[1; 4]; POLICIES.len()];
        let mut files = Vec::new();
        for file in 0..=self.files {
            if file > 0 {
                // Now and then a number is left out.
                number += if rng.random_ratio(1, 8) { 2 } else { 1 };
                for (i, (.., all)) in POLICIES.iter().enumerate() {
                    if rng.random_ratio(1, 2) {
                        let limit = *all.choose(rng).expect("there are limits");
                        limits[i] = (limit, limit / rng.random_range(2..6));
                    }
                    if rng.random_ratio(1, 2) {
                        weights[i] = std::array::from_fn(|_| rng.random_range(0..4));
                        weights[i][0] += 1;
                    }
                }
            }
            if self.regions_move && file == 1 {
                regions.push("d");
            }
            if self.regions_move && file == 2 {
                regions.remove(1);
            }
            files.push(text(number, &regions, &limits, &weights));
        }
        let parse =
            |text: String| PolicySet::parse(&text, "drawn").expect("what is drawn is valid");
        files.into_iter().map(parse).map(Arc::new).collect()
    }
}

fn text(number: u64, regions: &[&str], limits: &[(u64, u64)], weights: &[[u64; 4]]) -> String {
    let mut text = format!("revision = {number}\nregions = {regions:?}\n");
    for (((name, rest, _), (limit, burst)), weights) in POLICIES.iter().zip(limits).zip(weights) {
        let weights: Vec<String> = regions
            .iter()
            .map(|r| format!("{r} = {}", weights[usize::from(r.as_bytes()[0] - b'a')]))
            .collect();
        let is_bucket = rest.contains("bucket\"") || rest.contains("gcra");
        let _written = write!(
            text,
            "\n[[policy]]\nname = \"{name}\"\nkey = [\"tenant\"]\n{rest}\nlimit = {limit}\nweights = {{ {} }}\n",
            weights.join(", "),
        );
        if is_bucket {
            let _written = writeln!(text, "burst = {burst}");
        }
    }
    text
}
