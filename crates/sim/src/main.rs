//! `cargo run --release -p apportion-sim -- --seeds 1000`: many seeded runs, with progress and a verdict.

use apportion_sim::{Faults, Setup, run};
use clap::Parser;
use std::process::ExitCode;

/// Seeded runs of simulated regions, each checked against a perfect global limiter.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Which kind of run: calm, network, crashes, losses, clocks, everything, rollouts, regions; all of them by default.
    #[arg(long)]
    kind: Option<String>,
}

#[allow(clippy::print_stdout)]
fn main() -> ExitCode {
    let args = Args::parse();
    let kinds = Setup::kinds();
    let chosen: Vec<_> = kinds
        .iter()
        .filter(|(name, _)| args.kind.as_deref().is_none_or(|kind| kind == *name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
        println!("no such kind; expected one of {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut violations = 0;
    for (name, setup) in chosen {
        let mut sum = (0, 0, 0, 0);
        let (mut undecided, mut rolled_out) = (0, 0);
        for seed in args.from..args.from + args.seeds {
            match run(setup, seed) {
                Ok(outcome) => {
                    sum.0 += outcome.asked;
                    sum.1 += outcome.admitted;
                    sum.2 += outcome.losses;
                    sum.3 += outcome.steps;
                    undecided += outcome.undecided;
                    rolled_out += outcome.rolled_out;
                }
                Err(violation) => {
                    violations += 1;
                    println!(
                        "{name}: seed {seed} at {} ms: {}",
                        violation.at_ms, violation.what
                    );
                }
            }
            if (seed - args.from + 1) % 250 == 0 {
                eprintln!(
                    "{name}: {} of {} seeds, {violations} violations",
                    seed - args.from + 1,
                    args.seeds
                );
            }
        }
        println!(
            "{name}: {} seeds, {} requests, {undecided} undecided, {} units admitted, {} stores lost, {} clocks stepped, \
             {rolled_out} roll-outs at their end",
            args.seeds, sum.0, sum.1, sum.2, sum.3
        );
    }
    println!("{violations} violations");
    if violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

// Keeps the type in the public face that `Setup` is made of.
const _: fn() -> Faults = Faults::default;
