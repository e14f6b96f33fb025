//! Merged usage as it is shown: totals, the split by region, and how much of it is certain.

use crate::node::{Counts, PeriodUsage};
use apportion_core::lives::RegionState;
use apportion_core::{Actor, Algorithm, Limits, Policy, Region, StoreMs};
use std::collections::BTreeMap;

/// The slots of one period, `None` standing for the store's own actor.
type Slots = Vec<(Option<Actor>, Counts)>;

/// The periods that something was counted in.
///
/// A period is complete once it is over, every region has told all of it, and no life that may have counted in it was
/// lost untold. Where one was, what was admitted lies between what is known and what the promise allows at most.
#[expect(
    clippy::too_many_arguments,
    reason = "all that is known, put together in one place"
)]
pub(crate) fn merge_periods(
    policy: &Policy,
    period_ms: u64,
    regions: &[Region],
    state: &RegionState,
    now: StoreMs,
    marks: &[(Actor, StoreMs)],
    starts: Vec<StoreMs>,
    periods: Vec<Slots>,
) -> Vec<PeriodUsage> {
    let view = View {
        policy,
        period_ms,
        regions,
        state,
        now,
        marks,
    };
    let counted = starts
        .into_iter()
        .zip(periods)
        .filter(|(_, slots)| !slots.is_empty());
    counted
        .map(|(start, slots)| view.period(start, slots))
        .collect()
}

struct View<'a> {
    policy: &'a Policy,
    period_ms: u64,
    regions: &'a [Region],
    state: &'a RegionState,
    now: StoreMs,
    marks: &'a [(Actor, StoreMs)],
}

impl View<'_> {
    fn period(&self, start: StoreMs, slots: Slots) -> PeriodUsage {
        let end = start.plus(self.period_ms);
        let mut by_region: BTreeMap<Region, (Counts, StoreMs)> = self
            .regions
            .iter()
            .map(|r| (r.clone(), (Counts::default(), self.through(r))))
            .collect();
        let mut total = Counts::default();
        for (actor, counts) in slots {
            let region = actor.map_or_else(|| self.state.region.clone(), |actor| actor.region);
            total = total.plus(counts);
            // It may be one that no revision names any more.
            let through = self.through(&region);
            let entry = by_region
                .entry(region)
                .or_insert((Counts::default(), through));
            entry.0 = entry.0.plus(counts);
        }
        let doubtful = self.may_be_short(start, end);
        let told = by_region.values().all(|(_, through)| *through >= end);
        let low = total.net();
        let high = if doubtful { self.most().max(low) } else { low };
        PeriodUsage {
            start,
            end,
            total,
            by_region,
            complete: told && !doubtful,
            low,
            high,
        }
    }

    /// Up to when the present life of a region has told what it counted.
    fn through(&self, region: &Region) -> StoreMs {
        if *region == self.state.region {
            return self.now;
        }
        let present = |actor: &&(Actor, StoreMs)| {
            actor.0.region == *region && self.state.is_present(&actor.0)
        };
        self.marks
            .iter()
            .find(present)
            .map_or(StoreMs(0), |(_, through)| *through)
    }

    /// Whether a life that is over may have counted in the period and died before it told.
    fn may_be_short(&self, start: StoreMs, end: StoreMs) -> bool {
        let own_past = self
            .state
            .known
            .get(&self.state.region)
            .is_some_and(|lives| lives.len() > 1);
        if own_past && start <= self.state.began_at {
            return true;
        }
        let lost = |region: &Region, life| {
            let actor = Actor {
                region: region.clone(),
                life,
            };
            !self.state.is_present(&actor)
                && !self
                    .marks
                    .iter()
                    .any(|(marked, through)| *marked == actor && *through >= end)
        };
        let began = |region: &Region| {
            self.state
                .began
                .get(region)
                .copied()
                .unwrap_or(StoreMs::MAX)
        };
        let peers = self
            .state
            .known
            .iter()
            .filter(|(region, _)| **region != self.state.region);
        peers.into_iter().any(|(region, lives)| {
            start <= began(region) && lives.iter().any(|life| lost(region, *life))
        })
    }

    /// The most that the policy's promise allows one subject in one period.
    fn most(&self) -> u64 {
        let Limits { limit, burst } = self.policy.largest();
        let periods = |per_ms: u64| self.period_ms.div_ceil(per_ms).saturating_add(1);
        match self.policy.algorithm {
            Algorithm::FixedWindow { period } => {
                limit.saturating_mul(periods(period.shortest_ms()))
            }
            Algorithm::SlidingLog { per_ms } => limit.saturating_mul(periods(per_ms)),
            // In the two-cell form a trailing window can see twice the limit.
            Algorithm::SlidingWindow { per_ms, .. } => limit.saturating_mul(2 * periods(per_ms)),
            Algorithm::TokenBucket { per_ms } | Algorithm::Gcra { per_ms } => {
                let flow = u128::from(limit) * u128::from(self.period_ms) / u128::from(per_ms);
                burst.saturating_add(u64::try_from(flow).unwrap_or(u64::MAX))
            }
            // A slot can be taken and released at any rate.
            Algorithm::Concurrency { .. } => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_core::lives::OnEmpty;
    use apportion_core::{Life, PolicySet};

    const HOUR: u64 = 3_600_000;

    fn policies() -> PolicySet {
        let text = r#"
            regions = ["a", "b"]
            [[policy]]
            name = "day"
            key = ["tenant"]
            algorithm = "fixed-window"
            limit = 100
            per = "24h"
            usage = "1h"
        "#;
        PolicySet::parse(text, "test").expect("the policies are valid")
    }

    fn slot(region: &str, life: u64, admitted: u64) -> (Option<Actor>, Counts) {
        let actor = Actor {
            region: Region::new(region),
            life: Life::from_random(life),
        };
        (
            Some(actor),
            Counts {
                admitted,
                ..Counts::default()
            },
        )
    }

    fn merge(
        state: &RegionState,
        marks: &[(Actor, StoreMs)],
        now: u64,
        slots: Slots,
    ) -> PeriodUsage {
        let set = policies();
        let (policy, start) = (&set.policies[0], StoreMs(24 * HOUR));
        let mut periods = merge_periods(
            policy,
            HOUR,
            &set.regions,
            state,
            StoreMs(now),
            marks,
            vec![start],
            vec![slots],
        );
        periods.pop().expect("one period was counted")
    }

    fn state() -> RegionState {
        let (a, b) = (Region::new("a"), Region::new("b"));
        let born = StoreMs(HOUR);
        let mut state = RegionState::on_empty(
            &a,
            Life::from_random(1),
            "",
            born,
            OnEmpty::New,
            std::slice::from_ref(&b),
        );
        state.present.insert(b.clone(), Life::from_random(2));
        state.began.insert(b.clone(), born);
        state
            .known
            .entry(b)
            .or_default()
            .insert(Life::from_random(2));
        state
    }

    #[test]
    fn a_period_is_complete_once_it_is_over_and_every_region_has_told_all_of_it() {
        let state = state();
        let b = Actor {
            region: Region::new("b"),
            life: Life::from_random(2),
        };
        let own = (
            None,
            Counts {
                admitted: 3,
                refunded: 1,
                refused: 0,
            },
        );
        let over = 25 * HOUR;
        let until = |through: u64| vec![(b.clone(), StoreMs(through))];
        let usage = merge(
            &state,
            &until(over),
            over,
            vec![own.clone(), slot("b", 2, 4)],
        );
        assert!(usage.complete);
        assert_eq!((usage.total.admitted, usage.low, usage.high), (7, 6, 6));
        assert!(
            !merge(&state, &until(over - 1), over, vec![own.clone()]).complete,
            "b has more to tell"
        );
        assert!(
            !merge(&state, &until(over), over - 1, vec![own]).complete,
            "it isn't over here"
        );
    }

    #[test]
    fn a_lost_life_that_may_have_counted_leaves_a_range() {
        let mut state = state();
        let (b, lost, new) = (Region::new("b"), Life::from_random(2), Life::from_random(5));
        state.present.insert(b.clone(), new);
        state.known.entry(b.clone()).or_default().insert(new);
        state.began.insert(b.clone(), StoreMs(24 * HOUR + 10));
        let marks = vec![
            (
                Actor {
                    region: b.clone(),
                    life: lost,
                },
                StoreMs(24 * HOUR + 5),
            ),
            (
                Actor {
                    region: b.clone(),
                    life: new,
                },
                StoreMs(26 * HOUR),
            ),
        ];
        let usage = merge(&state, &marks, 26 * HOUR, vec![slot("b", 2, 40)]);
        assert!(!usage.complete);
        assert_eq!((usage.low, usage.high), (40, 200));
        state.began.insert(b, StoreMs(24 * HOUR - 1));
        let usage = merge(&state, &marks, 26 * HOUR, vec![slot("b", 5, 40)]);
        assert!(
            usage.complete,
            "the life that was lost was over before the period began"
        );
    }
}
