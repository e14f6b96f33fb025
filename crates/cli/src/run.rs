//! The commands that serve: a runtime, logging and signals around what the server crate runs.

use crate::args::{DevArgs, ServeArgs};
use crate::exit::{Exit, Failure};
use apportion_server::{DevOptions, RunError};
use std::future::Future;
use std::io::{self, IsTerminal};
use std::process;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

const LOG_VARIABLE: &str = "APPORTION_LOG";
/// As a shell reports a process that SIGINT ended.
const ENDED_BY_SIGNAL: i32 = 130;

pub(crate) fn serve(args: ServeArgs) -> Result<Exit, Failure> {
    run(|shutdown| async move { apportion_server::serve(&args.config, shutdown).await })
}

pub(crate) fn dev(args: DevArgs) -> Result<Exit, Failure> {
    let regions = args.regions.0;
    if !args.redis.is_empty() && args.redis.len() != regions.len() {
        return Err(Failure::usage(format!(
            "--redis has {} URLs for {} regions; expected one for each",
            args.redis.len(),
            regions.len()
        )));
    }
    let options = DevOptions {
        regions,
        policies: args.policies,
        redis: args.redis,
        wan_latency: args.wan_latency,
        load: args.load,
    };
    run(|shutdown| apportion_server::dev(options, shutdown))
}

fn run<F, S>(server: S) -> Result<Exit, Failure>
where
    S: FnOnce(CancellationToken) -> F,
    F: Future<Output = Result<(), RunError>>,
{
    let _flushed_at_the_end = log_to_stderr()?;
    let runtime =
        Runtime::new().map_err(|error| Failure::ended(format!("could not start: {error}")))?;
    let ended = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let signals = Signals::new()
            .map_err(|error| Failure::ended(format!("could not listen for signals: {error}")))?;
        tokio::spawn(signals.cancel(shutdown.clone()));
        server(shutdown).await.map_err(|error| match error {
            RunError::Configuration(problems) => Failure::of_files(problems),
            RunError::Failed(message) => Failure::ended(message),
        })
    });
    // The server has taken itself down; what is still running holds nothing that has to be saved.
    runtime.shutdown_background();
    ended.map(|()| Exit::Ok)
}

/// Logs from a thread of its own, which drops lines where nobody reads them: whoever reads the log, or doesn't, must not
/// hold up a decision or the end of the process.
fn log_to_stderr() -> Result<WorkerGuard, Failure> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(LOG_VARIABLE)
        .from_env()
        .map_err(|error| Failure::usage(format!("{LOG_VARIABLE}: {error}")))?;
    let (writer, guard) = tracing_appender::non_blocking(io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .init();
    Ok(guard)
}

/// SIGTERM and SIGINT, listened to from the first moment on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Signals ===

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The first signal cancels `shutdown`; the second ends the process.
    async fn cancel(mut self, shutdown: CancellationToken) {
        self.next().await;
        shutdown.cancel();
        tracing::info!("shutting down; a second signal ends the process at once");
        self.next().await;
        process::exit(ENDED_BY_SIGNAL);
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
