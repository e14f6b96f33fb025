//! Dividing a budget over regions, in whole numbers, so that every region computes the same parts and the parts
//! sum to the budget exactly.

use crate::ids::Region;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Deals `total` by weight: each region gets its proportional part rounded down, and the units left over go, one
/// each, to the largest remainders (Hamilton's method); ties go to the lower region name.
///
/// The parts sum to `total` and are within one unit of proportional. Names are distinct and the weights are not all
/// zero: configuration is checked for both.
pub fn largest_remainder(total: u64, weights: &[(Region, u64)]) -> BTreeMap<Region, u64> {
    let parts: BTreeMap<Region, u64> = weights
        .iter()
        .map(|(region, _)| {
            let part = part_of(total, weights.iter().map(|(r, w)| (r, *w)), region);
            (region.clone(), part)
        })
        .collect();
    assert_eq!(parts.len(), weights.len(), "a region is weighed twice");
    assert_eq!(
        parts.values().map(|&p| u128::from(p)).sum::<u128>(),
        u128::from(total),
        "the parts are not the whole"
    );
    parts
}

/// One region's part in [`largest_remainder`], without the others'; 0 for a region without a weight.
pub fn part_of<'a>(
    total: u64,
    weights: impl Iterator<Item = (&'a Region, u64)> + Clone,
    region: &Region,
) -> u64 {
    let sum: u128 = weights.clone().map(|(_, w)| u128::from(w)).sum();
    assert!(sum > 0, "no region has a weight");
    let floor_and_remainder = |weight: u64| {
        let scaled = u128::from(total) * u128::from(weight);
        (scaled / sum, scaled % sum)
    };
    let Some((_, weight)) = weights.clone().find(|(r, _)| *r == region) else {
        return 0;
    };
    let (floor, remainder) = floor_and_remainder(weight);
    let mut left_over = u128::from(total);
    let mut ahead = 0;
    for (other, weight) in weights {
        let (floor_of_other, remainder_of_other) = floor_and_remainder(weight);
        left_over -= floor_of_other;
        if (Reverse(remainder_of_other), other) < (Reverse(remainder), region) {
            ahead += 1;
        }
    }
    u64::try_from(floor + u128::from(ahead < left_over)).expect("a part is at most the total")
}

/// A region's whole units of `limit`, of a budget that has these `tiers`: never more of a smaller limit than of a larger.
pub fn dealt_units<'a>(
    tiers: impl Iterator<Item = u64>,
    limit: u64,
    weights: impl Iterator<Item = (&'a Region, u64)> + Clone,
    region: &Region,
) -> u64 {
    let above = tiers.filter(|tier| *tier > limit).chain([limit]);
    let bases = above.map(|limit| part_of(limit, weights.clone(), region));
    bases.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weighted(weights: &[u64]) -> Vec<(Region, u64)> {
        weights
            .iter()
            .enumerate()
            .map(|(i, &w)| (Region::new(&format!("r{i:02}")), w))
            .collect()
    }

    fn dealt(total: u64, weights: &[u64]) -> Vec<u64> {
        largest_remainder(total, &weighted(weights))
            .into_values()
            .collect()
    }

    #[test]
    fn what_is_left_over_goes_to_the_largest_remainder_and_then_to_the_lower_name() {
        assert_eq!(dealt(100, &[1, 1, 1]), [34, 33, 33]);
        assert_eq!(dealt(101, &[1, 1, 1]), [34, 34, 33]);
        assert_eq!(dealt(10, &[6, 3, 3]), [5, 3, 2]);
        assert_eq!(dealt(7, &[1, 2, 4]), [1, 2, 4]);
        // 0.4, 0.8 and 0.8: both units that are left over go to the .8s.
        assert_eq!(dealt(2, &[1, 2, 2]), [0, 1, 1]);
    }

    #[test]
    fn a_region_of_weight_zero_gets_nothing() {
        assert_eq!(dealt(5, &[0, 1, 0]), [0, 5, 0]);
        assert_eq!(dealt(1, &[0, 1, 1]), [0, 1, 0]);
    }

    #[test]
    fn a_region_without_a_weight_has_no_part() {
        let weights = weighted(&[1, 1]);
        let stranger = Region::new("mars");
        assert_eq!(
            part_of(9, weights.iter().map(|(r, w)| (r, *w)), &stranger),
            0
        );
    }

    fn some_weights() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![0..4u64, 0..=1_000_000u64, any::<u64>()], 1..12)
            .prop_filter("not all zero", |w| w.iter().any(|&w| w > 0))
    }

    proptest! {
        #[test]
        fn the_parts_sum_to_the_whole(total: u64, weights in some_weights()) {
            let sum: u128 = dealt(total, &weights).into_iter().map(u128::from).sum();
            prop_assert_eq!(sum, u128::from(total));
        }

        #[test]
        fn each_part_is_within_one_unit_of_proportional(total in 0..1u64 << 60, weights in some_weights()) {
            let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
            for (part, weight) in dealt(total, &weights).into_iter().zip(&weights) {
                let floor = u64::try_from(u128::from(total) * u128::from(*weight) / sum).unwrap();
                prop_assert!(part == floor || part == floor + 1);
            }
        }

        #[test]
        fn the_order_in_which_regions_are_listed_changes_nothing(
            total: u64,
            (listed, shuffled) in some_weights()
                .prop_map(|w| weighted(&w))
                .prop_flat_map(|w| (Just(w.clone()), Just(w).prop_shuffle())),
        ) {
            prop_assert_eq!(largest_remainder(total, &listed), largest_remainder(total, &shuffled));
        }

        #[test]
        fn a_region_computes_its_part_as_the_others_compute_it(total: u64, weights in some_weights()) {
            let weights = weighted(&weights);
            for (region, part) in largest_remainder(total, &weights) {
                prop_assert_eq!(part_of(total, weights.iter().map(|(r, w)| (r, *w)), &region), part);
            }
        }
    }
}
