//! What a tolerance comes to: what is known is doubted on the admitting side, and an overdraft is a budget like any.

use super::*;

fn bucket(limit: u64) -> Rule {
    whole(Algorithm::TokenBucket { per_ms: SECOND_MS }, limit)
}

fn window(limit: u64) -> Rule {
    let period = Period::every(60_000);
    let base = Part::Base {
        units: limit / 2,
        from: StoreMs(0),
    };
    rule(Algorithm::FixedWindow { period }, limit, base)
}

/// With an overdraft of `ppb` of the budget, or of `units` of a window, and half of the budget as its own.
fn over(rule: Rule, ppb: u64, units: u64) -> Rule {
    let shares = |ppb| Part::Shares(Shares::constant(ppb));
    match rule.algorithm {
        Algorithm::FixedWindow { .. } => Rule {
            slack: Slack::Over(Part::Base {
                units,
                from: StoreMs(0),
            }),
            ..rule
        },
        _ => Rule {
            slack: Slack::Over(shares(ppb)),
            part: shares(PPB / 2),
            ..rule
        },
    }
}

#[test]
fn what_is_known_of_a_rate_is_doubted_wherever_the_clock_or_the_store_may_have_failed() {
    let day = 86_400_000;
    for algorithm in [
        Algorithm::TokenBucket { per_ms: day },
        Algorithm::SlidingLog { per_ms: day },
        Algorithm::SlidingWindow {
            per_ms: day,
            buckets: 10,
        },
    ] {
        let rule = whole(algorithm, 10).known();
        let unit = rule.unit();
        let lost = settle(None, &rule, &doubted(at(0)), at(5));
        assert_eq!(lost.available(), 10 * unit, "a lost store knows nothing");
        let mut used = settle(None, &rule, &fence(), at(5));
        used.charge(10 * unit, 0, None);
        let stored = Some(&used.meter);
        assert_eq!(settle(stored, &rule, &fence(), at(6)).available(), 0);
        let stepped = settle(stored, &rule, &next_epoch(at(6)), at(7));
        assert_eq!(stepped.available(), 10 * unit);
        let unsure = settle(stored, &rule, &outside(), at(7));
        assert_eq!(unsure.available(), 10 * unit);
        assert!(!unsure.is_kept(), "and nothing is noted by such a clock");
    }
}

#[test]
fn what_is_known_of_a_window_needs_no_clock() {
    let rule = window(10).known();
    let label = rule.label(at(5));
    let of = |stored, fence: &Fence| {
        let s = Settled::new(stored, label, &rule, None, fence, at(5));
        (s.available(), s.is_kept())
    };
    assert_eq!(of(None, &fence()), (10, true), "all of it, not the base");
    let stored = meter(State::Window { used: 7 });
    let closed = Fence {
        closed_before: StoreMs::MAX,
        ..fence()
    };
    for fence in [next_epoch(at(0)), outside(), closed] {
        assert_eq!(of(Some(&stored), &fence), (3, true));
    }
}

#[test]
fn the_overdraft_is_drawn_on_only_while_what_is_known_is_below_the_limit() {
    for (rule, unit) in [
        (over(bucket(100), PPB / 10, 0), MICRO),
        (over(window(100), 0, 10), 1),
    ] {
        let rules = rule.beside().unwrap();
        let settle = |known: Option<&Meter>| {
            let stored = Beside {
                overdraft: None,
                known,
            };
            Beside::<Settled<'_>>::settle(&rules, stored, rule.label(at(0)), &fence(), at(0))
        };
        let mut beside = settle(None);
        assert_eq!(beside.available(0), 10 * unit);
        assert_eq!(beside.available(50 * unit), 60 * unit);
        assert_eq!(beside.known.debit(95 * unit, 0, None), 0);
        assert_eq!(beside.available(0), 5 * unit);
        assert_eq!(
            beside.available(50 * unit),
            50 * unit,
            "its own rights it has whatever is known"
        );
        assert_eq!(
            beside.known.debit(95 * unit, 0, None),
            90 * unit,
            "never below zero"
        );
        beside.charge(3 * unit, 3 * unit, 0, None);
        assert_eq!(beside.overdraft.available(), 7 * unit);
    }
}

#[test]
fn an_overdraft_that_may_have_been_spent_is_not_there() {
    let rule = over(bucket(100), PPB / 10, 0);
    let rules = rule.beside().unwrap();
    let stored = Beside {
        overdraft: None,
        known: None,
    };
    let beside = Beside::<Settled<'_>>::settle(&rules, stored, None, &doubted(at(0)), at(500));
    assert_eq!(
        beside.available(0),
        5 * MICRO,
        "what flowed in since the store may have been lost"
    );
    assert_eq!(beside.known.available(), 100 * MICRO);
}

#[test]
fn what_was_said_long_ago_is_taken_out_of_a_window_alone() {
    assert_eq!(window(10).debit(7, 2), 7);
    assert_eq!(bucket(10).debit(7, 2), 2 * MICRO);
    assert_eq!(whole(Algorithm::SlidingLog { per_ms: 9 }, 1).debit(7, 9), 7);
}
