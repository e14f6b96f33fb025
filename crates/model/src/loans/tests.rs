use super::*;
use crate::check::{Effort, check, shortest};

fn exhausts(bounds: Bounds) {
    let outcome = check(LoansModel::new(bounds, None), Effort::QUIET, |_, _| {});
    println!("{bounds:?}: {outcome}");
    assert!(outcome.holds(), "{outcome}");
}

#[test]
fn calm() {
    exhausts(Bounds::CALM);
}

#[test]
fn planted() {
    for bug in Planted::ALL {
        let b = bug.shows_in();
        let outcome = shortest(LoansModel::new(b, Some(bug)));
        println!("{bug:?} {b:?}: {outcome}");
    }
}
