//! One complaint about a configuration file, and all of them.

use std::fmt;

/// Most complaints that are printed about one file.
const MAX_PROBLEMS: usize = 100;

/// One thing that is wrong with a file. Prints as `FILE:LINE: OF: FIELD: WHAT; expected EXPECTED`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub file: String,
    /// Counted from 1; `None`: the file as a whole.
    pub line: Option<usize>,
    /// What the field belongs to, such as `policy "api"`; `None`: the file itself.
    pub of: Option<String>,
    pub field: Option<String>,
    pub what: String,
    pub expected: Option<String>,
}

/// Everything that is wrong with a file, in the order of its lines, and with the files that it names; never empty.
/// Prints one to a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub(super) Vec<Problem>);

// === impl Problem ===

impl Problem {
    /// One that concerns a file as a whole: it is missing, say.
    pub fn of_file(file: &str, what: impl Into<String>, expected: Option<&str>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            of: None,
            field: None,
            what: what.into(),
            expected: expected.map(str::to_owned),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        for part in [&self.of, &self.field].into_iter().flatten() {
            write!(f, ": {part}")?;
        }
        write!(f, ": {}", self.what)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        Ok(())
    }
}

// === impl Problems ===

impl Problems {
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(MAX_PROBLEMS).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        match self.0.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}
