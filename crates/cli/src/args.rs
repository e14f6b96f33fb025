//! What the command line takes.

use apportion_core::policy::limits::is_region_name;
use apportion_core::{Attributes, Region};
use apportion_server::dev::MAX_REGIONS;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Names that `dev --regions N` deals out.
const REGION_NAMES: [&str; MAX_REGIONS] = [
    "us-east",
    "eu-west",
    "ap-south",
    "us-west",
    "sa-east",
    "af-south",
    "me-central",
    "ap-north",
];

const LONGEST_WAN_LATENCY: Duration = Duration::from_secs(10);

/// One budget, many regions: a quota allocator that decides locally and never overspends.
#[derive(Debug, Parser)]
#[command(name = "apportion", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole multi-region deployment in this process, on loopback
    ///
    /// The first region listens on 7101 (gRPC), 7201 (HTTP) and 7301 (sync), the next one on 7102, 7202 and 7302,
    /// and so on. Prints a line for each region that serves, then `ready`.
    Dev(DevArgs),
    /// Run one node of one region
    Serve(ServeArgs),
    /// Ask a region whether a request may pass; exits with 0 if it may, 1 if not
    Check(CheckArgs),
    /// Show the state of a region, and of the others as it sees them
    Status(ClientArgs),
    /// Show how the budget of one subject is divided over the regions
    Shares(SharesArgs),
    /// Show what was admitted
    Usage {
        #[command(subcommand)]
        command: UsageCommand,
    },
    /// Close a region for a restart of its store, open it again, or say that it is off for good
    Region {
        #[command(subcommand)]
        command: RegionCommand,
    },
    /// Work with policy files
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Try a policy under simulated traffic and faults
    ///
    /// Runs the regions' own code, with embedded stores, under a simulated network and simulated clocks. Compares what
    /// they admit with what one perfect limiter would have, with static shares, and with one store for all regions.
    /// docs/SIMULATE.md explains the file and the figures.
    Simulate(SimulateArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// List the counters of a policy, or of all, merged over the regions
    List(UsageListArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Stop all decisions of a region, so that its store can be restarted with its data and without loss
    ///
    /// Every other region has to be within reach and open. From then on the region answers 503. Stop its store so that it
    /// saves everything, start it again with that, and the region goes on by itself. Done where it was closed before; exits
    /// with 3 if the region isn't closed, which then goes on deciding.
    Close(ClientArgs),
    /// Let a closed region go on without a restart, or wait until it goes on after one
    ///
    /// Exits with 3 if it is still closed. Done where it is open.
    Open(RegionOpenArgs),
    /// Say that another region's store is off for good
    ///
    /// Its life ends in all regions: roll-outs don't wait for it any more, and if it comes back it begins anew, without a
    /// base. Make sure that it is off: what it still admits is admitted beside the budget that the others take over.
    Retire(RetireArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RetireArgs {
    /// The region that is off
    pub(crate) region: String,

    /// Even if it is within reach
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Say what is wrong with a policy file; exits with 2 if anything is
    Check(PolicyCheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The region's file, such as regions/us-east.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// How many regions (1 to 8), or their names, separated by commas
    #[arg(long, value_name = "N|NAMES", default_value = "us-east,eu-west,ap-south", value_parser = regions)]
    pub(crate) regions: Regions,

    /// The policies; left out, a built-in set that shows every mode
    #[arg(long, value_name = "FILE")]
    pub(crate) policies: Option<PathBuf>,

    /// A Redis for each region, in their order; left out, an embedded store
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) redis: Vec<String>,

    /// Delay of the traffic between regions, one way
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = wan_latency)]
    pub(crate) wan_latency: Duration,

    /// Drive sample traffic that moves from region to region
    #[arg(long)]
    pub(crate) load: bool,
}

/// What every command that asks a region takes.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// HTTP address of the region to ask
    #[arg(
        short,
        long,
        value_name = "URL",
        env = "APPORTION_ADDRESS",
        default_value = "http://127.0.0.1:7201"
    )]
    pub(crate) address: String,

    /// A table for people, or the server's JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct RegionOpenArgs {
    /// Don't wait for regions that are out of reach: go on at once in a new life, as if the store had been lost
    #[arg(long)]
    pub(crate) as_lost: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Attributes of the request
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = pair)]
    pub(crate) attributes: Vec<Pair>,

    /// Units to charge
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cost: u64,

    /// The request's class: policies with priority classes refuse the less important ones first
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<String>,

    /// A name for the request: asked again under it within 10 minutes, it is answered as before and charged once
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,

    /// Ask without charging
    #[arg(long)]
    pub(crate) peek: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SharesArgs {
    /// The policy's name
    pub(crate) policy: String,

    /// Values of the policy's key attributes
    #[arg(value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) key: Vec<Pair>,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UsageListArgs {
    /// The policy's name; left out, all that count usage
    pub(crate) policy: Option<String>,

    /// Values of the policy's key attributes; left out, all subjects
    #[arg(value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) key: Vec<Pair>,

    /// Periods that begin at this time or later, such as 2026-01-31T00:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,

    /// Periods that begin before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyCheckArgs {
    /// The policy file
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The scenario: a policy, traffic and faults, such as docs/examples/flip-and-cut.toml
    pub(crate) file: PathBuf,

    /// The run to begin with: the same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_SEED))]
    pub(crate) seed: u64,

    /// How many runs to sum up (1 to 1000), each of its own seed
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,

    /// Draw what was admitted, and how the budget lay with the regions
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Tables for people, or JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// Leaves room for the seeds after it.
const MAX_SEED: u64 = u64::MAX / 2;

/// One attribute with its value.
pub(crate) type Pair = (String, String);

/// Distinct and at most [`MAX_REGIONS`]. A struct, because clap takes a bare `Vec` for a repeated argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regions(pub(crate) Vec<Region>);

/// The pairs as a map, if no name is given twice.
pub(crate) fn attributes(pairs: Vec<Pair>) -> Result<Attributes, String> {
    let mut attributes = Attributes::new();
    for (name, value) in pairs {
        if attributes.contains_key(&name) {
            return Err(format!("{name} is given twice"));
        }
        attributes.insert(name, value);
    }
    Ok(attributes)
}

fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as tenant=acme".to_owned()),
    }
}

fn regions(text: &str) -> Result<Regions, String> {
    let names: Vec<&str> = match text.parse::<usize>() {
        Ok(count) if (1..=MAX_REGIONS).contains(&count) => REGION_NAMES[..count].to_vec(),
        Ok(_) => return Err(format!("expected 1 to {MAX_REGIONS} regions")),
        Err(_) => text.split(',').collect(),
    };
    if names.len() > MAX_REGIONS {
        return Err(format!("expected 1 to {MAX_REGIONS} regions"));
    }
    for (i, name) in names.iter().enumerate() {
        if !is_region_name(name) {
            return Err(format!(
                "{name:?} is no region's name; expected 1 to 32 characters of a-z, 0-9 and -"
            ));
        }
        if names[..i].contains(name) {
            return Err(format!("{name} is given twice"));
        }
    }
    Ok(Regions(names.into_iter().map(Region::new).collect()))
}

fn wan_latency(text: &str) -> Result<Duration, String> {
    let latency = humantime::parse_duration(text)
        .map_err(|error| format!("expected a duration, such as 80ms: {error}"))?;
    if latency > LONGEST_WAN_LATENCY {
        return Err("expected at most 10s".to_owned());
    }
    Ok(latency)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn regions_are_a_count_or_names() {
        let names = |text: &str| {
            regions(text).map(|Regions(regions)| {
                let names: Vec<_> = regions.iter().map(Region::to_string).collect();
                names.join(" ")
            })
        };
        assert_eq!(names("1").as_deref(), Ok("us-east"));
        assert_eq!(names("3").as_deref(), Ok("us-east eu-west ap-south"));
        assert_eq!(names("tokyo,paris").as_deref(), Ok("tokyo paris"));
        assert_eq!(names("8").map(|n| n.split(' ').count()), Ok(8));
        for bad in ["0", "9", "", "a,,b", "a,a", "Paris", "a,b,c,d,e,f,g,h,i"] {
            assert!(names(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pair_is_split_at_its_first_equals_sign() {
        let split = |text: &str| pair(text).ok();
        let of = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(split("a=b=c"), of("a", "b=c"));
        assert_eq!(split("a="), of("a", ""));
        assert_eq!(split("=b"), None);
        assert_eq!(split("ab"), None);
    }

    #[test]
    fn a_wan_latency_has_a_unit_and_a_bound() {
        assert_eq!(wan_latency("80ms"), Ok(Duration::from_millis(80)));
        assert!(wan_latency("80").is_err());
        assert!(wan_latency("11s").is_err());
    }
}
