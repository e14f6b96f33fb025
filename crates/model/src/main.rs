//! `cargo run --release -p apportion-model`: the larger spaces, with progress and a verdict.

use apportion_model::check::{Effort, Protocol, check, shortest};
use apportion_model::first_life::FirstLifeModel;
use apportion_model::loans::LoansModel;
use apportion_model::revisions::RevisionsModel;
use apportion_model::transfers::TransfersModel;
use clap::Parser;
use std::fmt::Debug;
use std::hash::Hash;
use std::process::ExitCode;
use std::time::Duration;

/// Looks at every state that a protocol can be in, within bounds.
#[derive(Debug, Parser)]
struct Args {
    /// loans, transfers, first-life or revisions; all by default.
    model: Option<String>,
    /// Makes mistakes and shows that they are found: all of the model's, or the one of this name, step by step.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "all")]
    planted: Option<String>,
    /// The spaces of the tests, not the larger ones.
    #[arg(long)]
    small: bool,
    /// One space only: the smallest, with these bounds changed (ticks=6, say).
    #[arg(long = "set", value_name = "BOUND=NUMBER", value_parser = bound)]
    bounds: Vec<(String, u8)>,
    /// The same as --set regions=NUMBER.
    #[arg(long)]
    regions: Option<u8>,
    /// Give up on a space at so many states.
    #[arg(long)]
    states_max: Option<usize>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

type Run = fn(&Args) -> Result<bool, String>;

fn bound(text: &str) -> Result<(String, u8), String> {
    let (name, value) = text.split_once('=').ok_or("expected BOUND=NUMBER")?;
    let value = value.parse().map_err(|_| "expected a number up to 255")?;
    Ok((name.into(), value))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runs: [(&str, Run); 4] = [
        (LoansModel::NAME, run::<LoansModel>),
        (TransfersModel::NAME, run::<TransfersModel>),
        (FirstLifeModel::NAME, run::<FirstLifeModel>),
        (RevisionsModel::NAME, run::<RevisionsModel>),
    ];
    let is_asked = |name: &str| args.model.as_deref().is_none_or(|model| model == name);
    let mut verdict = None;
    for (_, run) in runs.iter().filter(|(name, _)| is_asked(name)) {
        match run(&args) {
            Ok(holds) => verdict = Some(holds && verdict.unwrap_or(true)),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::from(2);
            }
        }
    }
    match verdict {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => {
            eprintln!(
                "no such model; expected one of {}",
                runs.map(|(name, _)| name).join(", ")
            );
            ExitCode::from(2)
        }
    }
}

/// Whether all went as it should.
#[allow(clippy::print_stdout)]
fn run<P: Protocol>(args: &Args) -> Result<bool, String>
where
    P::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    P::Action: Clone + Debug + PartialEq,
{
    if let Some(name) = &args.planted {
        return planted::<P>(name);
    }
    let mut holds = true;
    for bounds in spaces::<P>(args)? {
        println!("{}: {bounds:?}", P::NAME);
        let effort = Effort {
            threads: args.threads.max(1),
            states_max: args.states_max,
            steps_max: None,
            progress: Duration::from_secs(10),
        };
        let outcome = check(P::new(bounds, None), effort, |states, depth| {
            eprintln!("{}: {states} states, depth {depth}", P::NAME);
        });
        print!("{outcome}");
        holds &= outcome.holds();
    }
    Ok(holds)
}

fn spaces<P: Protocol>(args: &Args) -> Result<Vec<P::Bounds>, String>
where
    P::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    P::Action: Clone + Debug + PartialEq,
{
    let regions = args.regions.map(|n| ("regions".to_owned(), n));
    let mut changed = args.bounds.iter().cloned().chain(regions).peekable();
    if changed.peek().is_none() {
        return Ok(if args.small { P::small() } else { P::large() });
    }
    let smallest = P::small()[0];
    let bounds = changed.try_fold(smallest, |bounds, (name, value)| {
        P::set(bounds, &name, value)
            .ok_or_else(|| format!("{} has no bound {name}: {smallest:?}", P::NAME))
    })?;
    Ok(vec![bounds])
}

#[allow(clippy::print_stdout)]
fn planted<P: Protocol>(name: &str) -> Result<bool, String>
where
    P::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    P::Action: Clone + Debug + PartialEq,
{
    let is_asked = |bug: &&P::Planted| name == "all" || name == format!("{bug:?}");
    let bugs: Vec<_> = P::planted().iter().filter(is_asked).collect();
    if bugs.is_empty() {
        let names: Vec<_> = P::planted().iter().map(|bug| format!("{bug:?}")).collect();
        return Err(format!(
            "{} has no such mistake; it has {}",
            P::NAME,
            names.join(", ")
        ));
    }
    let mut all = true;
    for bug in bugs {
        let bounds = P::shows_in(*bug);
        let outcome = shortest(P::new(bounds, Some(*bug)));
        match outcome.steps() {
            Some(steps) => println!("{} {bug:?}: found in {steps} steps", P::NAME),
            None => println!("{} {bug:?}: not found in {bounds:?}", P::NAME),
        }
        if name != "all" {
            print!("{outcome}");
        }
        all &= outcome.steps().is_some();
    }
    Ok(all)
}
