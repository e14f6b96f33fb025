//! Any number of revisions, regions that skip some, stores that are lost, words that are lost, late and out of order: the
//! bases in use never add up to more than the whole.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A word on its way, to a life of a region.
struct Word {
    from: usize,
    to: usize,
    /// Which life of the receiver the sender knew.
    knows: u32,
    told: Told,
}

/// What a region had, and may have lent or given away, lately.
struct Had {
    shares: VecDeque<(u64, u64)>,
    windows: BTreeMap<u64, u64>,
    life: u32,
    born_ms: u64,
    /// The life of each other region that it has heard of last.
    knows: [u32; 3],
    is_later: bool,
}

struct Chance(u64);

impl Chance {
    fn up_to(&mut self, n: u64) -> u64 {
        self.0 = xxhash_rust::xxh3::xxh3_64(&self.0.to_le_bytes());
        self.0 % n
    }
}

fn weights(chance: &mut Chance) -> [u64; 3] {
    let mut weights = [0, 1, 2].map(|_| chance.up_to(4));
    weights[chance.up_to(3) as usize] += 1;
    weights
}

fn run(seed: u64) {
    let mut chance = Chance(seed);
    let count = 3 + chance.up_to(3);
    let mut files: Vec<File> = Vec::new();
    let mut dealt = weights(&mut chance);
    for number in 1..=count {
        if chance.up_to(2) == 0 {
            dealt = weights(&mut chance);
        }
        files.push(file(number, 200 + 50 * chance.up_to(3), dealt));
    }
    let mut places = all(&files[0]);
    let mut newest = [0usize; 3];
    let mut had = [0, 1, 2].map(|_| Had {
        shares: VecDeque::new(),
        windows: BTreeMap::new(),
        life: 0,
        born_ms: 0,
        knows: [0; 3],
        is_later: false,
    });
    let mut words: Vec<Word> = Vec::new();
    let mut ms = 0;
    for _ in 0..250 {
        ms += chance.up_to(9_000);
        let i = chance.up_to(3) as usize;
        match chance.up_to(12) {
            0 => {
                let to = (newest[i] + 1 + (chance.up_to(4) / 3) as usize).min(files.len() - 1);
                if to > newest[i] && places[i].bring(&files[to], ms).is_ok() {
                    newest[i] = to;
                }
            }
            1 if chance.up_to(3) == 0 => {
                // Lost: with all it knew, or set back to what it had. It starts with any file.
                let file = &files[chance.up_to(newest[i] as u64 + 1) as usize];
                let rollout = match chance.up_to(2) {
                    0 => Rollout::new(true),
                    _ => places[i].rollout.clone().reborn(),
                };
                let before = std::mem::replace(&mut places[i].rollout, rollout);
                places[i].epoch_began = StoreMs(T0 + ms);
                places[i].is_first = false;
                if places[i].bring(file, ms).is_err() {
                    places[i].rollout = before.reborn();
                    places[i].advance(ms);
                }
                had[i].life += 1;
                had[i].born_ms = ms;
                had[i].is_later = true;
            }
            2..=6 => {
                let to = (i + 1 + chance.up_to(2) as usize) % 3;
                words.push(Word {
                    from: i,
                    to,
                    knows: had[i].knows[to],
                    told: places[i].told(ms),
                });
            }
            _ if !words.is_empty() => {
                let word = words.swap_remove(chance.up_to(words.len() as u64) as usize);
                let (from, to) = (word.from, word.to);
                let knows_us = word.knows == had[to].life;
                let heard = places[to].rollout.clone();
                places[to].rollout = heard.hear(&region(from), &word.told, knows_us);
                had[to].knows[from] = had[from].life;
                words.retain(|w| w.from != from || chance.up_to(8) > 0);
            }
            _ => {}
        }
        places[i].advance(ms);
        check(&places, &mut had, ms, seed);
    }
}

fn check(places: &[Place; 3], had: &mut [Had; 3], ms: u64, seed: u64) {
    let mut sum = 0;
    for (place, had) in places.iter().zip(had.iter_mut()) {
        // A later life counts all as lent for so long.
        let settled = !had.is_later || ms >= had.born_ms + RECLAIM_MS;
        let ppb = if settled { place.ppb() } else { 0 };
        had.shares.push_back((ms, ppb));
        // What it lent last, before it knew better, is out for a term and more.
        while had.shares.len() > 1 && had.shares[1].0 + RECLAIM_MS <= ms {
            had.shares.pop_front();
        }
        sum += had.shares.iter().map(|(_, ppb)| ppb).max().unwrap();
    }
    assert!(sum <= PPB, "seed {seed} at {ms}: {sum} ppb in use");

    let period = match places[0].policy("window").algorithm {
        Algorithm::FixedWindow { period } => period,
        _ => unreachable!("it is a window"),
    };
    let now = StoreMs(T0 + ms);
    for label in period.label(now)..=period.label(now.plus(GIVEN_AHEAD_MS)) {
        let mut sum = 0;
        for (place, had) in places.iter().zip(had.iter_mut()) {
            let born = StoreMs(T0 + had.born_ms).plus(SKEW_MS + period.longest_ms());
            let begins = period.bounds(label).0;
            let base = begins >= place.rollout.windows_from(period);
            let own = !had.is_later || begins > born;
            let units = if base && own { place.units() } else { 0 };
            let most = had.windows.entry(label).or_default();
            *most = (*most).max(units);
            sum += *most;
        }
        assert!(
            sum <= 300,
            "seed {seed} at {ms}: {sum} units of window {label}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_bases_in_use_never_add_up_to_more_than_the_whole(seed: u64) {
        run(seed);
    }
}
