//! `cargo run --release -p apportion-sim --bin sim -- --seeds 1000000 --jobs 2`: many seeded runs, with progress and a
//! verdict; `--seed N` replays one.

use apportion_sim::{Setup, Violation, run, trace};
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeded runs of simulated regions, each checked against a perfect global limiter.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Which kind of run. By default the kinds take turns, from seed to seed.
    #[arg(long)]
    kind: Option<String>,
    /// Replay this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// With --seed: tell what happens, line by line, on stderr.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// How many threads run seeds.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Switch this bug on, and stop at the first violation.
    #[cfg(feature = "planted")]
    #[arg(long)]
    planted: Option<String>,
}

/// What the threads share.
struct Shared {
    kinds: Vec<(&'static str, Setup)>,
    /// The kind that was asked for.
    kind: Option<usize>,
    next: AtomicU64,
    end: AtomicU64,
    done: AtomicU64,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    of_kinds: BTreeMap<usize, Sum>,
    violations: u64,
}

#[derive(Default)]
struct Sum {
    runs: u64,
    asked: u64,
    admitted: u64,
    losses: u64,
    steps: u64,
    /// Of the thread that ran them.
    cpu: Duration,
}

/// A progress line at most so often where the output is no terminal, which would keep them all.
const LINE_EVERY: Duration = Duration::from_secs(30);

#[allow(clippy::print_stdout)]
fn main() -> ExitCode {
    let args = Args::parse();
    let kinds = Setup::kinds();
    let position = |name: &str| kinds.iter().position(|(kind, _)| *kind == name);
    let kind = match args.kind.as_deref().map(|name| (name, position(name))) {
        Some((name, None)) => {
            let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
            eprintln!("no kind {name:?}; expected one of {}", names.join(", "));
            return ExitCode::from(2);
        }
        Some((_, kind)) => kind,
        None => None,
    };
    #[cfg(feature = "planted")]
    let bug = match args.planted.as_deref().map(|name| (name, planted(name))) {
        Some((name, None)) => {
            eprintln!("no planted bug {name:?}; expected one of {}", bugs());
            return ExitCode::from(2);
        }
        Some((_, bug)) => bug,
        None => None,
    };
    let (from, seeds) = args.seed.map_or((args.from, args.seeds), |seed| (seed, 1));
    let shared = Shared {
        kinds,
        kind,
        next: AtomicU64::new(from),
        end: AtomicU64::new(from + seeds),
        done: AtomicU64::new(0),
        sums: Mutex::default(),
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.clamp(1, seeds.max(1)) {
            scope.spawn(|| {
                #[cfg(feature = "planted")]
                apportion_core::planted::plant(bug);
                while let Some(seed) = shared.take() {
                    shared.run(seed, args.trace);
                    #[cfg(feature = "planted")]
                    if bug.is_some() && shared.violations() > 0 {
                        shared.end.store(0, Ordering::Relaxed);
                    }
                }
            });
        }
        let is_watched = std::io::stderr().is_terminal();
        let mut told = began;
        while shared.done.load(Ordering::Relaxed) < seeds && shared.end.load(Ordering::Relaxed) > 0
        {
            std::thread::sleep(
                Duration::from_millis(200).min(began.elapsed().max(Duration::from_millis(5))),
            );
            if is_watched {
                eprint!("\r{}   ", shared.progress(seeds, began));
            } else if told.elapsed() >= LINE_EVERY {
                told = Instant::now();
                eprintln!("{}", shared.progress(seeds, began));
            }
        }
        if is_watched {
            eprintln!();
        }
    });
    let cpu = shared.totals();
    let done = shared.done.load(Ordering::Relaxed);
    let violations = shared.violations();
    println!(
        "{done} runs in {:.1} s, {:.2} ms of processor time each, {violations} violations",
        began.elapsed().as_secs_f64(),
        per_run_ms(cpu, done),
    );
    if violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(feature = "planted")]
fn planted(name: &str) -> Option<apportion_core::planted::Bug> {
    let mut all = apportion_core::planted::Bug::ALL.into_iter();
    all.find(|bug| format!("{bug:?}") == name)
}

#[cfg(feature = "planted")]
fn bugs() -> String {
    let all = apportion_core::planted::Bug::ALL.into_iter();
    let names: Vec<String> = all.map(|bug| format!("{bug:?}")).collect();
    names.join(", ")
}

impl Shared {
    fn take(&self) -> Option<u64> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        (seed < self.end.load(Ordering::Relaxed)).then_some(seed)
    }

    fn violations(&self) -> u64 {
        self.lock().violations
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.sums.lock().expect("no thread panics with the sums")
    }

    #[allow(clippy::print_stdout)]
    fn run(&self, seed: u64, told: bool) {
        let which = self
            .kind
            .unwrap_or_else(|| Setup::of_seed(seed, &self.kinds));
        let (kind, setup) = &self.kinds[which];
        let began = cpu_time();
        let result = catch_unwind(|| {
            if told {
                trace(setup, seed, |line| eprintln!("{line}"))
            } else {
                run(setup, seed)
            }
        });
        // What it said is on stderr.
        let result = result.unwrap_or_else(|_| {
            Err(Violation {
                seed,
                at_ms: 0,
                what: "it panicked".into(),
            })
        });
        let cpu = cpu_time().saturating_sub(began);
        let mut sums = self.lock();
        let sum = sums.of_kinds.entry(which).or_default();
        sum.runs += 1;
        sum.cpu += cpu;
        match result {
            Ok(outcome) => {
                sum.asked += outcome.asked;
                sum.admitted += outcome.admitted;
                sum.losses += outcome.losses;
                sum.steps += outcome.steps;
            }
            Err(Violation { at_ms, what, .. }) => {
                sums.violations += 1;
                println!("--kind \"{kind}\" --seed {seed}: at {at_ms} ms: {what}");
            }
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn progress(&self, seeds: u64, began: Instant) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let rate = done as f64 / began.elapsed().as_secs_f64();
        let left = match done {
            0 => "?".to_owned(),
            _ => format!("{:.0}", (seeds - done.min(seeds)) as f64 / rate),
        };
        let violations = self.violations();
        format!("{done}/{seeds} runs, {rate:.0}/s, {left} s left, {violations} violations")
    }

    /// What came of each kind. Returns the processor time of all.
    #[allow(clippy::print_stdout)]
    fn totals(&self) -> Duration {
        let sums = self.lock();
        for (which, sum) in &sums.of_kinds {
            let (kind, _) = &self.kinds[*which];
            println!(
                "{kind}: {} runs of {:.2} ms, {} requests, {} units admitted, {} stores lost, {} clocks stepped",
                sum.runs,
                per_run_ms(sum.cpu, sum.runs),
                sum.asked,
                sum.admitted,
                sum.losses,
                sum.steps
            );
        }
        sums.of_kinds.values().map(|sum| sum.cpu).sum()
    }
}

/// Processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn per_run_ms(cpu: Duration, runs: u64) -> f64 {
    cpu.as_secs_f64() * 1_000.0 / runs.max(1) as f64
}
