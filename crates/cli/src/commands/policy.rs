//! `apportion policy check`.

use super::print;
use crate::args::PolicyCheckArgs;
use crate::exit::{Exit, Failure};
use apportion_server::config::load_policies;

pub(crate) fn check(args: PolicyCheckArgs) -> Result<Exit, Failure> {
    let set = load_policies(&args.file).map_err(|errors| Failure::of_files(errors.to_string()))?;
    let file = args.file.display();
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
