//! `cargo run --release -p apportion-sim --bin accuracy -- TABLE`: the figures of docs/ACCURACY.md, made anew.

mod calm;
mod cost;
mod faults;
mod flip;
mod policies;
mod steady;

use clap::{Parser, Subcommand};

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

#[derive(Debug, Clone, Copy, Subcommand)]
enum Table {
    /// Utilisation at demand 1.5 x limit, from even to all in one region; and what others make of it.
    Steady,
    /// How soon shares follow when all demand goes from one region to another.
    Flip,
    /// How much shares move, and how many are refused wrongly, at 80% of the limit.
    Calm,
    /// What a partition costs, against its duration.
    Partition,
    /// What a store that is lost or rolled back costs.
    Loss,
    /// What regions tell each other, in bytes.
    Cost,
}

fn main() {
    let args = Args::parse();
    match args.table {
        Table::Steady => steady::table(args.seeds, &args.only),
        Table::Flip => flip::table(args.seeds, &args.only),
        Table::Calm => calm::table(args.seeds, &args.only),
        Table::Partition => faults::partitions(args.seeds, &args.only),
        Table::Loss => faults::losses(args.seeds, &args.only),
        Table::Cost => cost::table(),
    }
}
