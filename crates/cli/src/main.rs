//! The `apportion` binary: a region's server, a whole deployment for trying things out, and a client of both.
//!
//! Data goes to stdout, all else to stderr. What a command's exit code means is in [`exit`].

mod args;
mod client;
mod commands;
mod exit;
mod run;
mod table;

use args::{Cli, Command, PolicyCommand, RegionCommand, UsageCommand};
use clap::Parser;
use exit::{Exit, Failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    // What clap finds wrong ends the process with 2.
    match dispatch(Cli::parse().command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.print();
            failure.exit.into()
        }
    }
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Serve(args) => run::serve(args),
        Command::Dev(args) => run::dev(args),
        Command::Check(args) => commands::check::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Region {
            command: RegionCommand::Retire(args),
        } => commands::retire::run(args),
        Command::Shares(args) => commands::shares::run(args),
        Command::Usage {
            command: UsageCommand::List(args),
        } => commands::usage::list(args),
        Command::Region {
            command: RegionCommand::Close(args),
        } => commands::region::close(args),
        Command::Region {
            command: RegionCommand::Open(args),
        } => commands::region::open(args),
        Command::Policy {
            command: PolicyCommand::Check(args),
        } => commands::policy::check(args),
        Command::Simulate(args) => commands::simulate::run(args),
    }
}
