//! How much is asked for, and the share that serves it.
//!
//! Demand is measured in attempts, admitted or not: a small share would otherwise breed a smaller one. Pure arithmetic
//! over counts and moments; [`division`](crate::division) deals the budget.

use crate::schedule::{MICRO, PPB, Rate};

/// A share has so much room above the demand, in parts per thousand: at most, and where the budget is scarce.
const HEADROOM_PERMILLE: std::ops::RangeInclusive<u64> = 1_020..=1_250;
/// The part of its base that a region never lends, so that new traffic is served at once, in parts per hundred.
const FLOOR_PERCENT: u64 = 2;
/// Rights of a window are moved for the demand of so long.
pub const WINDOW_HORIZON_MS: u64 = 10_000;
/// A change is believed once the counts before and after it are so many standard deviations apart, squared: five.
const UNLIKE_SIGMAS_SQUARED: f64 = 25.0;
/// Less than this isn't looked at by itself: callers come in clusters.
const LEAST_MS: u64 = 100;

/// What a counter of attempts said at a moment of a node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    pub at_ms: u64,
    pub units: u64,
}

/// The sample at which demand last changed: counts since then are unlike those before it. `None` while all are alike.
///
/// Requests that come independently of each other differ from time to time by the square root of their number. So a
/// demand of 150 a second that stops is noticed within 200 ms, one of 10 a second within three seconds, and one that goes
/// on as it was hardly ever.
pub fn changed_at(samples: &[Sample]) -> Option<usize> {
    let (first, last) = (samples.first()?, samples.last()?);
    let mut most = (UNLIKE_SIGMAS_SQUARED, None);
    for (i, at) in samples.iter().enumerate() {
        let (before_ms, after_ms) = (at.at_ms - first.at_ms, last.at_ms - at.at_ms);
        if before_ms < LEAST_MS || after_ms < LEAST_MS {
            continue;
        }
        let unlike = unlike(
            (at.units - first.units, before_ms),
            (last.units - at.units, after_ms),
        );
        if unlike > most.0 {
            most = (unlike, Some(i));
        }
    }
    most.1
}

/// The square of how many standard deviations two counts over two times are apart, were their rate the same.
fn unlike((units_a, ms_a): (u64, u64), (units_b, ms_b): (u64, u64)) -> f64 {
    let (a, b) = (units_a as f64, units_b as f64);
    let (of_a, of_b) = (ms_a as f64, ms_b as f64);
    // A unit and a half is taken off, since small counts aren't distributed normally.
    let apart = (b * of_a - a * of_b).abs() - 1.5 * (of_a + of_b);
    if apart <= 0.0 {
        return 0.0;
    }
    apart * apart / ((a + b) * of_a * of_b)
}

/// Units asked for in each second between two samples, in micro-units.
pub fn per_second(from: Sample, to: Sample) -> u64 {
    let units = u128::from(to.units - from.units) * u128::from(MICRO) * 1_000;
    let ms = u128::from((to.at_ms - from.at_ms).max(1));
    u64::try_from(units / ms).unwrap_or(u64::MAX)
}

/// The room above their demand that all regions can have alike, in parts per thousand of it. `total_ppb`: the demands of
/// all, in parts per billion of the budget.
pub fn headroom_permille(total_ppb: u64) -> u64 {
    let alike = u128::from(PPB) * 1_000 / u128::from(total_ppb.max(1));
    let (least, most) = HEADROOM_PERMILLE.into_inner();
    u64::try_from(alike).unwrap_or(u64::MAX).clamp(least, most)
}

/// `demand` and the room above it.
pub fn with_headroom(demand: u64, permille: u64) -> u64 {
    let wanted = u128::from(demand) * u128::from(permille) / 1_000;
    u64::try_from(wanted).unwrap_or(u64::MAX)
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

/// A demand of `per_second` micro-units as a part of the budget, in parts per billion. May be more than the whole.
pub fn demand_ppb(per_second: u64, rate: Rate) -> u64 {
    let demand = u128::from(per_second) * u128::from(PPB) * u128::from(rate.per_ms);
    let whole = u128::from(rate.limit) * u128::from(MICRO) * 1_000;
    u64::try_from(demand / whole.max(1)).unwrap_or(u64::MAX)
}

/// The units that serve a demand of `per_second` micro-units for `ms`, with the most headroom.
pub fn need_units(per_second: u64, ms: u64) -> u64 {
    let demand = u128::from(per_second) * u128::from(ms);
    let units = demand * u128::from(*HEADROOM_PERMILLE.end()) / (1_000 * 1_000 * u128::from(MICRO));
    u64::try_from(units).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::part_units;
    use proptest::prelude::*;

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
    fn a_demand_is_told_as_a_part_of_the_budget_and_may_be_more_than_all_of_it() {
        let rate = Rate {
            limit: 600,
            per_ms: 60_000,
            burst: 60,
        };
        assert_eq!(demand_ppb(20 * MICRO, rate), 2 * PPB);
        assert_eq!(demand_ppb(4 * MICRO, rate), PPB / 10 * 4);
        assert_eq!(demand_ppb(0, rate), 0);
    }

    #[test]
    fn room_is_alike_for_all_within_bounds() {
        assert_eq!(headroom_permille(PPB / 10), 1_250, "there is plenty");
        assert_eq!(headroom_permille(PPB / 10 * 9), 1_111);
        assert_eq!(headroom_permille(2 * PPB), 1_020, "there isn't enough");
        assert_eq!(headroom_permille(0), 1_250);
    }

    /// Counts at every `step_ms`, `units` more at each.
    fn counted(samples: &mut Vec<Sample>, step_ms: u64, units: &[u64]) {
        for more in units {
            let last = samples.last().copied();
            let last = last.unwrap_or(Sample { at_ms: 0, units: 0 });
            samples.push(Sample {
                at_ms: last.at_ms + step_ms,
                units: last.units + more,
            });
        }
    }

    #[test]
    fn a_demand_that_stops_is_noticed_soon_and_one_that_goes_on_is_not() {
        let mut samples = Vec::new();
        // 150 a second, as it comes.
        counted(
            &mut samples,
            250,
            &[37, 31, 44, 36, 40, 29, 38, 45, 35, 39, 34, 41],
        );
        assert_eq!(changed_at(&samples), None);
        let stopped = samples.len() - 1;
        counted(&mut samples, 200, &[0]);
        assert_eq!(changed_at(&samples), Some(stopped));
    }

    #[test]
    fn a_demand_that_begins_is_noticed_with_its_first_few_requests() {
        let mut samples = Vec::new();
        counted(&mut samples, 250, &[0; 20]);
        let began = samples.len() - 1;
        counted(&mut samples, 250, &[2]);
        assert_eq!(changed_at(&samples), None, "two are chance");
        samples.pop();
        counted(&mut samples, 250, &[5]);
        assert_eq!(changed_at(&samples), Some(began));
    }

    #[test]
    fn a_slow_demand_needs_time_to_be_told_from_silence() {
        let mut samples = Vec::new();
        counted(&mut samples, 1_000, &[1; 15]);
        counted(&mut samples, 4_000, &[0]);
        assert_eq!(changed_at(&samples), None, "one a second: 4 s say little");
    }
}
