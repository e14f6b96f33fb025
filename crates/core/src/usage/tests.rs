//! The counter against the `crdts` crate's G-counter, by the laws that both must keep.

use super::*;
use crate::ids::{Life, Region};
use crdts::GCounter;
use proptest::prelude::*;

/// Who counts: three regions, two lives each.
fn actors() -> Vec<Actor> {
    let lives = ["a", "b", "c"]
        .into_iter()
        .flat_map(|region| [1, 2].map(|life| (region, life)));
    lives
        .map(|(region, life)| Actor {
            region: Region::new(region),
            life: Life::from_random(life),
        })
        .collect()
}

fn an_actor() -> impl Strategy<Value = Actor> {
    prop::sample::select(actors())
}

fn a_slot() -> impl Strategy<Value = Slot> {
    let counts = (0..50u64, 0..50u64, 0..50u64);
    (an_actor(), counts).prop_map(|(actor, (admitted, refunded, refused))| Slot {
        actor,
        counts: Counts {
            admitted,
            refunded,
            refused,
        },
    })
}

fn a_counter() -> impl Strategy<Value = Counter> {
    prop::collection::vec(a_slot(), 0..8).prop_map(|slots| {
        let mut counter = Counter::default();
        slots.into_iter().for_each(|slot| counter.apply(slot));
        counter
    })
}

fn merged(mut a: Counter, b: &Counter) -> Counter {
    a.merge(b.clone());
    a
}

/// What one replica does: count something itself, or hear all that another one knows.
#[derive(Clone, Debug)]
enum Step {
    Count { replica: usize, units: u64 },
    Hear { replica: usize, from: usize },
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6usize, 0..9u64).prop_map(|(replica, units)| Step::Count { replica, units }),
        (0..6usize, 0..6usize).prop_map(|(replica, from)| Step::Hear { replica, from }),
    ]
}

proptest! {
    #[test]
    fn merging_is_commutative_associative_and_idempotent(a in a_counter(), b in a_counter(), c in a_counter()) {
        prop_assert_eq!(merged(a.clone(), &b), merged(b.clone(), &a));
        prop_assert_eq!(merged(merged(a.clone(), &b), &c), merged(a.clone(), &merged(b.clone(), &c)));
        prop_assert_eq!(merged(a.clone(), &a), a);
    }

    #[test]
    fn no_slot_ever_decreases(a in a_counter(), b in a_counter()) {
        let both = merged(a.clone(), &b);
        for actor in actors() {
            let (before, after) = (a.get(&actor), both.get(&actor));
            prop_assert_eq!(after, before.max(b.get(&actor)));
            prop_assert_eq!(after.max(before), after);
        }
    }

    #[test]
    fn a_slot_applied_late_or_twice_changes_nothing(a in a_counter(), slot in a_slot()) {
        let mut once = a.clone();
        once.apply(slot.clone());
        let mut again = once.clone();
        again.apply(slot);
        prop_assert_eq!(&again, &once);
        again.merge(a);
        prop_assert_eq!(again, once);
    }

    #[test]
    fn totals_are_those_of_the_crdts_crate(steps in prop::collection::vec(a_step(), 0..80)) {
        let actors = actors();
        let mut ours = vec![Counter::default(); actors.len()];
        let mut theirs = vec![GCounter::<Actor>::new(); actors.len()];
        for step in steps {
            match step {
                Step::Count { replica, units } => {
                    let actor = &actors[replica];
                    let slot = ours[replica].counted(actor, Counts { admitted: units, ..Counts::default() });
                    ours[replica].apply(slot);
                    let op = theirs[replica].inc_many(actor.clone(), units);
                    theirs[replica].apply(op);
                }
                Step::Hear { replica, from } => {
                    let (heard, known) = (ours[from].clone(), theirs[from].clone());
                    ours[replica].merge(heard);
                    theirs[replica].merge(known);
                }
            }
            for (ours, theirs) in ours.iter().zip(&theirs) {
                prop_assert_eq!(theirs.read(), ours.total().admitted.into());
            }
        }
    }
}

#[test]
fn what_was_refunded_does_not_count() {
    let counts = Counts {
        admitted: 5,
        refunded: 2,
        refused: 9,
    };
    assert_eq!(counts.net(), 3);
}
