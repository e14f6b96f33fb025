//! `cargo run --release -p apportion-sim --bin accuracy -- TABLE`: the figures of docs/ACCURACY.md, made anew.

mod calm;
mod cost;
mod faults;
mod flip;
mod plot;
mod policies;
mod steady;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures simulated regions against a perfect global limiter. Tables go to stdout, as Markdown.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    table: Table,
    /// How many seeds each figure rests on.
    #[arg(long, global = true, default_value_t = 10)]
    seeds: u64,
    /// Only policies whose name contains this.
    #[arg(long, global = true, default_value = "")]
    only: String,
}

#[derive(Debug, Subcommand)]
enum Table {
    /// Utilisation at demand 1.5 x limit, from even to all in one region; and what others make of it.
    Steady,
    /// How soon shares follow when all demand goes from one region to another.
    Flip,
    /// How much shares move, and how many are refused wrongly, at 80% of the limit.
    Calm,
    /// What a partition costs, against its duration.
    Partition {
        /// Draws the first policy of them to this file, as an SVG.
        #[arg(long, value_name = "FILE")]
        plot: Option<PathBuf>,
    },
    /// What a store that is lost or rolled back costs.
    Loss,
    /// What regions tell each other, in bytes.
    Cost,
}

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let args = Args::parse();
    match args.table {
        Table::Steady => steady::table(args.seeds, &args.only),
        Table::Flip => flip::table(args.seeds, &args.only),
        Table::Calm => calm::table(args.seeds, &args.only),
        Table::Partition { plot } => {
            let panels = faults::partitions(args.seeds, &args.only);
            let title = "What a partition costs: one region of three is cut off";
            if let Some(path) = plot
                && let Err(error) = plot::write(&path, title, &panels)
            {
                eprintln!("{}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
        Table::Loss => faults::losses(args.seeds, &args.only),
        Table::Cost => cost::table(),
    }
    ExitCode::SUCCESS
}
