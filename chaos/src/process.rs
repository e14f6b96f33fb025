//! One child process: its log in a file, ended by its handle alone, never outliving its owner.

use crate::Error;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LOG_TAIL_LINES: usize = 40;
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

// === impl Process ===

impl Process {
    /// Starts `command` with both of its outputs appended to `log`.
    pub fn start(
        name: impl Into<String>,
        command: &mut Command,
        log: impl Into<PathBuf>,
    ) -> Result<Self, Error> {
        let (name, log) = (name.into(), log.into());
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(Error::io(format!("open {}", log.display())))?;
        let twin = file
            .try_clone()
            .map_err(Error::io(format!("open {}", log.display())))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(twin)
            .spawn()
            .map_err(Error::io(format!(
                "start {name} ({})",
                command.get_program().display()
            )))?;
        Ok(Self { name, child, log })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `None` while it runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// An error with the end of the log if it has ended.
    pub fn check_alive(&mut self) -> Result<(), Error> {
        match self.exit_status() {
            None => Ok(()),
            Some(status) => Err(Error::Exited {
                process: self.name.clone(),
                status,
                log: self.log_tail(),
            }),
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        // Fails only where the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM)?;
        self.wait_exit(limit)
    }

    /// SIGSTOP: it neither answers nor notices anything until [`Process::resume`].
    pub fn pause(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    pub fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(Error::TimedOut {
                    what: format!("the end of {}", self.name),
                    limit,
                    log: self.log_tail(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|errno| Error::io(format!("signal {}", self.name))(errno.into()))
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything logged so far, over all starts into the same file.
    pub fn log(&self) -> String {
        read_log(&self.log)
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Process {
    /// Where a test fails, what its processes said last may tell why; their folders are about to go.
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!(
                "--- {}, the end of its log:\n{}",
                self.name,
                self.log_tail()
            );
        }
    }
}

/// A log that doesn't exist yet is an empty one.
pub fn read_log(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(dir: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", "echo started; exec sleep 600"]);
        Process::start("sleeper", &mut command, dir.join("log")).expect("sh starts")
    }

    #[test]
    fn an_ended_process_shows_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 7"]);
        let mut process = Process::start("failing", &mut command, dir.path().join("log")).unwrap();
        let status = process.wait_exit(Duration::from_secs(30)).unwrap();
        assert_eq!(status.code(), Some(7));
        let message = process.check_alive().unwrap_err().to_string();
        assert!(
            message.contains("out") && message.contains("err"),
            "{message}"
        );
    }

    #[test]
    fn sigterm_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = sleeper(dir.path());
        process.check_alive().unwrap();
        let status = process.terminate(Duration::from_secs(30)).unwrap();
        assert!(!status.success());
    }

    #[test]
    fn it_ends_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let process = sleeper(dir.path());
        let proc_dir = PathBuf::from(format!("/proc/{}", process.id()));
        drop(process);
        assert!(!proc_dir.exists());
    }
}
