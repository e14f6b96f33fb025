use super::*;
use crate::fence::{Missing, SPAN_MS, Span};
use crate::ids::{Life, Record};
use crate::schedule::{MICRO, PPB, Rate, Step};

const T0: u64 = 1_700_000_000_000;
const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;

/// Ten a second, at most ten at once.
const TEN: Rate = Rate {
    limit: 10,
    per_ms: SECOND_MS,
    burst: 10,
};

fn at(ms: u64) -> StoreMs {
    StoreMs(T0 + ms)
}

fn fence() -> Fence {
    Fence {
        record: Record {
            life: Life::from_random(1),
            epoch: Epoch(1),
            revision: 1,
        },
        span: Span {
            from: at(0),
            until: at(400 * DAY_MS),
        },
        epoch_began: at(0),
        missing: Missing::Full,
        closed_before: StoreMs(0),
    }
}

fn outside() -> Fence {
    Fence {
        span: Span::never(),
        ..fence()
    }
}

/// In the epoch after that of [`fence`].
fn next_epoch(began: StoreMs) -> Fence {
    let mut fence = fence();
    fence.record.epoch = Epoch(2);
    fence.epoch_began = began;
    fence
}

fn constant(rate: Rate) -> Rule {
    Rule::Bucket {
        schedule: Schedule::constant(rate.share(PPB)),
    }
}

fn stored(tokens: u64, ms: u64) -> Bucket {
    Bucket {
        tokens,
        at: at(ms),
        epoch: Epoch(1),
        holds: vec![],
    }
}

fn hold(id: u64, units: u64, until: StoreMs) -> Hold {
    Hold { id, units, until }
}

/// The whole units that `bucket` gives at `ms`.
fn units(bucket: &Bucket, rule: &Rule, ms: u64) -> u64 {
    Bucket::settle(Some(bucket), rule, None, &fence(), at(ms))
        .reading
        .available()
        / MICRO
}

// === buckets ===

#[test]
fn a_refused_request_consumes_nothing() {
    let rule = constant(TEN);
    let bucket = stored(3 * MICRO, 0);
    let settled = Bucket::settle(Some(&bucket), &rule, None, &fence(), at(0));
    assert!(!settled.reading.admits(4 * MICRO));
    assert!(settled.reading.admits(3 * MICRO));
    assert_eq!(settled.bucket, bucket);
}

#[test]
fn a_charge_takes_its_cost_and_no_more() {
    let rule = constant(TEN);
    let mut settled = Bucket::settle(None, &rule, None, &fence(), at(0));
    settled.charge(4 * MICRO, None);
    assert_eq!(settled.reading.available(), 6 * MICRO);
    assert_eq!(units(&settled.bucket, &rule, 0), 6);
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
        bucket = Bucket::settle(Some(&bucket), &rule, None, &fence(), at(ms)).bucket;
    }
    let once = Bucket::settle(Some(&stored(0, 0)), &rule, None, &fence(), bucket.at).bucket;
    assert!(bucket.tokens <= once.tokens);
}

#[test]
fn a_clock_that_went_back_refills_nothing_twice() {
    let rule = constant(TEN);
    let bucket = stored(0, 500);
    let settled = Bucket::settle(Some(&bucket), &rule, None, &fence(), at(200));
    assert_eq!(settled.bucket.tokens, 0);
    assert_eq!(settled.bucket.at, at(500), "it goes on from where it was");
    assert_eq!(units(&settled.bucket, &rule, 500), 0);
    assert_eq!(units(&settled.bucket, &rule, 600), 1);
}

#[test]
fn beyond_exact_numbers_the_flow_is_under_and_by_at_most_one() {
    let flow = Flow {
        cap: EXACT_CAP,
        whole: 0,
        rest: 9_999_999_999_998,
        per: 9_999_999_999_999,
    };
    for dt in [901, 1_000_003, DAY_MS, 365 * DAY_MS] {
        let exact = u128::from(flow.rest) * u128::from(dt) / u128::from(flow.per);
        let gain = u128::from(flow.gain(dt, EXACT_CAP));
        assert!(
            gain <= exact && gain + 2 > exact,
            "{gain} of {exact} in {dt}"
        );
    }
}

const EXACT_CAP: u64 = 9_007_199_254 * MICRO;

#[test]
fn an_idle_time_refills_piece_by_piece_along_the_schedule() {
    // A lender that had half until the first second was over, and all from then on.
    let (half, full) = (TEN.share(PPB / 2), TEN.share(PPB));
    let steps = [(0, half), (T0 + 1_000, full)].map(|(from, flow)| Step {
        from: StoreMs(from),
        flow,
    });
    let rule = Rule::Bucket {
        schedule: Schedule::new(steps),
    };
    assert_eq!(units(&stored(0, 0), &rule, 400), 2);
    assert_eq!(units(&stored(0, 0), &rule, 999), 4, "4.995");
    assert_eq!(units(&stored(0, 0), &rule, 1_000), 5);
    assert_eq!(units(&stored(0, 0), &rule, 1_200), 7, "5 + 2, not 12");
}

#[test]
fn tokens_above_a_lowered_capacity_are_gone_also_once_it_is_raised_again() {
    let (low, full) = (TEN.share(PPB / 5), TEN.share(PPB));
    let steps = [(0, full), (T0 + 100, low), (T0 + 200, full)].map(|(from, flow)| Step {
        from: StoreMs(from),
        flow,
    });
    let rule = Rule::Bucket {
        schedule: Schedule::new(steps),
    };
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 99), 10);
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 100), 2);
    assert_eq!(units(&stored(10 * MICRO, 0), &rule, 300), 3, "2 + 1");
}

#[test]
fn what_expired_is_full() {
    let rule = constant(TEN);
    let mut settled = Bucket::settle(None, &rule, None, &fence(), at(0));
    settled.charge(10 * MICRO, None);
    let ttl_ms = settled.ttl_ms(at(0));
    assert!(ttl_ms >= 1_000 + SPAN_MS);
    let kept = Bucket::settle(Some(&settled.bucket), &rule, None, &fence(), at(ttl_ms));
    let gone = Bucket::settle(None, &rule, None, &fence(), at(ttl_ms));
    assert_eq!(kept.reading, gone.reading);
}

#[test]
fn a_bucket_is_kept_until_it_is_full_under_its_last_step() {
    let later = 5_000;
    let steps = [(0, TEN.share(PPB)), (T0 + later, TEN.share(PPB / 10))].map(|(from, flow)| Step {
        from: StoreMs(from),
        flow,
    });
    let schedule = Schedule::new(steps);
    assert!(stored(0, 0).ttl_ms(&schedule, at(0)) >= later + 1_000);
    let mut held = stored(0, 0);
    held.holds.push(hold(1, MICRO, at(3_000)));
    assert!(held.ttl_ms(&schedule, at(0)) >= later + 1_000 + 3_000);
}

#[test]
fn what_may_have_been_lost_is_empty_when_it_was() {
    let rule = constant(TEN);
    let mut fence = fence();
    fence.missing = Missing::EmptyAt(at(0));
    let available = |ms| {
        let settled = Bucket::settle(None, &rule, None, &fence, at(ms));
        settled.reading.available() / MICRO
    };
    assert_eq!(available(0), 0);
    assert_eq!(available(500), 5);
    assert_eq!(available(60_000), 10);
}

#[test]
fn a_meter_that_is_gone_was_full_whether_or_not_it_was_traded() {
    // What is traded may outlive its meter: a loan that came back early leaves terms without a step.
    let rule = constant(TEN);
    let terms = Terms::Bucket {
        epoch: Epoch(1),
        schedule: Schedule::constant(TEN.share(PPB / 2)),
        own_cap: TEN.share(PPB / 2).cap,
    };
    let settled = Bucket::settle(None, &rule, Some(&terms), &fence(), at(0));
    assert_eq!(
        settled.reading.available(),
        5 * MICRO,
        "of the share in force"
    );
    let doubted = Fence {
        missing: Missing::EmptyAt(at(0)),
        ..fence()
    };
    let settled = Bucket::settle(None, &rule, Some(&terms), &doubted, at(200));
    assert_eq!(
        settled.reading.available(),
        MICRO,
        "and refilled since then"
    );
}

// === epochs and spans ===

#[test]
fn between_two_epochs_nothing_is_refilled() {
    let rule = constant(TEN);
    let began = at(60_000);
    let fence = next_epoch(began);
    let available = |now| {
        let settled = Bucket::settle(Some(&stored(MICRO, 0)), &rule, None, &fence, now);
        assert_eq!(settled.bucket.epoch, Epoch(2));
        settled.reading.available() / MICRO
    };
    assert_eq!(available(began), 1);
    assert_eq!(available(began.plus(300)), 4);
}

#[test]
fn what_was_borrowed_in_an_older_epoch_is_not_used() {
    // Its own is 2 of 10; a loan made it 8.
    let rule = Rule::Bucket {
        schedule: Schedule::constant(TEN.share(PPB / 5)),
    };
    let terms = Terms::Bucket {
        epoch: Epoch(1),
        schedule: Schedule::constant(TEN.share(PPB / 10 * 8)),
        own_cap: TEN.share(PPB / 5).cap,
    };
    let bucket = stored(8 * MICRO, 0);
    let before = Bucket::settle(Some(&bucket), &rule, Some(&terms), &fence(), at(0));
    assert_eq!(before.reading.available(), 8 * MICRO);
    let after = Bucket::settle(
        Some(&bucket),
        &rule,
        Some(&terms),
        &next_epoch(at(0)),
        at(0),
    );
    assert_eq!(after.reading.available(), 2 * MICRO);
}

#[test]
fn outside_the_span_a_bucket_spends_what_it_has_of_its_own_and_refills_nothing() {
    let rule = constant(TEN);
    let terms = Terms::Bucket {
        epoch: Epoch(1),
        schedule: Schedule::constant(TEN.share(PPB)),
        own_cap: 4 * MICRO,
    };
    let bucket = stored(7 * MICRO, 0);
    let mut s = Bucket::settle(Some(&bucket), &rule, Some(&terms), &outside(), at(60_000));
    assert!(!s.inside);
    assert_eq!(s.reading.available(), 4 * MICRO);
    s.charge(3 * MICRO, None);
    assert_eq!(s.bucket, stored(4 * MICRO, 0), "moment and epoch stay");
    let missing = Bucket::settle(None, &rule, None, &outside(), at(0));
    assert_eq!(missing.reading.available(), 0);
}

#[test]
fn outside_the_span_no_hold_expires() {
    let rule = constant(TEN);
    let mut bucket = stored(7 * MICRO, 0);
    bucket.holds.push(hold(1, 3 * MICRO, at(10)));
    let mut s = Bucket::settle(Some(&bucket), &rule, None, &outside(), at(60_000));
    assert!(s.end_hold(1, true));
    assert_eq!(s.bucket, stored(10 * MICRO, 0));
}

// === holds ===

#[test]
fn a_hold_is_released_once() {
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    s.charge(4 * MICRO, Some(hold(1, 4 * MICRO, at(1_000))));
    assert!(s.end_hold(1, true));
    assert_eq!(s.reading.available(), 10 * MICRO);
    assert!(!s.end_hold(1, true));
    assert_eq!(s.reading.available(), 10 * MICRO);
}

#[test]
fn a_hold_that_is_kept_is_spent() {
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    s.charge(4 * MICRO, Some(hold(1, 4 * MICRO, at(1_000))));
    assert!(s.end_hold(1, false));
    assert_eq!(s.reading.available(), 6 * MICRO);
    assert!(!s.end_hold(1, true));
}

#[test]
fn what_is_held_leaves_no_room_to_refill() {
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    s.charge(4 * MICRO, Some(hold(1, 4 * MICRO, at(60_000))));
    let mut s = Bucket::settle(Some(&s.bucket), &rule, None, &fence(), at(30_000));
    assert_eq!(s.reading.available(), 6 * MICRO);
    assert!(s.end_hold(1, true));
    assert_eq!(s.reading.available(), 10 * MICRO, "not 14");
}

#[test]
fn a_hold_that_is_not_ended_in_time_is_spent() {
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    s.charge(4 * MICRO, Some(hold(1, 4 * MICRO, at(1_000))));
    let mut before = Bucket::settle(Some(&s.bucket), &rule, None, &fence(), at(999));
    assert!(before.end_hold(1, true));
    let mut after = Bucket::settle(Some(&s.bucket), &rule, None, &fence(), at(1_000));
    assert!(!after.end_hold(1, true));
    assert_eq!(after.reading.available(), 6 * MICRO);
}

#[test]
fn what_a_hold_held_flows_in_again_from_when_it_ran_out() {
    // One unit each 100 ms; nothing is written in between, as where requests are refused.
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    s.charge(10 * MICRO, Some(hold(1, 10 * MICRO, at(1_000))));
    assert_eq!(units(&s.bucket, &rule, 999), 0);
    assert_eq!(units(&s.bucket, &rule, 1_300), 3);
    assert_eq!(units(&s.bucket, &rule, 2_500), 10);
}

#[test]
fn a_hold_of_an_older_epoch_starts_its_longest_term_again() {
    let rule = constant(TEN);
    let mut bucket = stored(0, 0);
    bucket.holds.push(hold(1, 4 * MICRO, at(10)));
    let began = at(60_000);
    let fence = next_epoch(began);
    let last = began.plus(HOLD_MAX_MS);
    let mut s = Bucket::settle(Some(&bucket), &rule, None, &fence, last.minus(1));
    assert!(s.end_hold(1, true));
    let mut s = Bucket::settle(Some(&bucket), &rule, None, &fence, last);
    assert!(!s.end_hold(1, true));
}

#[test]
fn a_meter_has_so_many_holds_and_no_more() {
    let rule = constant(TEN);
    let mut s = Bucket::settle(None, &rule, None, &fence(), at(0));
    for id in 0..HOLDS_MAX as u64 {
        assert!(s.can_hold());
        s.charge(0, Some(hold(id, 0, at(1_000))));
    }
    assert!(!s.can_hold());
}

// === windows ===

const PER_MS: u64 = 60_000;

fn window(base: u64) -> Rule {
    Rule::Window {
        per_ms: PER_MS,
        base,
        base_from: StoreMs(0),
    }
}

fn settle(stored: Option<&Window>, rule: &Rule, fence: &Fence, now: StoreMs) -> WindowSettled {
    Window::settle(stored, Window::label(rule, now), rule, None, fence, now)
}

#[test]
fn a_window_counts_to_its_rights_and_the_next_begins_at_nothing() {
    let rule = window(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    assert!(s.reading.admits(3) && !s.reading.admits(4));
    s.charge(3, None);
    assert!(!s.reading.admits(1) && s.reading.admits(0));
    let (_, end) = label_bounds(s.label, PER_MS);
    assert_eq!(label_at(end.minus(1), PER_MS), s.label);
    assert_eq!(label_at(end, PER_MS), s.label + 1);
}

#[test]
fn rights_received_and_given_count_and_never_below_nothing() {
    let rule = window(3);
    let label = Window::label(&rule, at(0));
    let rights = |delta| {
        let terms = Terms::Window { delta };
        let s = Window::settle(None, label, &rule, Some(&terms), &fence(), at(0));
        s.reading.available()
    };
    assert_eq!(rights(2), 5);
    assert_eq!(rights(-2), 1);
    assert_eq!(rights(-4), 0);
}

#[test]
fn a_window_that_begins_before_its_base_has_none() {
    let label = label_at(at(0), PER_MS);
    let (start, _) = label_bounds(label, PER_MS);
    let from = |base_from| Rule::Window {
        per_ms: PER_MS,
        base: 3,
        base_from,
    };
    assert_eq!(from(start).window_base(label), 3);
    assert_eq!(from(start.plus(1)).window_base(label), 0);
}

#[test]
fn a_label_whose_end_was_seen_to_pass_is_closed_for_good() {
    let rule = window(3);
    let label = Window::label(&rule, at(0));
    let (_, end) = label_bounds(label, PER_MS);
    let received = Terms::Window { delta: 5 };
    let rights = |closed_before| {
        let fence = Fence {
            closed_before,
            ..fence()
        };
        // The clock is back inside the window.
        let s = Window::settle(None, label, &rule, Some(&received), &fence, at(0));
        s.reading.available()
    };
    assert_eq!(rights(end.minus(1)), 8);
    assert_eq!(rights(end), 0);
}

#[test]
fn outside_the_span_no_window_is_opened() {
    let rule = window(3);
    let open = Window {
        used: 1,
        epoch: Epoch(1),
        holds: vec![],
    };
    let s = settle(Some(&open), &rule, &outside(), at(0));
    assert_eq!(s.reading.available(), 2);
    let s = settle(None, &rule, &outside(), at(0));
    assert_eq!(s.reading.available(), 0);
}

#[test]
fn a_window_is_kept_past_the_end_of_the_next() {
    let rule = window(3);
    let s = settle(None, &rule, &fence(), at(0));
    let (_, end) = label_bounds(s.label + 1, PER_MS);
    assert!(s.ttl_ms(at(0)) >= end.since(at(0)) + SPAN_MS);
}

#[test]
fn what_a_window_holds_counts_as_used_until_it_is_released() {
    let rule = window(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(2, Some(hold(1, 2, at(1_000))));
    assert_eq!(s.reading.available(), 1);
    let window = s.window.clone();
    assert!(s.end_hold(1, true));
    assert_eq!(s.reading.available(), 3);
    assert!(!s.end_hold(1, true));
    let mut late = settle(Some(&window), &rule, &fence(), at(1_000));
    assert!(!late.end_hold(1, true), "it counts as spent");
    assert_eq!(late.reading.available(), 1);
}
