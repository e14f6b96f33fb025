use super::*;

const MINUTE_MS: u64 = 60_000;

fn log(limit: u64) -> Rule {
    whole(Algorithm::SlidingLog { per_ms: MINUTE_MS }, limit)
}

#[test]
fn an_entry_counts_for_its_period_and_is_gone_at_the_tick() {
    let rule = log(3);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 2) && run.charge(10_000, 1));
    assert!(!run.charge(MINUTE_MS - 1, 1));
    assert_eq!(run.available(MINUTE_MS), 2);
    assert_eq!(run.available(10_000 + MINUTE_MS - 1), 2);
    assert_eq!(run.available(10_000 + MINUTE_MS), 3);
}

#[test]
fn what_the_log_says_to_a_refusal_is_the_first_moment_that_is_enough() {
    let rule = log(3);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 1) && run.charge(100, 1) && run.charge(5_000, 1));
    for need in 1..=3 {
        let wait = run.retry_ms(6_000, need).unwrap();
        assert!(run.available(6_000 + wait) >= need, "{need}");
        assert!(run.available(6_000 + wait - 1) < need, "{need}");
    }
    assert_eq!(
        run.retry_ms(6_000, 4),
        None,
        "it is more than there ever is"
    );
}

#[test]
fn after_a_step_back_what_is_admitted_counts_from_the_newest_on() {
    let rule = log(2);
    let mut run = Run::new(&rule);
    assert!(run.charge(20_000, 1));
    assert!(run.charge(10_000, 1), "ten seconds back");
    assert!(!run.charge(10_000, 1));
    assert_eq!(run.available(20_000 + MINUTE_MS - 1), 0);
    assert_eq!(run.available(20_000 + MINUTE_MS), 2);
}

#[test]
fn a_log_that_may_be_lost_gives_nothing_until_all_it_gave_is_over() {
    let rule = log(2);
    let available = |ms| settle(None, &rule, &doubted(at(0)), at(ms)).available();
    assert_eq!(available(MINUTE_MS - 1), 0);
    assert_eq!(available(MINUTE_MS), 2);
    assert_eq!(settle(None, &rule, &outside(), at(0)).available(), 0);
}

#[test]
fn a_log_of_an_older_epoch_counts_from_the_new_one_on() {
    let rule = log(3);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 2));
    let fence = next_epoch(at(50_000));
    let stored = run.stored.as_ref();
    let available = |ms| settle(stored, &rule, &fence, at(ms)).available();
    assert_eq!(available(MINUTE_MS), 1);
    assert_eq!(available(50_000 + MINUTE_MS - 1), 1);
    assert_eq!(available(50_000 + MINUTE_MS), 3);
}

#[test]
fn outside_the_span_nothing_is_forgotten_and_no_borrowed_share_used() {
    let rule = log(10);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 2));
    let terms = terms(PPB, PPB / 2);
    let s = Settled::new(
        run.stored.as_ref(),
        None,
        &rule,
        Some(&terms),
        &outside(),
        at(2 * MINUTE_MS),
    );
    assert_eq!((s.of, s.available()), (5, 3));
    assert_eq!(s.keep(), Keep::AsItWas);
}

#[test]
fn what_a_log_holds_counts_and_is_admitted_when_it_is_kept() {
    let rule = log(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(1, 1, Some(1_000));
    s.charge(1, 2, Some(1_000));
    assert_eq!(s.available(), 1);
    let held = s.meter.clone();
    assert!(s.end_hold(1, true) && !s.end_hold(1, true));
    assert_eq!(s.available(), 2);
    // What isn't ended counts as spent from its end on.
    let counts = |ms| settle(Some(&held), &rule, &fence(), at(ms)).available();
    assert_eq!(counts(1_000 + MINUTE_MS - 1), 1);
    assert_eq!(counts(1_000 + MINUTE_MS), 3);
    let mut late = settle(Some(&held), &rule, &fence(), at(500));
    assert!(late.end_hold(2, false));
    assert_eq!(
        late.meter.state,
        State::Log {
            entries: vec![(at(500), 1)]
        }
    );
}

#[test]
fn a_log_is_kept_until_nothing_counts() {
    let rule = log(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(1, 1, Some(1_000));
    assert!(kept_ms(&s) >= 1_000 + MINUTE_MS + SPAN_MS);
}

#[test]
fn a_share_is_not_lowered_below_what_counts() {
    let rule = log(10);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 4));
    let mut s = settle(run.stored.as_ref(), &rule, &fence(), at(1));
    assert_eq!(s.put_under(&terms(PPB / 10 * 4, 0)), Some(None));
    assert_eq!(s.put_under(&terms(PPB / 10 * 4 - 1, 0)), None);
    // A loan that is over left more than the share: it may still be raised.
    let low = terms(PPB / 10, 0);
    let stored = run.stored.as_ref();
    let mut s = Settled::new(stored, None, &rule, Some(&low), &fence(), at(1));
    assert_eq!(s.available(), 0);
    assert_eq!(s.put_under(&terms(PPB / 10 * 2, 0)), Some(None));
    assert_eq!(s.put_under(&terms(0, 0)), None);
}
