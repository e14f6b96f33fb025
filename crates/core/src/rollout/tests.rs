//! What is lowered is lower at once; what is raised waits for whoever loses by it; and the sum holds in any order.

mod order;

use super::*;
use crate::fence::{MARGIN_MS, with_drift};
use crate::policy::PolicySet;

const T0: u64 = 1_700_000_000_000;
const TIMING: Timing = Timing { term_ms: 10_000 };
/// [`Timing::reclaim_ms`] of a bucket.
const RECLAIM_MS: u64 = with_drift(TIMING.term_ms) + MARGIN_MS;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// One revision of a file with a bucket and a window of the same limit and weights.
struct File {
    number: u64,
    set: PolicySet,
}

fn file(number: u64, limit: u64, weights: [u64; 3]) -> File {
    let [a, b, c] = weights;
    let policy = |name: &str, algorithm: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\nkey = [\"tenant\"]\nalgorithm = \"{algorithm}\"\nlimit = {limit}\n\
             per = \"5m\"\nweights = {{ a = {a}, b = {b}, c = {c} }}\n"
        )
    };
    let text = format!(
        "revision = {number}\nregions = [\"a\", \"b\", \"c\"]\n{}{}",
        policy("rate", "token-bucket"),
        policy("window", "fixed-window")
    );
    of(&text)
}

fn of(text: &str) -> File {
    let set = PolicySet::parse(text, "policies.toml").unwrap();
    File {
        number: set.revision,
        set,
    }
}

fn region(i: usize) -> Region {
    Region::new(NAMES[i])
}

fn others(of: usize) -> Vec<Region> {
    (0..3).filter(|i| *i != of).map(region).collect()
}

/// One region, and what it goes by.
struct Place {
    i: usize,
    peers: Vec<Region>,
    rollout: Rollout,
    policies: Vec<Arc<Policy>>,
    epoch_began: StoreMs,
    is_first: bool,
}

impl Place {
    fn new(i: usize, file: &File) -> Self {
        let mut place = Self {
            i,
            peers: others(i),
            rollout: Rollout::new(false),
            policies: Vec::new(),
            epoch_began: StoreMs(T0),
            is_first: true,
        };
        place.bring(file, 0).unwrap();
        place.rollout = place.rollout.clone().adopted(file.number, StoreMs(T0));
        place
    }

    /// A node brings a file, and all nodes go by it at once.
    fn bring(&mut self, file: &File, ms: u64) -> Result<(), Refusal> {
        let set = &file.set;
        let budget = |policy: &Policy| Budget::of(policy, &set.subject_hash);
        let digest = set.revision_digest();
        let next =
            self.rollout
                .bring(file.number, digest, &region(self.i), &set.policies, budget)?;
        self.policies.clone_from(&set.policies);
        self.rollout = next.adopted(file.number, StoreMs(T0 + ms));
        self.advance(ms);
        Ok(())
    }

    fn advance(&mut self, ms: u64) {
        let region = region(self.i);
        let now = Now {
            region: &region,
            peers: &self.peers,
            policies: &self.policies,
            timing: TIMING,
            epoch_began: self.epoch_began,
            now: StoreMs(T0 + ms),
            high_water: StoreMs(T0 + ms),
            is_first: self.is_first,
            is_asking: false,
        };
        self.rollout = self.rollout.clone().advance(&now);
    }

    fn told(&self, ms: u64) -> Told {
        self.rollout.told(StoreMs(T0 + ms), self.epoch_began)
    }

    fn hear(&mut self, from: &Self, ms: u64) {
        let told = from.told(ms);
        self.rollout = self.rollout.clone().hear(&region(from.i), &told, true);
        self.advance(ms);
    }

    fn policy(&self, name: &str) -> &Policy {
        self.policies.iter().find(|p| p.name == name).unwrap()
    }

    fn ppb(&self) -> u64 {
        self.rollout.base_ppb(self.policy("rate"), &region(self.i))
    }

    fn limit(&self) -> u64 {
        let policy = self.policy("rate");
        self.rollout.limits(policy, policy.limits).limit
    }

    fn units(&self) -> u64 {
        let policy = self.policy("window");
        self.rollout
            .base_units(policy, policy.limits, &region(self.i))
    }
}

fn all(file: &File) -> [Place; 3] {
    [0, 1, 2].map(|i| Place::new(i, file))
}

const fn percent(of: u64) -> u64 {
    PPB / 100 * of
}

#[test]
fn a_limit_that_is_raised_for_all_is_in_force_at_once() {
    let mut places = all(&file(1, 300, [1, 1, 1]));
    places[0].bring(&file(2, 600, [1, 1, 1]), 0).unwrap();
    assert_eq!((places[0].limit(), places[0].units()), (600, 200));
    assert_eq!(places[0].rollout.revisions.len(), 1);
}

#[test]
fn a_limit_that_is_lowered_is_lower_at_once_and_a_raise_after_it_waits_for_nobody_who_has_not_lost()
{
    let mut places = all(&file(1, 300, [1, 1, 1]));
    places[0].bring(&file(2, 150, [1, 1, 1]), 0).unwrap();
    assert_eq!((places[0].limit(), places[0].units()), (150, 50));
    places[0].bring(&file(3, 300, [1, 1, 1]), 1).unwrap();
    assert_eq!((places[0].limit(), places[0].units()), (300, 100));
}

#[test]
fn a_base_is_raised_once_whoever_loses_has_held_the_revision_for_long_enough() {
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let next = file(2, 300, [25, 50, 25]);
    for place in &mut places {
        place.bring(&next, 0).unwrap();
    }
    let [a, b, c] = &mut places;
    assert_eq!(
        (a.ppb(), b.ppb(), c.ppb()),
        (percent(25), percent(25), percent(25))
    );
    // Loans of the older revision may be out.
    b.hear(a, RECLAIM_MS - 1);
    b.hear(c, RECLAIM_MS - 1);
    assert_eq!(b.ppb(), percent(25));
    assert_eq!(b.rollout.waits_for(&now_of(b)), BTreeSet::from([region(0)]));
    b.hear(a, RECLAIM_MS + KEPT_STEP_MS);
    assert_eq!(b.ppb(), percent(50));
    // Who loses nothing needs nobody's word.
    assert_eq!(c.ppb(), percent(25));
}

fn now_of(place: &Place) -> Now<'_> {
    Now {
        region: place.policies[0].weights.keys().nth(place.i).unwrap(),
        peers: &place.peers,
        policies: &place.policies,
        timing: TIMING,
        epoch_began: place.epoch_began,
        now: StoreMs(T0),
        high_water: StoreMs(T0),
        is_first: true,
        is_asking: false,
    }
}

#[test]
fn a_region_that_is_down_holds_up_only_what_it_would_have_to_give() {
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let text = |window: [u64; 3]| {
        let [a, b, c] = window;
        of(&format!(
            "revision = 2\nregions = [\"a\", \"b\", \"c\"]\n[[policy]]\nname = \"rate\"\nkey = [\"tenant\"]\n\
             algorithm = \"token-bucket\"\nlimit = 600\nper = \"5m\"\nweights = {{ a = 50, b = 25, c = 25 }}\n\
             [[policy]]\nname = \"window\"\nkey = [\"tenant\"]\nalgorithm = \"fixed-window\"\nlimit = 300\n\
             per = \"5m\"\nweights = {{ a = {a}, b = {b}, c = {c} }}\n"
        ))
    };
    let b = &mut places[1];
    b.bring(&text([25, 50, 25]), 0).unwrap();
    assert_eq!(b.limit(), 600, "a loses nothing of the rate");
    assert_eq!(b.units(), 75, "but of the window");
    b.advance(RECLAIM_MS * 1_000);
    assert_eq!(b.units(), 75);
}

#[test]
fn of_a_window_that_may_have_been_used_or_given_nothing_is_raised() {
    let per_ms = 300_000;
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let next = file(2, 300, [25, 50, 25]);
    // a confirms half a minute before its window ends: rights of the next one may be given already.
    let rest = per_ms - T0 % per_ms;
    let at = rest + per_ms - 30_000;
    for place in &mut places {
        place.bring(&next, at).unwrap();
    }
    let [a, b, c] = &mut places;
    b.hear(a, at);
    b.hear(c, at);
    b.advance(rest + 2 * per_ms - 1);
    assert_eq!((a.units(), b.units()), (75, 75));
    b.advance(rest + 2 * per_ms);
    assert_eq!(b.units(), 150);
}

#[test]
fn what_was_raised_begins_at_what_it_was() {
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let a = &mut places[0];
    a.bring(&file(2, 600, [50, 25, 25]), 7).unwrap();
    // Half of a share of twice as much.
    let raised = a.rollout.raised(a.policy("rate"));
    assert_eq!(raised, Some((StoreMs(T0 + 7), percent(25))));
    a.advance(7 + 300_000 + SLACK_MS);
    assert_eq!(a.rollout.raised(a.policy("rate")), None);
}

#[test]
fn a_file_is_refused_that_is_older_or_says_something_else_under_the_same_number() {
    let mut places = all(&file(2, 300, [1, 1, 1]));
    let a = &mut places[0];
    assert_eq!(
        a.bring(&file(1, 300, [1, 1, 1]), 0),
        Err(Refusal::Behind(2))
    );
    assert_eq!(
        a.bring(&file(2, 301, [1, 1, 1]), 0),
        Err(Refusal::OtherContent)
    );
    assert_eq!(a.bring(&file(2, 300, [1, 1, 1]), 0), Ok(()));
    for number in 3..=1 + REVISIONS_MAX as u64 {
        let weights = if number % 2 == 0 {
            [9, 1, 1]
        } else {
            [1, 9, 1]
        };
        a.bring(&file(number, 300, weights), 0).unwrap();
    }
    let beyond = 2 + REVISIONS_MAX as u64;
    assert_eq!(
        a.bring(&file(beyond, 300, [1, 1, 9]), 0),
        Err(Refusal::TooMany)
    );
}

#[test]
fn revisions_that_say_the_same_make_room() {
    let mut places = all(&file(1, 300, [1, 1, 1]));
    let last = 3 * REVISIONS_MAX as u64;
    for number in 2..=last {
        for place in &mut places {
            place.bring(&file(number, 300, [9, 1, 1]), 0).unwrap();
        }
    }
    let [a, b, c] = &mut places;
    assert!(a.rollout.revisions.len() <= REVISIONS_MAX);
    assert_eq!(a.ppb(), PPB.div_ceil(3));
    // What is left still says that no number was left out: nobody but b and c is waited for.
    a.hear(b, 2 * RECLAIM_MS);
    a.hear(c, 2 * RECLAIM_MS);
    a.advance(2 * RECLAIM_MS);
    assert!(a.ppb() > PPB * 8 / 10);
}

#[test]
fn a_windows_limit_that_was_lowered_by_mistake_is_raised_again_at_once() {
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let b = &mut places[1];
    b.bring(&file(2, 30, [50, 25, 25]), 1_000).unwrap();
    let limit = |place: &Place| {
        let window = place.policy("window");
        place.rollout.limits(window, window.limits).limit
    };
    assert_eq!((b.units(), limit(b)), (8, 30));
    b.bring(&file(3, 200, [50, 25, 25]), 2_000).unwrap();
    assert_eq!((b.units(), limit(b)), (50, 200));
    // By the first, c has more than by this one.
    b.bring(&file(4, 300, [25, 60, 15]), 3_000).unwrap();
    assert_eq!(b.units(), 8);
    let (here, now) = (&b.rollout, now_of(b));
    assert!(here.waits_for(&now).contains(&region(2)));
}

#[test]
fn a_peers_word_for_another_content_is_no_word() {
    let mut places = all(&file(1, 300, [50, 25, 25]));
    let [a, b, _] = &mut places;
    b.bring(&file(2, 300, [25, 50, 25]), 0).unwrap();
    a.bring(&file(2, 300, [25, 25, 50]), 0).unwrap();
    b.hear(a, RECLAIM_MS * 2);
    assert_eq!(b.ppb(), percent(25));
}

#[test]
fn where_a_number_is_left_out_everybody_is_waited_for() {
    let mut places = all(&file(1, 300, [1, 1, 1]));
    let next = file(3, 600, [1, 1, 1]);
    for place in &mut places {
        place.bring(&next, 0).unwrap();
    }
    let [a, b, c] = &mut places;
    assert_eq!(b.limit(), 300);
    b.hear(a, 1_000);
    assert_eq!(b.limit(), 300, "c may go by revision 2");
    b.hear(c, 1_000);
    assert_eq!(b.limit(), 600);
}

/// A life that can't know what an earlier one confirmed, with this file.
fn unsure(i: usize, file: &File) -> Place {
    let mut place = Place {
        rollout: Rollout::new(true),
        is_first: false,
        ..Place::new(i, file)
    };
    place.bring(file, 0).unwrap();
    place
}

#[test]
fn a_later_life_has_no_base_until_every_peer_goes_by_its_revision_alone() {
    let (first, next) = (file(1, 300, [50, 25, 25]), file(2, 300, [25, 50, 25]));
    let mut places = all(&first);
    places[1].bring(&next, 0).unwrap();
    let mut lost = unsure(0, &next);
    lost.hear(&places[1], 0);
    lost.hear(&places[2], 0);
    assert_eq!(
        (lost.ppb(), lost.units()),
        (0, 0),
        "c goes by the first one"
    );
    places[2].bring(&next, 0).unwrap();
    lost.hear(&places[2], 0);
    assert_eq!(lost.ppb(), 0, "b still counts the first one");
    let late = RECLAIM_MS * 2;
    for i in [1, 2] {
        let (place, told) = (&mut places[i], lost.told(late));
        place.rollout = place.rollout.clone().hear(&region(0), &told, true);
        // Windows go on with the next one.
        place.advance(late + 900_000);
    }
    assert!(places[1].ppb() == percent(50));
    lost.hear(&places[1], late);
    assert_eq!(lost.ppb(), 0);
    lost.hear(&places[2], late);
    assert_eq!((lost.ppb(), lost.units()), (percent(25), 75));
    let raised = lost.rollout.raised(lost.policy("rate"));
    assert_eq!(raised, Some((StoreMs(T0 + late), 0)), "it begins empty");
}

#[test]
fn a_later_life_with_an_older_file_has_no_base() {
    let (first, next) = (file(1, 300, [50, 25, 25]), file(2, 300, [25, 50, 25]));
    let mut places = all(&next);
    let mut lost = unsure(0, &first);
    for i in [1, 2] {
        lost.hear(&places[i], 1_000_000);
        places[i].hear(&lost, 1_000_000);
    }
    assert_eq!((lost.ppb(), lost.units()), (0, 0));
}

#[test]
fn regions_that_start_together_begin_full() {
    let first = file(1, 300, [1, 1, 1]);
    let mut places = [0, 1, 2].map(|i| Place {
        is_first: true,
        ..unsure(i, &first)
    });
    for i in 0..3 {
        for from in 0..3 {
            let told = places[from].told(0);
            let heard = places[i].rollout.clone().hear(&region(from), &told, true);
            if i != from {
                places[i].rollout = heard;
                places[i].advance(0);
            }
        }
    }
    for place in &places {
        assert!(!place.rollout.unsure);
        assert_eq!(place.rollout.raised(place.policy("rate")), None);
    }
}

#[test]
fn a_retired_region_is_not_waited_for_and_has_no_base_until_a_revision_names_it_again() {
    let first = file(1, 300, [50, 25, 25]);
    let next = file(2, 300, [0, 75, 25]);
    let mut places = all(&first);
    let lives = BTreeSet::from([Life::from_random(9)]);
    let b = &mut places[1];
    b.rollout = b.rollout.clone().retire(&region(0), 1, &lives, StoreMs(T0));
    assert_eq!(b.ppb(), percent(25), "its base isn't divided again");
    b.bring(&next, 0).unwrap();
    assert_eq!(b.ppb(), percent(25), "what it borrowed may be in use");
    b.advance(RECLAIM_MS);
    assert_eq!(b.ppb(), percent(75));

    let mut back = unsure(0, &first);
    back.rollout = back
        .rollout
        .clone()
        .retire(&region(0), 1, &lives, StoreMs(T0));
    for from in [1, 2] {
        back.hear(&Place::new(from, &first), 1_000_000);
    }
    assert!(!back.rollout.unsure);
    assert_eq!((back.ppb(), back.units()), (0, 0));
    let named = file(2, 300, [50, 25, 25]);
    back.bring(&named, 1_000_000).unwrap();
    back.advance(1_000_000 + RECLAIM_MS);
    assert_eq!(back.ppb(), percent(50));
}

#[test]
fn a_key_goes_by_the_smallest_limits_that_it_may_have_had() {
    let text = |number: u64, rest: &str| {
        of(&format!(
            "revision = {number}\nregions = [\"a\", \"b\", \"c\"]\n[[policy]]\nname = \"rate\"\nkey = [\"tenant\"]\n\
             algorithm = \"token-bucket\"\nlimit = 100\nper = \"5m\"\n{rest}"
        ))
    };
    let plans = |free: u64, pro: u64| {
        format!(
            "plans = {{ by = \"plan\", free = {{ limit = {free} }}, pro = {{ limit = {pro} }} }}\n"
        )
    };
    let acme = "[[policy.override]]\nkey = { tenant = \"acme\" }\nlimit = 7\n";
    let budget = |file: &File| Budget::of(&file.set.policies[0], &file.set.subject_hash);
    let before = budget(&text(1, &(plans(10, 1_000) + acme)));
    let after = budget(&text(2, &plans(20, 500)));
    let was = |limit: u64| before.was(&after, Limits::of(limit)).limit;
    // Whoever has a plan may be acme, which had 7.
    assert_eq!((was(20), was(500), was(100)), (7, 7, 7));
    let after = budget(&text(2, &(plans(20, 500) + acme)));
    let was = |limit: u64| before.was(&after, Limits::of(limit)).limit;
    assert_eq!((was(20), was(500), was(100), was(7)), (10, 1_000, 100, 7));
    assert_eq!(was(33), 33, "nobody's");
    let before = budget(&text(1, &plans(10, 1_000)));
    let was = |limit: u64| before.was(&after, Limits::of(limit)).limit;
    assert_eq!(was(7), 10, "acme went by some plan");
}

/// A rate and a window that may be over by so many percent, and the regions that have a part of them.
fn tolerant(number: u64, tolerance: &str, regions: &str) -> File {
    let policy = |name: &str, algorithm: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\nkey = [\"tenant\"]\nalgorithm = \"{algorithm}\"\nlimit = 300\n\
             per = \"5m\"\ntolerance = {tolerance}\n"
        )
    };
    of(&format!(
        "revision = {number}\nregions = [{regions}]\n{}{}",
        policy("rate", "token-bucket"),
        policy("window", "fixed-window")
    ))
}

const THREE: &str = "\"a\", \"b\", \"c\"";

fn overdrafts(place: &Place) -> (u64, u64) {
    let (rate, window) = (place.policy("rate"), place.policy("window"));
    let region = region(place.i);
    (
        place.rollout.overdraft_ppb(rate, &region),
        place
            .rollout
            .overdraft_units(window, window.limits, &region),
    )
}

#[test]
fn an_overdraft_is_smaller_at_once_and_larger_where_nobody_loses() {
    let mut places = all(&tolerant(1, "{ over = \"10%\" }", THREE));
    assert_eq!(overdrafts(&places[1]), (PPB / 30, 10));
    places[1]
        .bring(&tolerant(2, "\"never-over\"", THREE), 1_000)
        .unwrap();
    assert_eq!(overdrafts(&places[1]), (0, 0));
    let rate = places[1].policy("rate");
    assert_eq!(places[1].rollout.tolerance(rate), Tolerance::NeverOver);

    let more = tolerant(2, "{ over = \"20%\" }", THREE);
    places[2].bring(&more, 1_000).unwrap();
    assert_eq!(overdrafts(&places[2]), (PPB / 15, 20), "nobody has less");
    let rate = places[2].policy("rate");
    let raised = places[2].rollout.raised(rate).map(|(since, _)| since);
    assert_eq!(raised, Some(StoreMs(T0 + 1_000)), "it begins empty");
}

#[test]
fn an_overdraft_goes_to_others_only_once_whoever_had_it_has_confirmed() {
    let (before, after) = (
        tolerant(1, "{ over = \"30%\" }", THREE),
        tolerant(2, "{ over = \"30%\" }", "\"b\", \"c\""),
    );
    let mut places = all(&before);
    assert_eq!(overdrafts(&places[1]), (PPB / 10, 30));
    places[1].bring(&after, 1_000).unwrap();
    assert_eq!(
        overdrafts(&places[1]),
        (PPB / 10, 30),
        "a may draw it still"
    );
}

#[test]
fn the_strictest_tolerance_counts() {
    let tolerance = |place: &Place| place.rollout.tolerance(place.policy("window"));
    let unbounded = |number| tolerant(number, "\"never-under\"", THREE);
    let bounded = |number| tolerant(number, "{ over = \"10%\" }", THREE);
    let strict = |number| tolerant(number, "\"never-over\"", THREE);
    let mut places = all(&unbounded(1));
    assert_eq!(tolerance(&places[2]), Tolerance::NeverUnder);
    places[2].bring(&bounded(2), 1_000).unwrap();
    assert_eq!(tolerance(&places[2]), Tolerance::Over { ppm: 100_000 });
    assert_eq!(overdrafts(&places[2]), (PPB / 30, 10));
    places[2].bring(&strict(3), 2_000).unwrap();
    assert_eq!(tolerance(&places[2]), Tolerance::NeverOver);
    places[2].bring(&unbounded(4), 3_000).unwrap();
    assert_eq!(
        tolerance(&places[2]),
        Tolerance::NeverUnder,
        "nobody has less by it"
    );
}
