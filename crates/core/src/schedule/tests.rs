use super::*;

fn flow(cap: u64) -> Flow {
    Flow { cap, ..Flow::NONE }
}

fn schedule(steps: &[(u64, u64)]) -> Schedule {
    Schedule::new(steps.iter().map(|&(from, cap)| Step {
        from: StoreMs(from),
        flow: flow(cap),
    }))
}

#[test]
fn steps_that_change_nothing_are_merged_whatever_order_hides_them() {
    assert_eq!(schedule(&[(0, 1), (5, 1)]), schedule(&[(0, 1)]));
    assert_eq!(schedule(&[(0, 1), (5, 2), (5, 1)]), schedule(&[(0, 1)]));
    assert_eq!(schedule(&[(0, 1), (0, 2), (5, 2)]), schedule(&[(0, 2)]));
    let back = schedule(&[(0, 1), (5, 2), (6, 1)]);
    assert_eq!(back.steps().len(), 3);
}
