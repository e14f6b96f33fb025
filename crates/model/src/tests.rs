use crate::check::{Effort, Protocol, check, shortest};
use std::fmt::Debug;
use std::hash::Hash;

/// The space is exhausted, and the checker finds nothing.
pub(crate) fn holds_in<P: Protocol>(bounds: P::Bounds)
where
    P::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    P::Action: Clone + Debug + PartialEq,
{
    let outcome = check(P::new(bounds, None), Effort::QUIET, |_, _| {});
    println!("{} {bounds:?}: {outcome}", P::NAME);
    assert!(outcome.holds(), "{bounds:?}: {outcome}");
}

/// The checker finds each mistake that the model can make.
pub(crate) fn each_mistake_is_caught<P: Protocol>()
where
    P::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    P::Action: Clone + Debug + PartialEq,
{
    for bug in P::planted() {
        let bounds = P::shows_in(*bug);
        let outcome = shortest(P::new(bounds, Some(*bug)));
        let steps = outcome.steps();
        println!(
            "{} {bug:?}: {steps:?} steps, {} states",
            P::NAME,
            outcome.states
        );
        assert!(
            steps.is_some(),
            "{bug:?} isn't caught in {bounds:?}: {outcome}"
        );
    }
}
