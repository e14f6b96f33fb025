use super::*;

/// Ten a second, at most ten at once.
const TEN: Rate = Rate {
    limit: 10,
    per_ms: SECOND_MS,
    burst: 10,
};

fn bucket(rate: Rate, shares: Shares) -> Rule {
    Rule {
        limits: Limits {
            limit: rate.limit,
            burst: rate.burst,
        },
        ..rule(
            Algorithm::TokenBucket {
                per_ms: rate.per_ms,
            },
            rate.limit,
            Part::Shares(shares),
        )
    }
}

fn constant(rate: Rate) -> Rule {
    bucket(rate, Shares::constant(PPB))
}

fn along(steps: &[(u64, u64)]) -> Shares {
    Shares::new(steps.iter().map(|&(from, ppb)| Step {
        from: StoreMs(from),
        ppb,
    }))
}

fn stored(tokens: u64, ms: u64) -> Meter {
    meter(State::Bucket { tokens, at: at(ms) })
}

fn tokens(meter: &Meter) -> u64 {
    match meter.state {
        State::Bucket { tokens, .. } => tokens,
        _ => panic!("a bucket"),
    }
}

/// The whole units that `bucket` gives at `ms`.
fn units(bucket: &Meter, rule: &Rule, ms: u64) -> u64 {
    settle(Some(bucket), rule, &fence(), at(ms)).available() / MICRO
}

#[test]
fn a_refused_request_consumes_nothing() {
    let rule = constant(TEN);
    let bucket = stored(3 * MICRO, 0);
    let settled = settle(Some(&bucket), &rule, &fence(), at(0));
    assert!(settled.available() < 4 * MICRO);
    assert!(settled.available() >= 3 * MICRO);
    assert_eq!(settled.meter, bucket);
}

#[test]
fn a_charge_takes_its_cost_and_no_more() {
    let rule = constant(TEN);
    let mut settled = settle(None, &rule, &fence(), at(0));
    settled.charge(4 * MICRO, 0, None);
    assert_eq!(settled.available(), 6 * MICRO);
    assert_eq!(units(&settled.meter, &rule, 0), 6);
}

#[test]
fn a_unit_is_back_at_its_tick_and_not_before() {
    // One unit each 100 ms.
    let rule = constant(TEN);
    let empty = stored(0, 0);
    assert_eq!(units(&empty, &rule, 99), 0);
    assert_eq!(units(&empty, &rule, 100), 1);
    assert_eq!(units(&empty, &rule, 101), 1);
    // And where the tick isn't a whole number of milliseconds: one unit each 333 1/3 ms.
    let third = constant(Rate {
        limit: 3,
        per_ms: SECOND_MS,
        burst: 3,
    });
    assert_eq!(units(&empty, &third, 333), 0);
    assert_eq!(units(&empty, &third, 334), 1);
    assert_eq!(units(&empty, &third, 999), 2);
    assert_eq!(units(&empty, &third, 1_000), 3);
}

#[test]
fn what_time_for_says_is_the_first_moment_that_is_enough() {
    for rate in [
        TEN,
        Rate {
            limit: 7,
            per_ms: 365 * DAY_MS,
            burst: 7,
        },
        Rate {
            limit: 9_007_199_254,
            per_ms: 999_983,
            burst: 9_007_199_254,
        },
    ] {
        let flow = rate.share(PPB);
        for amount in [1, MICRO, 3 * MICRO, 7 * MICRO - 1] {
            let tick = flow.time_for(amount).unwrap();
            assert!(flow.gain(tick, u64::MAX) >= amount, "{rate:?} {amount}");
            assert!(flow.gain(tick - 1, u64::MAX) < amount, "{rate:?} {amount}");
        }
    }
    assert_eq!(Flow::NONE.time_for(1), None);
}

#[test]
fn many_small_settlements_never_give_more_than_one_large_one() {
    let rate = Rate {
        limit: 12_345,
        per_ms: 999_983,
        burst: 1_000_000,
    };
    let rule = constant(rate);
    let mut bucket = stored(0, 0);
    for ms in (0..5_000).step_by(7) {
        bucket = settle(Some(&bucket), &rule, &fence(), at(ms)).meter;
    }
    let last = (0..5_000).step_by(7).last().unwrap_or(0);
    let once = settle(Some(&stored(0, 0)), &rule, &fence(), at(last)).meter;
    assert!(tokens(&bucket) <= tokens(&once));
}

#[test]
fn a_clock_that_went_back_refills_nothing_twice() {
    let rule = constant(TEN);
    let bucket = stored(0, 500);
    let settled = settle(Some(&bucket), &rule, &fence(), at(200));
    assert_eq!(settled.meter, bucket, "it goes on from where it was");
    assert_eq!(units(&settled.meter, &rule, 500), 0);
    assert_eq!(units(&settled.meter, &rule, 600), 1);
}

#[test]
fn an_idle_time_refills_piece_by_piece_along_the_schedule() {
    // A lender that had half until the first second was over, and all from then on.
    let rule = bucket(TEN, along(&[(0, PPB / 2), (T0 + 1_000, PPB)]));
    assert_eq!(units(&stored(0, 0), &rule, 400), 2);
    assert_eq!(units(&stored(0, 0), &rule, 999), 4, "4.995");
    assert_eq!(units(&stored(0, 0), &rule, 1_000), 5);
    assert_eq!(units(&stored(0, 0), &rule, 1_200), 7, "5 + 2, not 12");
}

#[test]
fn tokens_above_a_lowered_capacity_are_gone_also_once_it_is_raised_again() {
    let steps = [(0, PPB), (T0 + 100, PPB / 5), (T0 + 200, PPB)];
    let rule = bucket(TEN, along(&steps));
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 99), 10);
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 100), 2);
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 300), 3, "2 + 1");
}

#[test]
fn what_expired_is_full() {
    let rule = constant(TEN);
    let mut settled = settle(None, &rule, &fence(), at(0));
    settled.charge(10 * MICRO, 0, None);
    let ttl_ms = kept_ms(&settled);
    assert!(ttl_ms >= 1_000 + SPAN_MS);
    let kept = settle(Some(&settled.meter), &rule, &fence(), at(ttl_ms));
    let gone = settle(None, &rule, &fence(), at(ttl_ms));
    assert_eq!(kept.reading(0), gone.reading(0));
}

#[test]
fn a_bucket_is_kept_until_it_is_full_under_its_last_step() {
    let later = 5_000;
    let rule = bucket(TEN, along(&[(0, PPB), (T0 + later, PPB / 10)]));
    let ttl_ms = |stored: &Meter| kept_ms(&settle(Some(stored), &rule, &fence(), at(0)));
    assert!(ttl_ms(&stored(0, 0)) >= later + 1_000);
    let mut held = stored(0, 0);
    held.holds.push(hold(1, MICRO, at(3_000)));
    assert!(ttl_ms(&held) >= later + 1_000 + 3_000);
}

#[test]
fn what_may_have_been_lost_is_empty_when_it_was() {
    let rule = constant(TEN);
    let fence = doubted(at(0));
    let available = |ms| {
        let settled = settle(None, &rule, &fence, at(ms));
        settled.available() / MICRO
    };
    assert_eq!(available(0), 0);
    assert_eq!(available(500), 5);
    assert_eq!(available(60_000), 10);
}

#[test]
fn a_meter_that_is_gone_was_full_whether_or_not_it_was_traded() {
    // What is traded may outlive its meter: a loan that came back early leaves terms without a step.
    let rule = constant(TEN);
    let terms = terms(PPB / 2, PPB / 2);
    let settled = Settled::new(None, None, &rule, Some(&terms), &fence(), at(0));
    assert_eq!(settled.available(), 5 * MICRO, "of the share in force");
    let settled = Settled::new(None, None, &rule, Some(&terms), &doubted(at(0)), at(200));
    assert_eq!(settled.available(), MICRO, "and refilled since then");
}

// === epochs and spans ===

#[test]
fn between_two_epochs_nothing_is_refilled() {
    let rule = constant(TEN);
    let began = at(60_000);
    let fence = next_epoch(began);
    let available = |now| {
        let settled = settle(Some(&stored(MICRO, 0)), &rule, &fence, now);
        assert_eq!(settled.meter.epoch, Epoch(2));
        settled.available() / MICRO
    };
    assert_eq!(available(began), 1);
    assert_eq!(available(began.plus(300)), 4);
}

#[test]
fn what_was_borrowed_in_an_older_epoch_is_not_used() {
    // Its own is 2 of 10; a loan made it 8.
    let rule = bucket(TEN, Shares::constant(PPB / 5));
    let terms = Terms::Loans {
        epoch: Epoch(1),
        shares: along(&[(0, PPB / 10 * 8), (T0 + 10_000, PPB / 5)]),
        own_ppb: PPB / 5,
    };
    let bucket = stored(8 * MICRO, 0);
    let before = Settled::new(Some(&bucket), None, &rule, Some(&terms), &fence(), at(0));
    assert_eq!(before.available(), 8 * MICRO);
    let next = next_epoch(at(0));
    let after = Settled::new(Some(&bucket), None, &rule, Some(&terms), &next, at(0));
    assert_eq!(after.available(), 2 * MICRO);
}

#[test]
fn outside_the_span_a_bucket_spends_what_it_has_of_its_own_and_refills_nothing() {
    let rule = constant(TEN);
    let terms = terms(PPB, PPB / 10 * 4);
    let bucket = stored(7 * MICRO, 0);
    let (terms, now) = (Some(&terms), at(60_000));
    let mut s = Settled::new(Some(&bucket), None, &rule, terms, &outside(), now);
    assert!(!s.inside);
    assert_eq!(s.available(), 4 * MICRO);
    s.charge(3 * MICRO, 0, None);
    assert_eq!(s.meter, stored(4 * MICRO, 60_000), "it goes on from now");
    let missing = settle(None, &rule, &outside(), at(0));
    assert_eq!(missing.available(), 0);
}

/// A charge is of now, in the span or not: a bucket that was full by then isn't filled again for the time before.
#[test]
fn what_is_spent_outside_the_span_does_not_flow_back_for_the_time_before() {
    let rule = constant(TEN);
    let later = next_epoch(at(300));
    for (within, epoch) in [(fence(), fence()), (later, later)] {
        let out = Fence {
            span: Span::never(),
            ..epoch
        };
        let mut s = settle(Some(&stored(9 * MICRO, 0)), &rule, &out, at(700));
        s.charge(9 * MICRO, 0, None);
        let Keep::AtLeast(ttl_ms) = s.keep() else {
            panic!("{:?}", s.keep());
        };
        let back = settle(Some(&s.meter), &rule, &within, at(800));
        assert_eq!(back.available(), MICRO, "of 100 ms");
        let full = settle(Some(&s.meter), &rule, &within, at(700 + ttl_ms));
        assert_eq!(full.available(), 10 * MICRO, "it is kept until it is full");
    }
}

#[test]
fn outside_the_span_no_hold_expires() {
    let rule = constant(TEN);
    let mut bucket = stored(7 * MICRO, 0);
    bucket.holds.push(hold(1, 3 * MICRO, at(10)));
    let mut s = settle(Some(&bucket), &rule, &outside(), at(60_000));
    assert!(s.end_hold(1, true));
    assert_eq!(s.meter, stored(10 * MICRO, 60_000));
}

// === holds ===

#[test]
fn a_hold_is_released_once() {
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(4 * MICRO, 1, Some(1_000));
    assert!(s.end_hold(1, true));
    assert_eq!(s.available(), 10 * MICRO);
    assert!(!s.end_hold(1, true));
    assert_eq!(s.available(), 10 * MICRO);
}

#[test]
fn a_hold_that_is_kept_is_spent() {
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(4 * MICRO, 1, Some(1_000));
    assert!(s.end_hold(1, false));
    assert_eq!(s.available(), 6 * MICRO);
    assert!(!s.end_hold(1, true));
}

#[test]
fn what_is_held_leaves_no_room_to_refill() {
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(4 * MICRO, 1, Some(60_000));
    let mut s = settle(Some(&s.meter), &rule, &fence(), at(30_000));
    assert_eq!(s.available(), 6 * MICRO);
    assert!(s.end_hold(1, true));
    assert_eq!(s.available(), 10 * MICRO, "not 14");
}

#[test]
fn a_hold_that_is_not_ended_in_time_is_spent() {
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(4 * MICRO, 1, Some(1_000));
    let mut before = settle(Some(&s.meter), &rule, &fence(), at(999));
    assert!(before.end_hold(1, true));
    let mut after = settle(Some(&s.meter), &rule, &fence(), at(1_000));
    assert!(!after.end_hold(1, true));
    assert_eq!(after.available(), 6 * MICRO);
}

#[test]
fn what_a_hold_held_flows_in_again_from_when_it_ran_out() {
    // One unit each 100 ms; nothing is written in between, as where requests are refused.
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(10 * MICRO, 1, Some(1_000));
    assert_eq!(units(&s.meter, &rule, 999), 0);
    assert_eq!(units(&s.meter, &rule, 1_300), 3);
    assert_eq!(units(&s.meter, &rule, 2_500), 10);
}

#[test]
fn a_hold_of_an_older_epoch_starts_its_longest_term_again() {
    let rule = constant(TEN);
    let mut bucket = stored(0, 0);
    bucket.holds.push(hold(1, 4 * MICRO, at(10)));
    let began = at(60_000);
    let fence = next_epoch(began);
    let last = began.plus(HOLD_MAX_MS);
    let mut s = settle(Some(&bucket), &rule, &fence, last.minus(1));
    assert!(s.end_hold(1, true));
    let mut s = settle(Some(&bucket), &rule, &fence, last);
    assert!(!s.end_hold(1, true));
}

#[test]
fn a_meter_has_so_many_holds_and_no_more() {
    let rule = constant(TEN);
    let mut s = settle(None, &rule, &fence(), at(0));
    for id in 0..HOLDS_MAX as u64 {
        assert!(s.can_hold());
        s.charge(0, id, Some(1_000));
    }
    assert!(!s.can_hold());
}

#[test]
fn a_plan_that_changes_moves_no_tokens() {
    let plan = |limit, burst| Rule {
        by_plan: true,
        fill_ms: 60_000,
        ..constant(Rate {
            limit,
            per_ms: SECOND_MS,
            burst,
        })
    };
    let (free, pro) = (plan(1, 10), plan(100, 500));
    let mut s = settle(None, &pro, &fence(), at(0));
    s.charge(100 * MICRO, 0, None);
    assert_eq!(s.meter.limits, Some(pro.limits));
    let lower = settle(Some(&s.meter), &free, &fence(), at(0));
    assert_eq!(lower.available(), 10 * MICRO);
    let again = settle(Some(&lower.meter), &pro, &fence(), at(0));
    assert_eq!(
        again.available(),
        10 * MICRO,
        "what it had isn't given again"
    );
    assert!(kept_ms(&lower) >= 60_000, "as long as any plan fills");
}

#[test]
fn a_key_first_seen_after_a_raise_is_full_at_the_older_share_and_fills_from_there() {
    let raised = along(&[(0, PPB / 10), (T0 + 10_000, PPB)]);
    let rule = bucket(TEN, raised);
    let first = |ms: u64| settle(None, &rule, &fence(), at(ms)).available();
    assert_eq!(first(9_000), MICRO);
    assert_eq!(first(10_000), MICRO);
    assert_eq!(first(10_100), 2 * MICRO);
    assert_eq!(first(60_000), 10 * MICRO);
}

#[test]
fn terms_from_before_the_base_was_lowered_leave_what_rests_on_no_loan() {
    let before = Terms::Loans {
        epoch: Epoch(1),
        shares: along(&[(0, PPB * 9 / 10), (T0 + 10_000, PPB / 2)]),
        own_ppb: PPB * 4 / 10,
    };
    let of = |base: u64| {
        let rule = bucket(TEN, Shares::constant(base));
        Settled::new(None, None, &rule, Some(&before), &fence(), at(0)).of
    };
    assert_eq!(of(PPB / 2), 9 * MICRO, "it borrows");
    assert_eq!(of(PPB * 45 / 100), 4 * MICRO, "it has lent a tenth");
    assert_eq!(of(PPB * 3 / 10), 3 * MICRO);
}
