//! Dividing a budget over regions, in whole numbers, so that every region computes the same parts and the parts
//! sum to the budget exactly: by weight alone ([`largest_remainder`], the base shares), and by what each needs of it
//! ([`divide`], the shares that loans lead to).

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

/// What one region can claim of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Its part by weight. Bases sum to the budget.
    pub base: u64,
    /// What it needs, room included.
    pub want: u64,
}

/// Divides a budget by need: weighted max-min fairness, with the bases as weights. What is left over once every want is
/// served goes to those that want less than their base, in proportion to what they leave.
///
/// The parts sum to the bases' sum. Nobody has more than it wants while another has less than it wants, but for one unit
/// of rounding; and nobody has less than both its want and its base, so a region is never worse off for trading.
pub fn divide<'a>(claims: &BTreeMap<&'a Region, Claim>) -> BTreeMap<&'a Region, u64> {
    let total: u64 = claims.values().map(|c| c.base).sum();
    let wants: Vec<(u64, u64)> = claims.values().map(|c| (c.base, c.want)).collect();
    let mut parts = max_min(total, &wants);
    let left_over = total - parts.iter().sum::<u64>();
    let gaps: Vec<(u64, u64)> = claims
        .values()
        .map(|c| c.base.saturating_sub(c.want))
        .map(|gap| (gap, gap))
        .collect();
    for (part, more) in parts.iter_mut().zip(max_min(left_over, &gaps)) {
        *part += more;
    }
    claims.keys().copied().zip(parts).collect()
}

/// Weighted max-min: `total` dealt to wants by weight, nobody more than its want, and nobody less than another of
/// the same weight unless its want is served.
///
/// Whole units; what rounding leaves over goes to the first in order whose want isn't served. A weight of 0 counts as 1,
/// so that what nobody else wants isn't wasted.
pub fn max_min(total: u64, asks: &[(u64, u64)]) -> Vec<u64> {
    let mut given = vec![0u64; asks.len()];
    let mut left = total;
    loop {
        let open: Vec<usize> = (0..asks.len()).filter(|&i| given[i] < asks[i].1).collect();
        let weight = |i: usize| u128::from(asks[i].0.max(1));
        let weights: u128 = open.iter().map(|&i| weight(i)).sum();
        if open.is_empty() || left == 0 {
            return given;
        }
        let round = left;
        for &i in &open {
            let part =
                u64::try_from(u128::from(round) * weight(i) / weights).expect("a part of a u64");
            let part = part.min(asks[i].1 - given[i]);
            given[i] += part;
            left -= part;
        }
        if left == round {
            for &i in &open {
                if left > 0 {
                    given[i] += 1;
                    left -= 1;
                }
            }
        }
    }
}

/// One region's part in [`largest_remainder`], without the others'; 0 for a region without a weight.
pub fn part_of<'a>(
    total: u64,
    weights: impl Iterator<Item = (&'a Region, u64)> + Clone,
    region: &Region,
) -> u64 {
    let sum: u128 = weights.clone().map(|(_, w)| u128::from(w)).sum();
    assert!(sum > 0, "no region has a weight");
    let floor_and_remainder = |weight: u64| match (total.checked_mul(weight), u64::try_from(sum)) {
        // The usual case: a division of 128 bits costs ten times as much.
        (Some(scaled), Ok(sum)) => (u128::from(scaled / sum), u128::from(scaled % sum)),
        _ => {
            let scaled = u128::from(total) * u128::from(weight);
            (scaled / sum, scaled % sum)
        }
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
    proptest! {
        #[test]
        fn max_min_wastes_nothing_and_gives_nobody_more_than_it_wants(
            total in 0..10_000u64,
            asks in prop::collection::vec((0..5u64, 0..5_000u64), 0..8),
        ) {
            let given = max_min(total, &asks);
            prop_assert!(given.iter().zip(&asks).all(|(g, a)| *g <= a.1));
            let wanted: u64 = asks.iter().map(|a| a.1).sum();
            prop_assert_eq!(given.iter().sum::<u64>(), total.min(wanted));
            for (i, a) in asks.iter().enumerate() {
                for (j, b) in asks.iter().enumerate() {
                    if a.0 == b.0 && given[i] + 1 < given[j] {
                        prop_assert_eq!(given[i], a.1, "{} has less than {} and isn't served", i, j);
                    }
                }
            }
        }
    }

    /// Bases that sum to a billion, and wants.
    fn some_claims() -> impl Strategy<Value = Vec<(u64, Claim)>> {
        let want = prop_oneof![Just(0u64), 0..1_000_000_000u64, 0..100_000_000u64];
        prop::collection::vec((1..10u64, want), 1..8).prop_map(|regions| {
            let weights: Vec<u64> = regions.iter().map(|r| r.0).collect();
            let bases = dealt(1_000_000_000, &weights);
            let claim = |(base, (weight, want)): (u64, (u64, u64))| (weight, Claim { base, want });
            bases.into_iter().zip(regions).map(claim).collect()
        })
    }

    fn divided(claims: &[Claim]) -> Vec<u64> {
        let names: Vec<Region> = (0..claims.len())
            .map(|i| Region::new(&format!("r{i:02}")))
            .collect();
        let claims = names.iter().zip(claims.iter().copied()).collect();
        divide(&claims).into_values().collect()
    }

    proptest! {
        #[test]
        fn what_is_divided_sums_to_the_budget(claims in some_claims()) {
            let claims: Vec<Claim> = claims.into_iter().map(|c| c.1).collect();
            prop_assert_eq!(divided(&claims).iter().sum::<u64>(), 1_000_000_000);
        }

        #[test]
        fn nobody_has_more_than_it_wants_while_another_is_short(claims in some_claims()) {
            let claims: Vec<Claim> = claims.into_iter().map(|c| c.1).collect();
            let parts = divided(&claims);
            let is_short = claims.iter().zip(&parts).any(|(c, part)| *part < c.want);
            for (claim, part) in claims.iter().zip(&parts) {
                prop_assert!(!is_short || *part <= claim.want);
                prop_assert!(*part + 8 >= claim.want.min(claim.base), "worse off for trading");
            }
        }

        #[test]
        fn a_larger_weight_never_makes_a_share_smaller(claims in some_claims(), which: prop::sample::Index) {
            let which = which.index(claims.len());
            let before: Vec<Claim> = claims.iter().map(|c| c.1).collect();
            let weights: Vec<u64> = claims.iter().enumerate().map(|(i, c)| c.0 + u64::from(i == which)).collect();
            let bases = dealt(1_000_000_000, &weights);
            let after: Vec<Claim> = before.iter().zip(bases).map(|(c, base)| Claim { base, ..*c }).collect();
            // Rounding deals out single units.
            prop_assert!(divided(&after)[which] + 8 >= divided(&before)[which]);
        }

        #[test]
        fn the_order_in_which_claims_are_made_changes_nothing(claims in some_claims()) {
            let claims: Vec<Claim> = claims.into_iter().map(|c| c.1).collect();
            let names: Vec<Region> = (0..claims.len()).map(|i| Region::new(&format!("r{i:02}"))).collect();
            let forward: BTreeMap<&Region, Claim> = names.iter().zip(claims.iter().copied()).collect();
            let backward: BTreeMap<&Region, Claim> = names.iter().zip(claims.iter().copied()).rev().collect();
            prop_assert_eq!(divide(&forward), divide(&backward));
        }
    }
}
