//! The `apportion` binary: where it is, and one run of it to its end.

use crate::process::{Process, read_log};
use crate::{Error, ports};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(5);

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Run {
    /// `None`: ended by a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// `APPORTION_BIN`, or the binary that was built beside the current program.
pub fn binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("APPORTION_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().map_err(Error::io("find the current program"))?;
    let name = format!("apportion{}", std::env::consts::EXE_SUFFIX);
    // target/debug/deps/story-0123: the binary is one folder up.
    let mut beside = own.ancestors().skip(1).map(|dir| dir.join(&name));
    beside
        .find(|path| path.is_file())
        .ok_or(Error::NoBinary { looked: own })
}

/// The binary with nothing of the caller's environment that would change what it does.
pub fn command() -> Result<Command, Error> {
    let mut command = Command::new(binary()?);
    command.env_remove("APPORTION_ADDRESS").env("NO_COLOR", "1");
    Ok(command)
}

/// Runs `apportion` with `args` to its end; one that is still running after `limit` is killed, and an error.
pub fn run<S: AsRef<OsStr>>(args: &[S], limit: Duration) -> Result<Run, Error> {
    run_command(command()?.args(args), limit)
}

pub fn run_command(command: &mut Command, limit: Duration) -> Result<Run, Error> {
    let dir = tempfile::tempdir().map_err(Error::io("create a folder"))?;
    let (out, err) = (dir.path().join("stdout"), dir.path().join("stderr"));
    let file = |path| std::fs::File::create(path).map_err(Error::io("create a file for output"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file(&out)?)
        .stderr(file(&err)?)
        .spawn()
        .map_err(Error::io(format!("run {command:?}")))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(Error::io("wait for apportion"))? {
            break status;
        }
        if Instant::now() >= deadline {
            // Fails only where it has ended by now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::TimedOut {
                what: format!("the end of {command:?}"),
                limit,
                log: format!("{}{}", read_log(&out), read_log(&err)),
            });
        }
        std::thread::sleep(POLL);
    };
    Ok(Run {
        code: status.code(),
        stdout: read_log(&out),
        stderr: read_log(&err),
    })
}

/// A long run, with its output in `log`.
pub fn start<S: AsRef<OsStr>>(
    name: &str,
    args: &[S],
    log: impl Into<PathBuf>,
) -> Result<Process, Error> {
    Process::start(name, command()?.args(args), log)
}

/// An address that refuses connections.
pub fn dead_url() -> Result<String, Error> {
    Ok(format!("http://{}", ports::free_addr()?))
}

// === impl Run ===

impl Run {
    /// For a test that only wants to see a number and some words.
    ///
    /// # Panics
    /// Where the exit code is another, or one of `words` (in any case) is nowhere in stderr.
    pub fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let said = self.stderr.to_lowercase();
        for word in words {
            assert!(
                said.contains(&word.to_lowercase()),
                "{word:?} is not in {self:#?}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_a_code_and_two_outputs() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let run = run_command(&mut command, Duration::from_secs(30)).unwrap();
        assert_eq!((run.code, run.stdout.as_str()), (Some(3), "out\n"));
        run.expect(3, &["ERR"]);
    }

    #[test]
    fn a_run_that_hangs_is_an_error() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo stuck; exec sleep 600"]);
        let error = run_command(&mut command, Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("stuck"), "{error}");
    }
}
