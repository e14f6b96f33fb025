//! Which empty store is new, and what a life may do that others may have lost.

use super::*;
use proptest::prelude::*;

const TIMING: Timing = Timing { term_ms: 10_000 };
const BIRTH: StoreMs = StoreMs(1_000_000_000);

fn regions() -> Vec<Region> {
    ["a", "b", "c"].map(Region::new).to_vec()
}

fn others(of: usize) -> Vec<Region> {
    let mut regions = regions();
    regions.remove(of);
    regions
}

fn empty(region: usize, life: u64) -> RegionState {
    let name = &regions()[region];
    RegionState::on_empty(
        name,
        Life::from_random(life),
        "run",
        BIRTH,
        OnEmpty::Ask,
        &others(region),
    )
}

/// `to` hears `from`, as far as it listens.
fn tell(states: &mut [RegionState], from: usize, to: usize) {
    let table = states[from].table();
    if let Some(next) = states[to].hear(&table, &others(to)) {
        states[to] = next;
    }
}

fn all_meet(states: &mut [RegionState]) {
    for _ in 0..4 {
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                tell(states, from, to);
            }
        }
    }
}

fn is_asking(state: &RegionState) -> bool {
    matches!(state.standing, Standing::Asking(_))
}

#[test]
fn three_empty_stores_that_have_all_met_are_new() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    assert!(states.iter().all(is_asking));
    all_meet(&mut states);
    assert!(states.iter().all(|s| s.standing == Standing::First));
}

#[test]
fn a_life_that_nobody_knew_of_leaves_no_later_one() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    let restarted = states[0]
        .clone()
        .reborn(Life::from_random(4), "another run", BIRTH);
    assert!(
        !restarted.may_admit(),
        "its successor would be taken for the first"
    );
    states[0] = restarted;
    all_meet(&mut states);
    assert!(states.iter().all(|s| s.standing == Standing::First));
}

#[test]
fn two_of_three_can_not_say_that_a_store_is_new() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    for _ in 0..5 {
        tell(&mut states, 0, 1);
        tell(&mut states, 1, 0);
    }
    assert!(states.iter().all(is_asking));
}

#[test]
fn a_store_whose_past_anybody_knows_is_a_later_life() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    states[0] = empty(0, 9);
    tell(&mut states, 2, 0);
    assert_eq!(states[0].standing, Standing::Later);
    all_meet(&mut states);
    assert_eq!(states[0].standing, Standing::Later);
    assert!(
        states[1..].iter().all(|s| s.standing == Standing::First),
        "they lost nothing"
    );
}

#[test]
fn a_life_that_nobody_else_has_on_record_admits_nothing() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    assert!(!states[0].may_admit());
    tell(&mut states, 1, 0);
    assert!(!states[0].may_admit(), "b has not heard of it");
    tell(&mut states, 0, 1);
    tell(&mut states, 1, 0);
    assert!(states[0].may_admit() && is_asking(&states[0]));
}

#[test]
fn what_a_life_that_is_over_still_says_is_ignored() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    let late = states[0].table();
    states[0] = empty(0, 9);
    all_meet(&mut states);
    let present = states[1].present.get(&regions()[0]).copied();
    assert_eq!(present, Some(Life::from_random(9)));
    assert_eq!(states[1].hear(&late, &others(1)), None);
    assert!(states[1].is_over(&late.sender));
}

#[test]
fn a_stranger_is_not_listened_to() {
    let state = empty(0, 1);
    let stranger = RegionState::on_empty(
        &Region::new("z"),
        Life::from_random(5),
        "",
        BIRTH,
        OnEmpty::New,
        &[],
    );
    assert_eq!(state.hear(&stranger.table(), &others(0)), None);
}

#[test]
fn a_store_that_says_otherwise_of_itself_is_in_a_later_life() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    let reborn = states[0]
        .clone()
        .reborn(Life::from_random(9), "another run", BIRTH.plus(50));
    assert_eq!(reborn.standing, Standing::Later);
    assert!(reborn.table().ended.contains(&Life::from_random(1)));
    assert_eq!(
        reborn.high_water, states[0].high_water,
        "windows that were closed stay closed"
    );
}

#[test]
fn a_later_life_has_a_window_base_only_where_its_forerunner_can_not_have_been() {
    let (per, windows) = (60_000, crate::period::Period::every(60_000));
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    assert_eq!(states[0].base_from(per), StoreMs::MAX, "asking");
    all_meet(&mut states);
    assert_eq!(states[0].base_from(per), StoreMs(0), "first");
    let later = states[0]
        .clone()
        .reborn(Life::from_random(9), "other", BIRTH);
    // The window it was in, by a clock up to a skew ahead, and the next one, which may have been given away.
    let spent_until = BIRTH.plus(SKEW_MS);
    let first_untouched = windows.label(spent_until) + 2;
    let start = windows.bounds(first_untouched).0;
    assert!(later.base_from(per) <= start.plus(per));
    let next = windows.bounds(first_untouched - 1).0;
    assert!(
        later.base_from(per) > next,
        "the window after the present one has none"
    );
}

#[test]
fn only_the_first_epoch_of_a_first_life_starts_full() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    let span = Span::after(BIRTH);
    assert_eq!(
        states[0].fence(1, span).missing,
        Missing::EmptyAt(BIRTH),
        "asking"
    );
    all_meet(&mut states);
    assert_eq!(states[0].fence(1, span).missing, Missing::Full);
    assert_eq!(states[0].lent_all(TIMING, 0), None);
    let stepped = states[0].clone().next_epoch(BIRTH.plus(70));
    assert_eq!(
        stepped.fence(1, span).missing,
        Missing::EmptyAt(BIRTH.plus(70))
    );
    assert_eq!(
        stepped.lent_all(TIMING, 0),
        Some(LentAll {
            until: BIRTH.plus(70 + TIMING.reclaim_ms(0))
        })
    );
    assert_eq!(stepped.high_water, BIRTH.plus(70));
    let back = stepped.next_epoch(BIRTH.minus(500_000));
    assert_eq!(
        back.high_water,
        BIRTH.plus(70),
        "a window that was seen to pass stays closed"
    );
}

#[test]
fn a_first_replica_leaves_a_process_in_its_life_and_a_promotion_does_not() {
    let state = RegionState {
        fingerprint: "run:first".into(),
        ..empty(0, 1)
    };
    assert!(state.is_of("run:first", false) && state.is_of("run:first", true));
    assert!(state.is_of("run:second", false));
    assert!(!state.is_of("run:second", true), "it took another's data");
    assert!(!state.is_of("other:first", false), "another process");
    let nameless = RegionState {
        fingerprint: "memory-1".into(),
        ..state
    };
    assert!(!nameless.is_of("memory-2", false));
}

#[test]
fn a_life_on_a_store_with_replicas_is_silent_at_first_and_anew_if_its_clock_steps() {
    let state = empty(0, 1).silent_for(25_000, BIRTH);
    assert_eq!(state.silent_until, BIRTH.plus(25_000));
    assert!(state.fence(1, Span::never()).replicated);
    let stepped = state.clone().next_epoch(BIRTH.plus(90_000));
    assert_eq!(stepped.silent_until, BIRTH.plus(115_000));
    let over = state.anchored(BIRTH.plus(25_000));
    let back = over.next_epoch(BIRTH.minus(90_000));
    assert_eq!(back.silent_until, StoreMs(0), "it was over before");
    assert!(!empty(0, 1).fence(1, Span::never()).replicated);
}

#[test]
fn what_was_said_of_an_empty_store_is_heeded() {
    let state = |how, peers: &[Region]| {
        RegionState::on_empty(&regions()[0], Life::from_random(1), "", BIRTH, how, peers).standing
    };
    assert_eq!(state(OnEmpty::Lost, &others(0)), Standing::Later);
    assert_eq!(state(OnEmpty::New, &others(0)), Standing::First);
    assert_eq!(
        state(OnEmpty::NewUntil(BIRTH.plus(1)), &others(0)),
        Standing::First
    );
    assert!(matches!(
        state(OnEmpty::NewUntil(BIRTH), &others(0)),
        Standing::Asking(_)
    ));
    assert_eq!(
        state(OnEmpty::Ask, &[]),
        Standing::First,
        "a lone region has nobody to ask"
    );
}

#[test]
fn a_state_is_read_back_as_it_was_written() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    let bytes = states[0].to_bytes();
    assert_eq!(RegionState::from_bytes(&bytes), Ok(states[0].clone()));
    assert!(RegionState::from_bytes(&bytes[..bytes.len() / 2]).is_err());
    assert!(RegionState::from_bytes(&[]).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Tell { from: usize, to: usize },
    Send { from: usize },
    Arrive { message: usize, to: usize },
    Lose { region: usize },
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 0..3usize).prop_map(|(from, to)| Step::Tell { from, to }),
        3 => (0..3usize).prop_map(|from| Step::Send { from }),
        3 => (0..64usize, 0..3usize).prop_map(|(message, to)| Step::Arrive { message, to }),
        1 => (0..3usize).prop_map(|region| Step::Lose { region }),
    ]
}

proptest! {
    /// In any order of boots, losses and messages late or doubled: a life is taken for the first only where no living
    /// store knows of another first life of its region.
    #[test]
    fn no_region_has_two_first_lives_that_a_living_store_knows_of(steps in prop::collection::vec(a_step(), 0..120)) {
        let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
        let mut declared: BTreeSet<Actor> = BTreeSet::new();
        let mut sent: Vec<LifeTable> = Vec::new();
        let mut fresh = 10;
        for step in steps {
            match step {
                Step::Tell { from, to } if from != to => tell(&mut states, from, to),
                Step::Send { from } => sent.push(states[from].table()),
                Step::Arrive { message, to } if message < sent.len() => {
                    if let Some(next) = states[to].hear(&sent[message], &others(to)) {
                        states[to] = next;
                    }
                }
                Step::Lose { region } => {
                    fresh += 1;
                    states[region] = empty(region, fresh);
                }
                _ => {}
            }
            for state in &states {
                let own = state.actor();
                if state.standing == Standing::First && declared.insert(own.clone()) {
                    let elsewhere = |life: &Life| {
                        let actor = Actor { region: own.region.clone(), life: *life };
                        actor != own && declared.contains(&actor)
                    };
                    let known = states.iter().filter_map(|s| s.known.get(&own.region)).flatten().any(elsewhere);
                    prop_assert!(!known, "{own:?} is taken for the first, and isn't");
                }
            }
        }
    }
}

#[test]
fn whoever_hears_that_a_region_is_off_ends_the_lives_that_it_knows_once() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    let b = |life: u64| Actor {
        region: Region::new("b"),
        life: Life::from_random(life),
    };
    // An operator tells a region that knows none of its lives.
    states[2] = states[2].clone().retire(&b(2).region, 1, &BTreeSet::new());
    tell(&mut states, 2, 0);
    assert!(states[0].is_over(&b(2)));
    assert!(!states[0].is_present(&b(2)), "its slots are passed on");
    // It comes back in another life, and the word comes again.
    states[1] = empty(1, 4);
    tell(&mut states, 1, 0);
    tell(&mut states, 2, 0);
    assert!(states[0].is_present(&b(4)) && !states[0].is_over(&b(4)));
}

#[test]
fn a_region_that_is_in_no_file_any_more_is_not_present() {
    let mut states = [empty(0, 1), empty(1, 2), empty(2, 3)];
    all_meet(&mut states);
    let before = states[0].present_digest();
    let mut left = states[0].clone();
    left.forget_strangers(&others(0));
    assert_eq!(left.present_digest(), before);
    left.forget_strangers(&[Region::new("c")]);
    let regions: Vec<&str> = left.present.keys().map(Region::as_str).collect();
    assert_eq!(regions, ["c"]);
    assert_ne!(left.present_digest(), before, "all is told anew");
}
