//! Dividing a budget by demand: what a region keeps, what it can spare, and what each asker gets of that.
//!
//! Pure arithmetic over base shares, demands and floors. Base shares are the weights, so a region is owed the lesser
//! of its base and its need; what that leaves over goes to those who need more, by weighted max-min.

use crate::schedule::{MICRO, PPB, Rate};

/// A share is asked for with so much headroom over the demand, in parts per hundred.
const HEADROOM_PERCENT: u64 = 125;
/// The part of its base that a region never lends, so that new traffic is served at once, in parts per hundred.
const FLOOR_PERCENT: u64 = 2;
/// Rights of a window are moved for the demand of so long.
pub const WINDOW_HORIZON_MS: u64 = 10_000;

/// Units asked for in each second, in micro-units, admitted or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// Over the last moments.
    pub fast: u64,
    /// Over a time in which the budget would have admitted several requests.
    pub slow: u64,
}

impl Demand {
    /// What to plan for: rising demand counts at once, falling demand after a while; at once too where somebody else
    /// is being refused.
    pub fn planned(&self, other_refuses: bool) -> u64 {
        if other_refuses {
            self.fast
        } else {
            self.fast.max(self.slow)
        }
    }
}

/// The part of a base of `base_ppb` that is never lent. None where its part of the burst would not hold one unit: a
/// floor that can't admit anything serves nobody.
pub fn floor_ppb(base_ppb: u64, burst: u64) -> u64 {
    let floor = base_ppb * FLOOR_PERCENT / 100;
    if u128::from(burst) * u128::from(floor) >= u128::from(PPB) {
        floor
    } else {
        0
    }
}

/// The units of a window's base that are given only to a peer that is refusing and has no other source.
pub fn floor_units(base: u64) -> u64 {
    (base * FLOOR_PERCENT).div_ceil(100)
}

/// The least share of `whole` that comes to `part` once it is rounded down. More than the whole where `part` is.
pub fn least_ppb(part: u64, whole: u64) -> u64 {
    let ppb = (u128::from(part) * u128::from(PPB)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(ppb).unwrap_or(u64::MAX)
}

/// The share that serves `demand`, with headroom, at most the whole.
pub fn need_ppb(demand: u64, rate: Rate) -> u64 {
    let wanted = u128::from(demand)
        * u128::from(HEADROOM_PERCENT)
        * u128::from(PPB)
        * u128::from(rate.per_ms);
    let whole = u128::from(rate.limit) * u128::from(MICRO) * 1_000 * 100;
    u64::try_from(wanted / whole.max(1))
        .unwrap_or(u64::MAX)
        .min(PPB)
}

/// The units that serve `demand` for `ms`, with headroom.
pub fn need_units(demand: u64, ms: u64) -> u64 {
    let units = u128::from(demand) * u128::from(HEADROOM_PERCENT) * u128::from(ms)
        / (100 * 1_000 * u128::from(MICRO));
    u64::try_from(units).unwrap_or(u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::part_units;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn the_least_share_is_enough_and_one_part_less_is_not(
            whole in 1..=*crate::policy::limits::UNITS.end(),
            part in 1..1u64 << 40,
        ) {
            let part = part.min(whole);
            let least = least_ppb(part, whole);
            prop_assert!(least <= PPB);
            prop_assert!(part_units(whole, least) >= part);
            prop_assert!(part_units(whole, least - 1) < part);
            prop_assert!(least_ppb(whole + 1, whole) > PPB);
        }
    }

    #[test]
    fn a_floor_that_can_not_admit_one_unit_is_none() {
        let third = PPB / 3;
        assert_eq!(floor_ppb(third, 60), 0, "0.4 units");
        assert_eq!(floor_ppb(third, 150), 0, "just below one");
        assert_eq!(floor_ppb(third, 151), third / 50);
        assert_eq!(floor_ppb(PPB, 50), PPB / 50);
    }

    #[test]
    fn a_need_above_the_whole_is_the_whole() {
        let rate = Rate {
            limit: 600,
            per_ms: 60_000,
            burst: 60,
        };
        assert_eq!(need_ppb(10 * MICRO, rate), PPB);
        assert_eq!(need_ppb(4 * MICRO, rate), PPB / 2);
        assert_eq!(need_ppb(0, rate), 0);
    }
}
