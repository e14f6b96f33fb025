//! Planted bugs: each breaks one rule at its place in the code, and the simulator finds it.
//!
//! `cargo nextest run -p apportion-sim --features planted --test planted`

#![cfg(feature = "planted")]

use apportion_core::planted::{Bug, plant};
use apportion_sim::{Setup, run};

/// Seeds that are tried for a bug, from its own on. The one that finds it is among the first, but for what changes in
/// the code since.
const SEEDS_MAX: u64 = 10_000;

/// Which kind finds it, and from which seed on it is looked for.
const TABLE: &[(Bug, &str, u64)] = &[
    (Bug::GrantBeforeSwap, "timeouts", 6),
    (Bug::SwapWithoutCompare, "restarts", 6),
    (Bug::TokensKept, "pulses", 1),
    (Bug::HoldsNotKept, "pulses", 1),
    (Bug::ShortMemory, "cuts", 1),
    (Bug::StaleReturn, "reordered", 1),
    (Bug::SeenForgotten, "reordered", 1),
    (Bug::UnseenStep, "clocks", 7),
    (Bug::LentForgotten, "clocks", 1),
    (Bug::NewestGrant, "network", 1),
    (Bug::Relent, "network", 1),
    (Bug::LentAllShort, "windows", 4),
    (Bug::EpochNotFenced, "stalls", 97),
    (Bug::RollbackGoesOn, "windows", 5),
    (Bug::AskingUsesBase, "boots", 76),
    (Bug::OlderLifeRow, "short", 34),
    (Bug::RowsAddedUp, "network", 2),
    (Bug::CrossWindow, "short", 16),
    (Bug::SealedWindowReopened, "short", 10),
    (Bug::DeadSlotsKept, "losses", 15),
    (Bug::AckedUnread, "network", 17),
    (Bug::UsageAddedUp, "network", 1),
    (Bug::NewestRevisionCounts, "rollouts", 1),
    (Bug::LostIsFreeAtOnce, "rollouts", 16),
    (Bug::OpenWindowDealtAnew, "rollouts", 10),
    (Bug::UnsureHasBase, "regions", 5),
];

/// Looks for every bug of a part of the table.
fn find(part: usize, parts: usize) {
    let kinds = Setup::kinds();
    let mut missed = Vec::new();
    for (bug, kind, from) in TABLE.iter().skip(part).step_by(parts) {
        let setup = kinds.iter().find(|(name, _)| name == kind);
        let (_, setup) = setup.expect("the kind is there");
        plant(Some(*bug));
        let caught = (*from..from + SEEDS_MAX).find_map(|seed| run(setup, seed).err());
        plant(None);
        match caught {
            Some(v) => println!(
                "{bug:?}: by {kind}, seed {}, after {} seeds, at {} ms: {}",
                v.seed,
                v.seed - from + 1,
                v.at_ms,
                v.what
            ),
            None => missed.push(bug),
        }
    }
    assert!(
        missed.is_empty(),
        "not found within {SEEDS_MAX} seeds: {missed:?}"
    );
}

#[test]
fn planted_bugs_are_found_1_of_4() {
    find(0, 4);
}

#[test]
fn planted_bugs_are_found_2_of_4() {
    find(1, 4);
}

#[test]
fn planted_bugs_are_found_3_of_4() {
    find(2, 4);
}

#[test]
fn planted_bugs_are_found_4_of_4() {
    find(3, 4);
}

#[test]
fn the_same_seeds_break_nothing_without_a_bug() {
    let kinds = Setup::kinds();
    for (_, kind, from) in TABLE {
        let setup = kinds.iter().find(|(name, _)| name == kind);
        let (_, setup) = setup.expect("the kind is there");
        assert_eq!(run(setup, *from).err(), None, "{kind}");
    }
}
