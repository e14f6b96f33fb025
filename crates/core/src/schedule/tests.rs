use super::*;
use proptest::prelude::*;

fn shares(steps: &[(u64, u64)]) -> Shares {
    Shares::new(steps.iter().map(|&(from, ppb)| Step {
        from: StoreMs(from),
        ppb,
    }))
}

#[test]
fn steps_that_change_nothing_are_merged_whatever_order_hides_them() {
    assert_eq!(shares(&[(0, 1), (5, 1)]), shares(&[(0, 1)]));
    assert_eq!(shares(&[(0, 1), (5, 2), (5, 1)]), shares(&[(0, 1)]));
    assert_eq!(shares(&[(0, 1), (0, 2), (5, 2)]), shares(&[(0, 2)]));
    let back = shares(&[(0, 1), (5, 2), (6, 1)]);
    assert_eq!(back.steps().len(), 3);
}

proptest! {
    #[test]
    fn a_part_is_what_exact_arithmetic_says(units in 1..=9_007_199_254u64, ppb in 0..=PPB) {
        let exact = u128::from(units) * u128::from(ppb) * u128::from(MICRO) / u128::from(PPB);
        prop_assert_eq!(u128::from(part_micro(units, ppb)), exact);
        prop_assert!(units / 1_000 * ppb <= EXACT);
    }

    #[test]
    fn parts_of_a_whole_never_sum_to_more(units in 1..=9_007_199_254u64, a in 0..=PPB, b in 0..=PPB) {
        let (a, b) = (a.min(b), a.max(b));
        let sum = part_micro(units, a) + part_micro(units, b - a) + part_micro(units, PPB - b);
        prop_assert!(sum <= units * MICRO);
        prop_assert!(sum + 3 > units * MICRO);
    }
}
