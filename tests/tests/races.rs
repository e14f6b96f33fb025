//! Hundreds of callers race for a hundred units through four nodes on one Redis, and exactly a hundred are admitted, by
//! every algorithm, many times over.

use apportion_tests::start_met;
use chaos::api::{Api, Outcome};
use chaos::{ClusterSpec, StoreKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

const CALLERS: usize = 500;
const NODES: usize = 4;
const LIMIT: u64 = 100;
const TIMES: usize = 50;

/// Periods so long that nothing comes back while it is raced for.
const POLICIES: [(&str, &str); 6] = [
    ("fixed-window", "per = \"366d\""),
    ("sliding-log", "per = \"366d\""),
    ("sliding-window", "per = \"24h\""),
    ("token-bucket", "per = \"366d\""),
    ("gcra", "per = \"366d\""),
    ("concurrency", "slot_ttl = \"24h\"\nmode = \"region\""),
];

/// What became of the callers of one round.
#[derive(Default)]
struct Tally {
    allowed: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
}

#[test]
fn exactly_a_hundred_of_five_hundred_are_admitted_whoever_is_first() {
    let tables: String = POLICIES
        .iter()
        .map(|(algorithm, terms)| {
            format!(
                "[[policy]]\nname = \"{algorithm}\"\nmatch = {{ algorithm = \"{algorithm}\" }}\nkey = [\"tenant\"]\n\
                 algorithm = \"{algorithm}\"\nlimit = {LIMIT}\n{terms}\n\n"
            )
        })
        .collect();
    let spec = ClusterSpec::new(StoreKind::Redis, &tables)
        .regions(&["solo"])
        .nodes_per_region(NODES)
        .probe(&[("algorithm", "gcra"), ("tenant", "probe")]);
    let mut cluster = start_met(&spec);
    let bases: Vec<String> = cluster
        .nodes_mut()
        .map(|node| node.spec().http_url())
        .collect();
    assert_eq!(bases.len(), NODES);

    let rounds: Vec<(&str, usize)> = POLICIES
        .iter()
        .flat_map(|(algorithm, _)| (0..TIMES).map(|time| (*algorithm, time)))
        .collect();
    let tallies: Arc<Vec<Tally>> = Arc::new(rounds.iter().map(|_| Tally::default()).collect());
    let start = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (bases, rounds, tallies, start) = (&bases, &rounds, &tallies, &start);
            scope.spawn(move || {
                let base = &bases[caller % NODES];
                let api = Api::new(BTreeMap::from([("solo".to_owned(), vec![base.clone()])]));
                for ((algorithm, time), tally) in rounds.iter().zip(tallies.iter()) {
                    let tenant = format!("{algorithm}-{time}");
                    let body = json!({"attributes": {"algorithm": algorithm, "tenant": tenant}});
                    start.wait();
                    let count = match api.ask(base, &body).outcome {
                        Outcome::Allowed => &tally.allowed,
                        Outcome::Refused => &tally.refused,
                        _ => &tally.other,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let wrong: Vec<String> = rounds
        .iter()
        .zip(tallies.iter())
        .filter_map(|((algorithm, time), tally)| {
            let [allowed, refused, other] =
                [&tally.allowed, &tally.refused, &tally.other].map(|n| n.load(Ordering::Relaxed));
            let right = allowed == LIMIT && refused == CALLERS as u64 - LIMIT;
            (!right).then(|| format!("{algorithm} {time}: {allowed} {refused} {other}"))
        })
        .collect();
    assert!(wrong.is_empty(), "allowed, refused, other: {wrong:#?}");
}
