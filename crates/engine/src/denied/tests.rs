use super::*;
use crate::testing::{self, key};
use apportion_core::StoreMs;
use apportion_core::meter::Reading;

const NEED: u64 = 5;

/// A cache with a clock that is moved by hand.
fn cache() -> (DeniedCache, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(0));
    let ticks = clock.clone();
    (
        DeniedCache::with_clock(move || ticks.load(Ordering::SeqCst)),
        clock,
    )
}

fn policy() -> Arc<Policy> {
    testing::policies(testing::BUCKET_AND_POOL).policies[1].clone()
}

fn refusal(cache: &DeniedCache, policy: &Arc<Policy>, key: &Key) -> Refusal {
    Refusal {
        key: key.clone(),
        policy: policy.clone(),
        limits: Limits::of(60),
        rules: 1,
        need: NEED,
        told: Told {
            now: StoreMs(1_000),
            fits: false,
            crowded: false,
            overdrawn: 0,
            reading: Reading::Window {
                label: 7,
                used: 58,
                rights: 60,
            },
        },
        asked: cache.ask(),
        sure_ms: 5_000,
        beside: Arc::new([]),
    }
}

fn need(key: &Key) -> Need<'_> {
    Need {
        key,
        limits: Limits::of(60),
        rules: 1,
        cost: NEED,
        reserve_ppm: 0,
        units: NEED,
    }
}

fn unsent(policy: &Arc<Policy>, key: &Key) -> Unsent {
    Unsent {
        key: key.clone(),
        policy: policy.clone(),
        limits: Limits::of(60),
        units: NEED,
        since: 0,
    }
}

fn taken(cache: &DeniedCache, key: &Key) -> u64 {
    cache.take(key).map_or(0, |unsent| unsent.units)
}

#[test]
fn a_refusal_stands_for_its_time_for_the_same_limits_rules_and_key() {
    let (cache, clock) = cache();
    let (policy, a, b) = (policy(), key("pool@1:a"), key("pool@1:b"));
    assert!(cache.is_empty());
    cache.remember(refusal(&cache, &policy, &a));
    assert!(!cache.is_empty());
    assert!(cache.refuses(&need(&a)).is_some());
    assert!(cache.refuses(&need(&b)).is_none());
    assert!(
        cache
            .refuses(&Need {
                rules: 2,
                ..need(&a)
            })
            .is_none()
    );
    let limits = Limits::of(61);
    assert!(cache.refuses(&Need { limits, ..need(&a) }).is_none());
    assert!(
        cache
            .refuses(&Need {
                cost: NEED - 1,
                ..need(&a)
            })
            .is_none()
    );
    // 1% of 60 is one unit, rounded up.
    let with_reserve = Need {
        cost: NEED - 1,
        reserve_ppm: 10_000,
        ..need(&a)
    };
    assert_eq!(
        cache.refuses(&with_reserve).map(|hit| hit.told.now),
        Some(StoreMs(1_000))
    );
    clock.store(4_999, Ordering::SeqCst);
    assert_eq!(
        cache.refuses(&need(&a)).map(|hit| hit.since_ms),
        Some(4_999)
    );
    clock.store(5_000, Ordering::SeqCst);
    assert!(cache.refuses(&need(&a)).is_none());
    assert_eq!(taken(&cache, &b), 0);
    assert_eq!(taken(&cache, &a), 3 * NEED);
    assert_eq!(taken(&cache, &a), 0);
    cache.overdue(10, 0);
    assert!(cache.is_empty());
}

#[test]
fn a_refusal_that_is_older_than_a_change_is_not_remembered() {
    let (cache, _) = cache();
    let (policy, a) = (policy(), key("pool@1:a"));
    let old = refusal(&cache, &policy, &a);
    cache.changed(&a);
    cache.remember(old);
    assert!(cache.refuses(&need(&a)).is_none());
    cache.remember(refusal(&cache, &policy, &a));
    assert!(cache.refuses(&need(&a)).is_some());
    cache.changed(&a);
    assert!(cache.refuses(&need(&a)).is_none());
    assert_eq!(taken(&cache, &a), NEED, "what was refused is known still");
}

#[test]
fn ten_thousand_keys_are_remembered_and_the_oldest_goes_first() {
    let (cache, clock) = cache();
    let policy = policy();
    let keys: Vec<Key> = (0..30_000).map(|i| key(&format!("pool@1:{i}"))).collect();
    for (i, key) in keys.iter().enumerate() {
        clock.store(i as u64 / 10, Ordering::SeqCst);
        cache.remember(refusal(&cache, &policy, key));
    }
    let held = cache.occupied.load(Ordering::SeqCst);
    assert_eq!(held, SHARDS * SHARD_MAX);
    assert!(held <= DENIED_MAX);
    let newest = keys[29_000..]
        .iter()
        .filter(|key| cache.refuses(&need(key)).is_some());
    assert_eq!(newest.count(), 1_000);
    let oldest = keys[..1_000]
        .iter()
        .filter(|key| cache.refuses(&need(key)).is_some());
    assert_eq!(oldest.count(), 0);
}

#[test]
fn what_was_refused_of_a_key_that_has_to_go_is_told_all_the_same() {
    let (cache, clock) = cache();
    let policy = policy();
    let keys: Vec<Key> = (0..12_000).map(|i| key(&format!("pool@1:{i}"))).collect();
    for key in &keys {
        cache.remember(refusal(&cache, &policy, key));
        assert!(cache.refuses(&need(key)).is_some());
    }
    assert!(cache.overdue(usize::MAX, TELL_AFTER_MS).is_empty());
    clock.store(TELL_AFTER_MS, Ordering::SeqCst);
    let mut units = 0;
    for _ in 0..12 {
        let overdue = cache.overdue(1_000, TELL_AFTER_MS);
        assert_eq!(overdue.len(), 1_000);
        units += overdue.iter().map(|u| u.units).sum::<u64>();
    }
    assert_eq!(units, 12_000 * NEED);
    assert!(cache.overdue(1_000, TELL_AFTER_MS).is_empty());
}

#[test]
fn a_newer_refusal_keeps_the_count_of_the_older() {
    let (cache, _) = cache();
    let (policy, a) = (policy(), key("pool@1:a"));
    cache.remember(refusal(&cache, &policy, &a));
    assert!(cache.refuses(&need(&a)).is_some());
    cache.remember(refusal(&cache, &policy, &a));
    assert_eq!(taken(&cache, &a), NEED);
}

#[test]
fn what_is_put_back_is_kept_also_where_its_entry_is_gone() {
    let (cache, _) = cache();
    let (policy, a) = (policy(), key("pool@1:a"));
    cache.put_back(unsent(&policy, &a));
    cache.put_back(unsent(&policy, &a));
    assert!(!cache.is_empty());
    let overdue = cache.overdue(10, 0);
    assert_eq!(
        overdue.iter().map(|u| u.units).collect::<Vec<_>>(),
        [2 * NEED]
    );
    assert!(cache.is_empty());
}

#[test]
fn counts_stay_where_lua_counts_exactly() {
    let (cache, _) = cache();
    let (policy, a) = (policy(), key("pool@1:a"));
    cache.remember(refusal(&cache, &policy, &a));
    let units = UNITS_MAX - 1;
    for _ in 0..2 {
        assert!(cache.refuses(&Need { units, ..need(&a) }).is_some());
    }
    assert_eq!(taken(&cache, &a), UNITS_MAX);
    let much = Unsent {
        units: u64::MAX,
        ..unsent(&policy, &a)
    };
    cache.put_back(much.clone());
    cache.put_back(much);
    assert_eq!(taken(&cache, &a), UNITS_MAX);
}

#[test]
fn one_that_is_off_remembers_nothing() {
    let cache = DeniedCache::off();
    cache.remember(refusal(&cache, &policy(), &key("pool@1:a")));
    assert!(cache.is_empty());
}
