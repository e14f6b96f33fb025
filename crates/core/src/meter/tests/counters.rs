use super::*;
use proptest::prelude::*;

const MINUTE_MS: u64 = 60_000;

fn counter(limit: u64, buckets: u32) -> Rule {
    let per_ms = MINUTE_MS;
    whole(Algorithm::SlidingWindow { per_ms, buckets }, limit)
}

/// The first whole minute after `T0`, less `T0`.
const BEGINS: u64 = MINUTE_MS - T0 % MINUTE_MS;

#[test]
fn the_worked_case_of_the_two_cell_form() {
    // At second 15 of 60: 80 x 0.75 + 30 = 90, under 100.
    let rule = counter(100, 1);
    let mut run = Run::new(&rule);
    assert!(run.charge(BEGINS + 59_999, 80));
    assert!(run.charge(BEGINS + MINUTE_MS + 15_000, 30));
    let s = settle(
        run.stored.as_ref(),
        &rule,
        &fence(),
        at(BEGINS + MINUTE_MS + 15_000),
    );
    assert_eq!((s.counted(), s.available()), (90, 10));
    assert!(run.charge(BEGINS + MINUTE_MS + 15_000, 10));
    assert!(!run.charge(BEGINS + MINUTE_MS + 15_000, 1));
}

#[test]
fn a_part_of_a_unit_counts_as_a_whole_one() {
    // 1 x 59,999/60,000 of the previous window is left: nothing fits beside it.
    let rule = counter(1, 1);
    let mut run = Run::new(&rule);
    assert!(run.charge(BEGINS, 1));
    assert!(!run.charge(BEGINS + MINUTE_MS + 1, 1));
    assert!(!run.charge(BEGINS + 2 * MINUTE_MS - 1, 1));
    assert!(run.charge(BEGINS + 2 * MINUTE_MS, 1));
}

#[test]
fn what_the_counter_says_to_a_refusal_is_the_first_moment_that_is_enough() {
    for buckets in [1, 2, 7, 20, 60] {
        let rule = counter(100, buckets);
        let mut run = Run::new(&rule);
        assert!(run.charge(BEGINS + 3, 7));
        assert!(run.charge(BEGINS + 30_000, 60));
        assert!(run.charge(BEGINS + 59_999, 33));
        for ms in [BEGINS + 59_999, BEGINS + MINUTE_MS, BEGINS + 70_001] {
            for need in 1..=100 {
                match run.retry_ms(ms, need).unwrap() {
                    0 => assert!(run.available(ms) >= need),
                    wait => {
                        assert!(run.available(ms + wait) >= need, "{buckets} {ms} {need}");
                        assert!(run.available(ms + wait - 1) < need, "{buckets} {ms} {need}");
                    }
                }
            }
        }
        assert_eq!(run.retry_ms(BEGINS + 59_999, 101), None);
    }
}

#[test]
fn with_cells_the_oldest_counts_in_full_until_it_is_out() {
    // Cells of three seconds.
    let rule = counter(10, 20);
    let mut run = Run::new(&rule);
    assert_eq!(run.fill(BEGINS + 2_999), 10);
    assert_eq!(run.fill(BEGINS + 62_999), 0);
    assert_eq!(run.fill(BEGINS + 63_000), 10);
}

#[test]
fn the_two_cell_form_can_see_twice_the_limit_in_a_trailing_window() {
    let rule = counter(100, 1);
    let mut run = Run::new(&rule);
    let mut admitted = run.fill(BEGINS + 59_999);
    for ms in (0..59_999).step_by(100) {
        admitted += run.fill(BEGINS + MINUTE_MS + ms);
    }
    assert_eq!(admitted, 199, "in less than a minute");
}

proptest! {
    /// 0% over the limit, where the default is held to 5%.
    #[test]
    fn with_cells_no_trailing_window_is_over_the_limit(
        buckets in 2..=60u32,
        steps in prop::collection::vec((0..9_000u64, 1..40u64), 1..200),
    ) {
        let rule = counter(100, buckets);
        let mut run = Run::new(&rule);
        let (mut ms, mut admitted) = (0, Vec::new());
        for (pause, cost) in steps {
            ms += pause;
            if run.charge(ms, cost) {
                admitted.push((ms, cost));
            }
        }
        for (end, _) in &admitted {
            let window = admitted.iter().filter(|(at, _)| at <= end && at + MINUTE_MS > *end);
            prop_assert!(window.map(|(_, cost)| cost).sum::<u64>() <= 100);
        }
    }
}

#[test]
fn an_even_stream_loses_less_than_a_cell_by_the_default() {
    let rule = counter(1_000, 20);
    let mut run = Run::new(&rule);
    let mut admitted = 0;
    // Twice the limit, evenly, for an hour; the first minute aside.
    for ms in (0..61 * MINUTE_MS).step_by(30) {
        let fits = run.charge(BEGINS + ms, 1);
        admitted += u64::from(fits && ms >= MINUTE_MS);
    }
    assert!(admitted >= 60 * 1_000 * 20 / 21 - 1_000, "{admitted}");
}

#[test]
fn after_a_step_back_the_newest_cell_goes_on() {
    for buckets in [1, 20] {
        let rule = counter(2, buckets);
        let mut run = Run::new(&rule);
        assert!(run.charge(BEGINS + 20_000, 1));
        assert!(run.charge(BEGINS + 10_000, 1), "ten seconds back");
        assert!(!run.charge(BEGINS + 10_000, 1));
        assert!(!run.charge(BEGINS + 20_000, 1));
    }
}

#[test]
fn a_counter_that_may_be_lost_gives_nothing_until_all_it_gave_is_over() {
    let rule = counter(2, 20);
    let available = |ms| settle(None, &rule, &doubted(at(0)), at(ms)).available();
    assert_eq!(available(2 * MINUTE_MS - 1), 0);
    assert_eq!(available(2 * MINUTE_MS), 2);
}

#[test]
fn of_an_older_epoch_all_counts_from_the_new_one_on() {
    for buckets in [1, 20] {
        let rule = counter(3, buckets);
        let mut run = Run::new(&rule);
        assert!(run.charge(BEGINS, 2));
        let fence = next_epoch(at(BEGINS + 50_000));
        let stored = run.stored.as_ref();
        let available = |ms| settle(stored, &rule, &fence, at(BEGINS + ms)).available();
        // In the two-cell form it fades away through the window after that of the new epoch.
        let last = if buckets == 1 {
            59_999
        } else {
            50_000 + MINUTE_MS - 1
        };
        assert_eq!(available(last), 1);
        assert_eq!(available(3 * MINUTE_MS), 3);
    }
}

#[test]
fn outside_the_span_all_of_it_counts() {
    let rule = counter(10, 1);
    let mut run = Run::new(&rule);
    assert!(run.charge(BEGINS, 4));
    let s = settle(
        run.stored.as_ref(),
        &rule,
        &outside(),
        at(BEGINS + 5 * MINUTE_MS),
    );
    assert_eq!(s.available(), 6);
}

#[test]
fn what_a_counter_holds_counts_in_the_present_cell_once_it_is_spent() {
    let rule = counter(3, 20);
    let mut s = settle(None, &rule, &fence(), at(BEGINS));
    s.charge(2, 1, Some(1_000));
    assert_eq!(s.available(), 1);
    assert!(kept_ms(&s) >= 1_000 + 2 * MINUTE_MS + SPAN_MS);
    let held = s.meter.clone();
    assert!(s.end_hold(1, true));
    assert_eq!(s.available(), 3);
    let late = settle(Some(&held), &rule, &fence(), at(BEGINS + 30_000));
    assert_eq!(late.available(), 1);
    assert_eq!(late.meter.holds, []);
}
