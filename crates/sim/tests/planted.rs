//! Planted bugs: each breaks one rule at its place in the code, and the simulator finds it.
//!
//! `cargo nextest run -p apportion-sim --features planted --test planted`

#![cfg(feature = "planted")]

use apportion_core::planted::{Bug, plant};
use apportion_sim::{Setup, run};

/// Seeds that are tried for a bug, from the first one on.
const SEEDS_MAX: u64 = 10_000;

/// The models find it (`Relending`): here nobody keeps what was borrowed beyond need for long enough to lend it on.
/// And a life that is asking, or has begun lately, has no base by the rule of roll-outs either.
const NOT_HERE: [Bug; 3] = [Bug::Relent, Bug::AskingUsesBase, Bug::NextWindowNotCovered];

/// Which kind finds it. Every other bug is there.
const TABLE: &[(Bug, &str)] = &[
    (Bug::GrantBeforeSwap, "pulses"),
    (Bug::SwapWithoutCompare, "pulses"),
    (Bug::SwapWithoutGuard, "everything"),
    (Bug::NewestGrant, "reordered"),
    (Bug::RefillAtPresentShare, "buckets"),
    (Bug::TokensKept, "pulses"),
    (Bug::HoldsNotKept, "pulses"),
    (Bug::TermFromReceipt, "network"),
    (Bug::ReclaimWithoutMargin, "short"),
    (Bug::SlidingReclaimShort, "split losses"),
    (Bug::ReclaimOutsideSpan, "leaps"),
    (Bug::ShortMemory, "network"),
    (Bug::StaleReturn, "crashes"),
    (Bug::SeenForgotten, "crashes"),
    (Bug::OlderEpochGrant, "echoes"),
    (Bug::BorrowedAcrossEpochs, "echoes"),
    (Bug::LentForgotten, "clocks"),
    (Bug::LentAllShort, "windows"),
    (Bug::UnseenStep, "idle"),
    (Bug::EpochNotFenced, "stalls"),
    (Bug::RollbackGoesOn, "windows"),
    (Bug::MissingIsFull, "tolerant-everything"),
    (Bug::RowsByRegion, "forgetful"),
    (Bug::OlderLifeRow, "short"),
    (Bug::RowsAddedUp, "network"),
    (Bug::CrossWindow, "short"),
    (Bug::SealedWindowReopened, "short"),
    (Bug::LargestPlanGiven, "plans"),
    (Bug::UsageAddedUp, "network"),
    (Bug::DeadSlotsKept, "losses"),
    (Bug::AckedUnread, "network"),
    (Bug::NewestRevisionCounts, "rollouts"),
    (Bug::LostIsFreeAtOnce, "rollouts"),
    (Bug::OpenWindowDealtAnew, "rollouts"),
    (Bug::UnsureHasBase, "regions"),
];

/// Looks for every bug of a part of the table.
#[allow(clippy::print_stdout)]
fn find(part: usize, parts: usize) {
    let kinds = Setup::kinds();
    let mut missed = Vec::new();
    for (bug, kind) in TABLE.iter().skip(part).step_by(parts) {
        let setup = kinds.iter().find(|(name, _)| name == kind);
        let (_, setup) = setup.expect("the kind is there");
        plant(Some(*bug));
        let caught = (1..=SEEDS_MAX).find_map(|seed| run(setup, seed).err());
        plant(None);
        let Some(v) = caught else {
            missed.push(bug);
            continue;
        };
        println!(
            "{bug:?}: by {kind}, seed {}, at {} ms: {}",
            v.seed, v.at_ms, v.what
        );
        assert_eq!(
            run(setup, v.seed).err(),
            None,
            "{kind} {}, without {bug:?}",
            v.seed
        );
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
fn every_bug_is_looked_for() {
    let missed: Vec<_> = Bug::ALL
        .iter()
        .filter(|bug| !NOT_HERE.contains(bug))
        .filter(|bug| !TABLE.iter().any(|(looked_for, _)| looked_for == *bug))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}
