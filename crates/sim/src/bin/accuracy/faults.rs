//! Regions that are cut off, and stores that forget.

use crate::plot::{Curve, Panel};
use crate::policies::{demand, policies, runs, setup};
use apportion_sim::measure::{Ground, admitted, settles_ms};
use apportion_sim::perfect::Other;
use apportion_sim::{Fault, Scripted, Setup};

const LIMIT: u64 = 100;
const PRESSURE: f64 = 1.5;
const BEGINS_MS: u64 = 45_000;
const AFTER_MS: u64 = 60_000;
const RECOVERED: f64 = 0.95;
const TOLERANCES: [(&str, &str); 3] = [
    ("never-over", ""),
    ("over by 10%", "tolerance = { over = \"10%\" }\n"),
    ("never-under", "tolerance = \"never-under\"\n"),
];
const SKEWS: [(&str, [f64; 3]); 2] = [("3:2:1", [3.0, 2.0, 1.0]), ("all in a", [1.0, 0.0, 0.0])];
const LASTS_S: [u64; 7] = [1, 2, 5, 10, 20, 40, 80];

/// What came of a fault.
struct Price {
    /// What was admitted beyond what a perfect limiter could have, as a part of what it would have from the fault on.
    over: f64,
    /// The part of what a perfect limiter would have admitted while the fault lasted that wasn't.
    stranded: f64,
    /// The same from its end on, in units.
    after: f64,
    recovered_ms: Option<u64>,
}

fn price(setup: &Setup, seeds: u64, ends_ms: u64) -> Price {
    let ground = Ground::of(setup);
    let end = setup.duration_ms;
    let (mut over, mut during, mut later) = (0, [0u64; 2], [0u64; 2]);
    let runs: Vec<_> = runs(setup, seeds)
        .into_iter()
        .map(|outcome| {
            let asked = outcome.record.asked.clone();
            let ours = admitted(&outcome.record);
            let perfect = ground.admits(Other::Central, &asked);
            over += ground.verdict(&asked, &ours, 0..end).over;
            for (admitted, sums) in [(&ours, 0), (&perfect, 1)] {
                let of = |within| ground.verdict(&asked, admitted, within).admitted;
                during[sums] += of(BEGINS_MS..ends_ms);
                later[sums] += of(ends_ms..end);
            }
            (asked, perfect)
        })
        .collect();
    Price {
        over: over as f64 / (during[1] + later[1]).max(1) as f64,
        stranded: 1.0 - during[0] as f64 / during[1].max(1) as f64,
        after: (later[1] as f64 - later[0] as f64) / seeds as f64,
        recovered_ms: settles_ms(&runs, ends_ms..end, RECOVERED),
    }
}

fn seconds(ms: Option<u64>) -> String {
    ms.map_or("later than 55 s".into(), |ms| {
        format!("{:.1} s", ms as f64 / 1_000.0)
    })
}

/// Prints the table, and hands back the curves of its first policy.
#[allow(clippy::print_stdout)]
pub(crate) fn partitions(seeds: u64, only: &str) -> Vec<Panel> {
    println!(
        "| policy | tolerance | demand | a is cut off for | beyond the limit | unused meanwhile | 95% again after |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut panels = Vec::new();
    for (name, policy) in policies(LIMIT).iter().filter(|(n, _)| n.contains(only)) {
        let mut curves: [[Vec<Curve>; 2]; 2] = Default::default();
        for (tolerance, line) in TOLERANCES {
            for ((skew, weights), curves) in SKEWS.into_iter().zip(&mut curves) {
                let (mut over, mut unused) = (Vec::new(), Vec::new());
                for lasts_s in LASTS_S {
                    let ends_ms = BEGINS_MS + lasts_s * 1_000;
                    let cut = Scripted {
                        at_ms: BEGINS_MS,
                        until_ms: ends_ms,
                        fault: Fault::CutOff(0),
                    };
                    let setup = faulty(&format!("{policy}{line}"), weights, ends_ms, cut);
                    let price = price(&setup, seeds, ends_ms);
                    over.push((lasts_s as f64, price.over * 100.0));
                    unused.push((lasts_s as f64, price.stranded * 100.0));
                    println!(
                        "| {name} | {tolerance} | {skew} | {lasts_s} s | {:.1}% | {:.1}% | {} |",
                        price.over * 100.0,
                        price.stranded * 100.0,
                        seconds(price.recovered_ms)
                    );
                }
                for (curves, points) in curves.iter_mut().zip([over, unused]) {
                    curves.push(Curve { tolerance, points });
                }
            }
        }
        if panels.is_empty() {
            for ((skew, _), [over, unused]) in SKEWS.into_iter().zip(curves) {
                let panel = |what: &str, curves| Panel {
                    title: format!("{name}, {skew}: {what}"),
                    curves,
                };
                panels.push(panel("beyond the limit", over));
                panels.push(panel("unused meanwhile", unused));
            }
        }
    }
    panels
}

#[allow(clippy::print_stdout)]
pub(crate) fn losses(seeds: u64, only: &str) {
    println!(
        "| policy | demand | the store of a | beyond the limit | unused in the minute after, of 6,000 units | 95% again after |"
    );
    println!("|---|---|---|---|---|---|");
    let faults = [
        ("restarts empty", Fault::LoseStore(0)),
        ("goes back 100 ms (some 15 writes)", Fault::RollBack(0, 100)),
        ("goes back 1 s (some 150 writes)", Fault::RollBack(0, 1_000)),
        (
            "goes back 10 s (some 1,500 writes)",
            Fault::RollBack(0, 10_000),
        ),
    ];
    for (name, policy) in policies(LIMIT).iter().filter(|(n, _)| n.contains(only)) {
        for (skew, weights) in SKEWS {
            for (what, fault) in &faults {
                let fault = Scripted {
                    at_ms: BEGINS_MS,
                    until_ms: BEGINS_MS,
                    fault: fault.clone(),
                };
                let setup = faulty(policy, weights, BEGINS_MS, fault);
                let price = price(&setup, seeds, BEGINS_MS);
                println!(
                    "| {name} | {skew} | {what} | {:.1}% | {:.0} | {} |",
                    price.over * 100.0,
                    price.after,
                    seconds(price.recovered_ms)
                );
            }
        }
    }
}

fn faulty(policy: &str, weights: [f64; 3], ends_ms: u64, fault: Scripted) -> Setup {
    let sum: f64 = weights.iter().sum();
    let rates = weights.map(|w| w / sum * LIMIT as f64 * PRESSURE);
    let end = ends_ms + AFTER_MS;
    let mut setup = setup(policy, demand(&rates, 1_000, end), end);
    if let Some(stated) = &mut setup.stated {
        stated.faults.push(fault);
    }
    setup
}
