//! Exit codes, and the failures that lead to them.

use std::process::ExitCode;

/// What the process ends with. People script against these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or the check was allowed.
    Ok = 0,
    /// The check was refused, or a server had to end.
    Refused = 1,
    /// Bad usage or configuration, or the server found the request not well formed.
    Usage = 2,
    /// The server could not be reached, or could not answer.
    Unreachable = 3,
}

/// Why a command did not do what it was told.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    /// Each line begins with the file and line that it is about.
    of_files: bool,
}

// === impl Exit ===

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

// === impl Failure ===

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            of_files: false,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, message)
    }

    pub(crate) fn ended(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// What is wrong with files: a problem a line, each of the form `FILE:LINE: ...`, which editors jump to.
    pub(crate) fn of_files(problems: impl Into<String>) -> Self {
        Self {
            of_files: true,
            ..Self::usage(problems)
        }
    }

    pub(crate) fn print(&self) {
        let prefix = if self.of_files { "" } else { "apportion: " };
        for line in self.message.lines() {
            eprintln!("{prefix}{line}");
        }
    }
}
