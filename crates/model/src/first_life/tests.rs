use super::*;
use crate::check::{Effort, check, shortest};

fn exhausts(bounds: Bounds) {
    let outcome = check(FirstLifeModel::new(bounds, None), Effort::QUIET, |_, _| {});
    println!("{bounds:?}: {outcome}");
    assert!(outcome.holds(), "{outcome}");
}

#[test]
fn first_small() {
    exhausts(Bounds::SMALL);
}

#[test]
fn first_planted() {
    for bug in Planted::ALL {
        let b = bug.shows_in();
        let outcome = shortest(FirstLifeModel::new(b, Some(bug)));
        println!("{bug:?} {b:?}: {outcome}");
    }
}
