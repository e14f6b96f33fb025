//! `apportion policy check`.

use super::print;
use crate::args::PolicyCheckArgs;
use crate::exit::{Exit, Failure};
use apportion_core::PolicySet;
use apportion_core::policy::limits::MAX_FILE_BYTES;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(crate) fn check(args: PolicyCheckArgs) -> Result<Exit, Failure> {
    let file = args.file.display().to_string();
    let bytes = read(&args.file).map_err(|error| Failure::of_files(format!("{file}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::of_files(format!("{file}: not valid UTF-8 at byte {at}"))
    })?;
    let set =
        PolicySet::parse(&text, &file).map_err(|errors| Failure::of_files(errors.to_string()))?;
    for warning in &set.warnings {
        eprintln!("apportion: warning: {warning}");
    }
    let policies = match set.policies.len() {
        1 => "1 policy".to_owned(),
        count => format!("{count} policies"),
    };
    let regions = match set.regions.len() {
        1 => "1 region".to_owned(),
        count => format!("{count} regions"),
    };
    print(&format!(
        "{file}: ok, {policies} for {regions}, revision {}",
        set.revision
    ))?;
    Ok(Exit::Ok)
}

/// One byte more than a policy file may have, at most: `parse` refuses the rest.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
