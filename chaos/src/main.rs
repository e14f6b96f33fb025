//! Plays chaos scenarios on real processes: exit 0 where every promise held, 1 where one broke, 2 where it couldn't run.

#![allow(
    clippy::print_stdout,
    reason = "the report is this program's output; talk goes to stderr"
)]

use chaos::scenario::{CATALOGUE, Report, Scenario, run};
use chaos::{Error, StoreKind};
use clap::{Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "Plays faults on real apportion and redis-server processes")]
struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Plays one scenario, and prints its report as JSON
    Run {
        scenario: String,
        /// Draws what is left to chance; a fresh one is printed if left out
        #[arg(long)]
        seed: Option<u64>,
        /// Also writes the report into this folder
        #[arg(long, value_name = "DIR")]
        report: Option<PathBuf>,
        /// Instead of the scenario's own
        #[arg(long)]
        store: Option<Store>,
    },
    /// Lists the scenarios
    List,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Store {
    Memory,
    Redis,
}

fn main() -> ExitCode {
    match act(Args::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}

fn act(action: Action) -> Result<bool, Error> {
    match action {
        Action::List => {
            for scenario in CATALOGUE {
                println!("{:<20} {}", scenario.name, scenario.about);
            }
            Ok(true)
        }
        Action::Run {
            scenario,
            seed,
            report,
            store,
        } => {
            let scenario = Scenario::named(&scenario).ok_or_else(|| {
                let names: Vec<_> = CATALOGUE.iter().map(|scenario| scenario.name).collect();
                Error::Scenario(format!(
                    "there is no scenario {scenario:?}, but {}",
                    names.join(", ")
                ))
            })?;
            let store = match store {
                None => scenario.store,
                Some(Store::Memory) => StoreKind::Memory,
                Some(Store::Redis) => StoreKind::Redis,
            };
            let seed = seed.unwrap_or_else(rand::random);
            eprintln!("{}: {} (seed {seed})", scenario.name, scenario.about);
            let result = run(scenario, store, seed, &|line| eprintln!("{line}"))?;
            publish(&result, report.as_deref())?;
            Ok(result.passed)
        }
    }
}

fn publish(result: &Report, dir: Option<&Path>) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(result)
        .map_err(|error| Error::Scenario(format!("write the report: {error}")))?;
    println!("{text}");
    if let Some(dir) = dir {
        let path = dir.join(format!("{}-{}.json", result.scenario, result.seed));
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&path, text + "\n"))
            .map_err(Error::io(format!("write {}", path.display())))?;
        eprintln!("the report is in {}", path.display());
    }
    for violation in &result.violations {
        eprintln!("BROKEN  {violation}");
    }
    eprintln!(
        "{}: {} in {:.0} s (seed {})",
        result.scenario,
        if result.passed { "passed" } else { "FAILED" },
        result.seconds,
        result.seed
    );
    Ok(())
}
