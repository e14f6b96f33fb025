use super::*;
use crate::check::{Effort, check, shortest};

fn exhausts(bounds: Bounds) {
    let outcome = check(TransfersModel::new(bounds, None), Effort::QUIET, |_, _| {});
    println!("{bounds:?}: {outcome}");
    assert!(outcome.holds(), "{outcome}");
}

#[test]
fn transfers_small() {
    exhausts(Bounds::SMALL);
}

#[test]
fn transfers_planted() {
    for bug in Planted::ALL {
        let b = bug.shows_in();
        let outcome = check(TransfersModel::new(b, None), Effort::QUIET, |_, _| {});
        println!("NONE {b:?}: {outcome}");
        let outcome = shortest(TransfersModel::new(b, Some(bug)));
        println!("{bug:?} {b:?}: {outcome}");
    }
}
