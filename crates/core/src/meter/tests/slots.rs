use super::*;

const TTL_MS: u64 = 30_000;

fn slots(limit: u64) -> Rule {
    let slot_ttl_ms = TTL_MS;
    rule(Algorithm::Concurrency { slot_ttl_ms }, limit, Part::Whole)
}

#[test]
fn slots_are_taken_and_come_back_when_they_are_released() {
    let rule = slots(2);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(1, 1, None);
    s.charge(1, 2, None);
    assert_eq!(s.available(), 0);
    assert!(s.end_hold(1, true));
    assert!(!s.end_hold(1, true), "a double release is harmless");
    assert_eq!(s.available(), 1);
    assert!(!s.end_hold(7, true), "nobody has it");
    assert!(s.end_hold(2, true));
    assert_eq!(s.available(), 2, "and never more");
}

#[test]
fn the_slot_of_who_is_gone_is_free_at_its_tick() {
    let rule = slots(1);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 1));
    assert_eq!(run.retry_ms(0, 1), Some(TTL_MS));
    assert_eq!(run.available(TTL_MS - 1), 0);
    assert_eq!(run.available(TTL_MS), 1);
    let mut late = settle(run.stored.as_ref(), &rule, &fence(), at(TTL_MS));
    assert!(!late.end_hold(0, true), "it is another's now");
}

#[test]
fn a_slot_that_was_held_is_taken_for_its_time_once_it_is_kept() {
    let rule = slots(1);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(1, 1, Some(1_000));
    let mut s = settle(Some(&s.meter), &rule, &fence(), at(500));
    assert!(s.end_hold(1, false));
    let taken = |ms| settle(Some(&s.meter), &rule, &fence(), at(ms)).available();
    assert_eq!(taken(500 + TTL_MS - 1), 0);
    assert_eq!(taken(500 + TTL_MS), 1);
}

#[test]
fn a_limit_lowered_below_what_is_taken_is_no_negative_number() {
    let (before, after) = (slots(3), slots(1));
    let mut s = settle(None, &before, &fence(), at(0));
    s.charge(1, 1, None);
    s.charge(1, 2, None);
    let s = settle(Some(&s.meter), &after, &fence(), at(1));
    assert_eq!(s.available(), 0);
}

#[test]
fn no_slot_is_given_until_those_of_a_lost_store_are_over() {
    let rule = slots(2);
    let available = |ms| settle(None, &rule, &doubted(at(0)), at(ms)).available();
    assert_eq!(available(TTL_MS - 1), 0);
    assert_eq!(available(TTL_MS), 2);
}

#[test]
fn in_a_new_epoch_a_slot_starts_its_time_again_and_outside_the_span_none_comes_back() {
    let rule = slots(1);
    let mut run = Run::new(&rule);
    assert!(run.charge(0, 1));
    let stored = run.stored.as_ref();
    let fence = next_epoch(at(50_000));
    let available = |ms| settle(stored, &rule, &fence, at(ms)).available();
    assert_eq!(available(50_000 + TTL_MS - 1), 0);
    assert_eq!(available(50_000 + TTL_MS), 1);
    assert_eq!(
        settle(stored, &rule, &outside(), at(2 * TTL_MS)).available(),
        0
    );
}
