use super::*;

const PER_MS: u64 = 60_000;
const MINUTES: Period = Period::every(PER_MS);

fn window_from(base: u64, from: StoreMs) -> Rule {
    let part = Part::Base { units: base, from };
    rule(
        Algorithm::FixedWindow { period: MINUTES },
        base.max(1),
        part,
    )
}

fn window(base: u64) -> Rule {
    window_from(base, StoreMs(0))
}

#[test]
fn a_window_counts_to_its_rights_and_the_next_begins_at_nothing() {
    let rule = window(3);
    let mut run = Run::new(&rule);
    assert_eq!(run.fill(0), 3);
    let label = MINUTES.label(at(0));
    let (_, end) = MINUTES.bounds(label);
    assert_eq!(rule.label(end.minus(1)), Some(label));
    assert_eq!(rule.label(end), Some(label + 1));
    let next = settle(None, &rule, &fence(), end);
    assert_eq!((next.label, next.available()), (label + 1, 3));
}

#[test]
fn calendar_windows_have_their_days() {
    let day = |text: &str| {
        let at: jiff::Timestamp = format!("{text}T00:00:00Z").parse().unwrap();
        StoreMs(u64::try_from(at.as_millisecond()).unwrap())
    };
    let part = Part::Base {
        units: 3,
        from: StoreMs(0),
    };
    let month = rule(
        Algorithm::FixedWindow {
            period: Period::Month,
        },
        3,
        part,
    );
    let leap = day("2028-02-29").plus(DAY_MS - 1);
    assert_eq!(month.label(leap), month.label(day("2028-02-01")));
    assert_eq!(month.label(leap.plus(1)), month.label(day("2028-03-31")));
}

#[test]
fn rights_received_and_given_count_and_never_below_nothing() {
    let rule = window(3);
    let rights = |delta| {
        let terms = Terms::Window { delta };
        Settled::new(None, None, &rule, Some(&terms), &fence(), at(0)).available()
    };
    assert_eq!(rights(2), 5);
    assert_eq!(rights(-2), 1);
    assert_eq!(rights(-4), 0);
}

#[test]
fn a_window_that_begins_before_its_base_has_none() {
    let label = MINUTES.label(at(0));
    let (start, _) = MINUTES.bounds(label);
    assert_eq!(window_from(3, start).window_base(label), 3);
    assert_eq!(window_from(3, start.plus(1)).window_base(label), 0);
}

#[test]
fn a_label_whose_end_was_seen_to_pass_is_closed_for_good() {
    let rule = window(3);
    let (_, end) = MINUTES.bounds(MINUTES.label(at(0)));
    let received = Terms::Window { delta: 5 };
    let rights = |closed_before| {
        let fence = Fence {
            closed_before,
            ..fence()
        };
        // The clock is back inside the window.
        Settled::new(None, None, &rule, Some(&received), &fence, at(0)).available()
    };
    assert_eq!(rights(end.minus(1)), 8);
    assert_eq!(rights(end), 0);
}

#[test]
fn outside_the_span_no_window_is_opened() {
    let rule = window(3);
    let open = meter(State::Window { used: 1 });
    assert_eq!(settle(Some(&open), &rule, &outside(), at(0)).available(), 2);
    assert_eq!(settle(None, &rule, &outside(), at(0)).available(), 0);
}

#[test]
fn a_window_is_kept_past_the_end_of_the_next() {
    let rule = window(3);
    let s = settle(None, &rule, &fence(), at(0));
    let (_, end) = MINUTES.bounds(s.label + 1);
    assert!(kept_ms(&s) >= end.since(at(0)) + SPAN_MS);
}

#[test]
fn what_a_window_holds_counts_as_used_until_it_is_released() {
    let rule = window(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(2, 1, Some(1_000));
    assert_eq!(s.available(), 1);
    let window = s.meter.clone();
    assert!(s.end_hold(1, true));
    assert_eq!(s.available(), 3);
    assert!(!s.end_hold(1, true));
    let mut late = settle(Some(&window), &rule, &fence(), at(1_000));
    assert!(!late.end_hold(1, true), "it counts as spent");
    assert_eq!(late.available(), 1);
}

#[test]
fn rights_are_not_given_below_what_is_used() {
    let rule = window(3);
    let mut s = settle(None, &rule, &fence(), at(0));
    s.charge(2, 0, None);
    assert_eq!(s.put_under(&Terms::Window { delta: -1 }), Some(None));
    assert_eq!(s.put_under(&Terms::Window { delta: -2 }), None);
}
