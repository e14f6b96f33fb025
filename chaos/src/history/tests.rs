use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BUCKET: Bucket = Bucket {
    limit: 600,
    per_ms: 60_000,
    burst: 60,
};

/// Every interval, one by one.
fn holds_by_definition(bucket: Bucket, admissions: &[Admission]) -> bool {
    (0..admissions.len()).all(|from| {
        let mut admitted = 0;
        (from..admissions.len()).all(|to| {
            admitted += u128::from(admissions[to].cost);
            let t = u128::from(admissions[to].at_ms - admissions[from].at_ms);
            let per = u128::from(bucket.per_ms);
            admitted * per <= u128::from(bucket.burst) * per + u128::from(bucket.limit) * t
        })
    })
}

fn every(gap_ms: u64, from_ms: u64, count: u64) -> Vec<Admission> {
    (0..count)
        .map(|i| Admission {
            at_ms: from_ms + i * gap_ms,
            cost: 1,
        })
        .collect()
}

fn answer(outcome: Outcome, decided_at_ms: Option<u64>) -> Answer {
    Answer {
        outcome,
        region: None,
        decided_at_ms,
        retry_after_ms: None,
        limits: Vec::new(),
        body: String::new(),
    }
}

#[test]
fn a_burst_and_then_the_rate_is_allowed() {
    let mut admissions = every(0, 1_000, 60);
    admissions.extend(every(100, 1_100, 500));
    BUCKET.check(&admissions).unwrap();
}

#[test]
fn one_more_than_the_burst_is_not() {
    let violation = BUCKET.check(&every(0, 1_000, 61)).unwrap_err();
    assert_eq!(
        violation,
        Violation::OverRate {
            admitted: 61,
            from_ms: 1_000,
            to_ms: 1_000,
            burst: 60,
            limit: 600,
            per_ms: 60_000,
        }
    );
    assert!(violation.to_string().contains("no more than 60"));
}

#[test]
fn one_a_millisecond_too_soon_is_not() {
    let mut admissions = every(0, 1_000, 60);
    admissions.extend(every(100, 1_100, 500));
    admissions[300].at_ms -= 1;
    assert!(BUCKET.check(&admissions).is_err());
}

#[test]
fn an_idle_hour_saves_up_no_more_than_the_burst() {
    let mut admissions = every(0, 1_000, 60);
    admissions.extend(every(0, 3_600_000, 60));
    BUCKET.check(&admissions).unwrap();
    admissions.extend(every(0, 3_600_050, 1));
    assert!(BUCKET.check(&admissions).is_err());
}

#[test]
fn the_replay_agrees_with_the_definition() {
    let seed = crate::seed("the_replay_agrees_with_the_definition");
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut held, mut broken) = (0, 0);
    for _ in 0..3_000 {
        let bucket = Bucket {
            limit: rng.random_range(1..20),
            per_ms: rng.random_range(1..100),
            burst: rng.random_range(1..10),
        };
        let mut at_ms = rng.random_range(0..1_000);
        // Near the rate, so that both verdicts come up.
        let longest_gap = 1 + 3 * bucket.per_ms / bucket.limit;
        let admissions: Vec<_> = (0..rng.random_range(0..30))
            .map(|_| {
                at_ms += rng.random_range(0..=longest_gap);
                let cost = rng.random_range(1..=2);
                Admission { at_ms, cost }
            })
            .collect();
        let expected = holds_by_definition(bucket, &admissions);
        let found = bucket.check(&admissions);
        assert_eq!(found.is_ok(), expected, "{bucket:?} {admissions:?}");
        if let Err(Violation::OverRate {
            admitted,
            from_ms,
            to_ms,
            ..
        }) = found
        {
            let t = to_ms - from_ms;
            assert!(
                admitted * bucket.per_ms > bucket.burst * bucket.per_ms + bucket.limit * t,
                "the interval named is none that breaks: {bucket:?} {admissions:?}"
            );
        }
        if expected {
            held += 1;
        } else {
            broken += 1;
        }
    }
    assert!(held > 100 && broken > 100, "{held} held, {broken} broke");
}

#[test]
fn only_what_callers_were_told_counts() {
    let history = History::new();
    let now = Instant::now();
    history.note("eu", 2, now, &answer(Outcome::Allowed, Some(20)));
    history.note("us", 1, now, &answer(Outcome::Allowed, Some(10)));
    history.note("us", 1, now, &answer(Outcome::Unknown, None));
    history.note("us", 1, now, &answer(Outcome::Refused, Some(30)));
    assert_eq!(history.admitted(), 3);
    assert_eq!(history.in_doubt(), 1);
    assert_eq!(
        history.admitted_by_region(),
        BTreeMap::from([("eu".into(), 2), ("us".into(), 1)])
    );
    history.check_limit(3).unwrap();
    assert!(history.check_limit(2).is_err());
    let admissions = history.admissions().unwrap();
    assert_eq!(admissions[0].at_ms, 10);
    assert_eq!(admitted_between(&admissions, 10, 20), 1);
    assert_eq!(
        history.tally().to_string(),
        "4 asked, 2 allowed, 1 refused, 1 unknown"
    );
}

#[test]
fn an_admission_without_a_time_cannot_be_checked() {
    let history = History::new();
    history.note("us", 1, Instant::now(), &answer(Outcome::Allowed, None));
    assert!(matches!(
        history.check_bucket(BUCKET),
        Err(Violation::Undated { .. })
    ));
}
