//! Which Redis may hold budgets.

use super::*;
use crate::config::Stated;

fn found() -> Inspection {
    Inspection {
        version: "7.2.4".into(),
        role: "master".into(),
        maxmemory_policy: Some("noeviction".into()),
        connected_replicas: 0,
        min_replicas_to_write: Some(0),
        min_replicas_max_lag_s: Some(10),
        repl_backlog_ttl_s: Some(0),
    }
}

fn with(count: u32) -> Replicas {
    Replicas {
        count,
        max_lag: Duration::from_secs(10),
        stated: Stated::default(),
    }
}

#[test]
fn a_redis_that_goes_on_without_its_replicas_is_refused() {
    let replicated = |least, lag| Inspection {
        connected_replicas: 2,
        min_replicas_to_write: Some(least),
        min_replicas_max_lag_s: Some(lag),
        ..found()
    };
    let cases = [
        (found(), with(0), ""),
        (replicated(0, 10), with(0), "it has 2 replicas"),
        (replicated(2, 10), with(2), ""),
        (replicated(2, 3), with(2), ""),
        (replicated(2, 10), with(1), "it has 2 replicas"),
        (
            replicated(1, 10),
            with(2),
            "its min-replicas-to-write is 1; expected 2",
        ),
        (replicated(2, 11), with(2), "its min-replicas-max-lag is 11"),
        (replicated(2, 0), with(2), "its min-replicas-max-lag is 0"),
        (
            Inspection {
                role: "slave".into(),
                ..found()
            },
            with(0),
            "its role is slave",
        ),
        (
            Inspection {
                version: "6.2.0".into(),
                ..found()
            },
            with(0),
            "it is version 6.2.0",
        ),
    ];
    for (found, replicas, expected) in cases {
        let why = unfit(&found, &replicas).unwrap_or_default();
        assert_eq!(expected.is_empty(), why.is_empty(), "{found:?}: {why}");
        assert!(why.contains(expected), "{found:?}: {why}");
    }
}

#[test]
fn what_a_redis_does_not_say_has_to_be_stated_and_what_it_says_counts() {
    let silent = Inspection {
        maxmemory_policy: None,
        connected_replicas: 1,
        min_replicas_to_write: None,
        min_replicas_max_lag_s: None,
        repl_backlog_ttl_s: None,
        ..found()
    };
    let mut replicas = with(1);
    let mut expect = |change: &dyn Fn(&mut Stated), expected: &str| {
        change(&mut replicas.stated);
        let why = unfit(&silent, &replicas).unwrap_or_default();
        assert_eq!(expected.is_empty(), why.is_empty(), "{why}");
        assert!(why.contains(expected), "{why}");
    };
    expect(&|_| {}, "it doesn't say its maxmemory-policy");
    expect(
        &|s| s.maxmemory_policy = Some("noeviction".into()),
        "it doesn't say its min-replicas-to-write",
    );
    expect(
        &|s| s.min_replicas_to_write = Some(1),
        "it doesn't say its min-replicas-max-lag",
    );
    expect(
        &|s| s.min_replicas_max_lag = Some(Duration::from_secs(10)),
        "",
    );
    let evicts = Inspection {
        maxmemory_policy: Some("allkeys-lru".into()),
        ..silent
    };
    assert!(unfit(&evicts, &replicas).is_some());
}

#[test]
fn a_look_counts_only_at_a_master_that_all_its_replicas_follow() {
    let seen = |is_master, replicas, lags_ms: &[u64]| Replication {
        is_master,
        was_promoted: false,
        replicas,
        lags_ms: lags_ms.to_vec(),
    };
    let fit = |replication, count| with(count).unfit_now(&replication).is_none();
    assert!(fit(seen(true, 0, &[]), 0));
    assert!(!fit(seen(false, 0, &[]), 0));
    assert!(!fit(seen(true, 1, &[0]), 0));
    assert!(fit(seen(true, 2, &[0, 10_000]), 2));
    assert!(!fit(seen(true, 2, &[0, 11_000]), 2));
    assert!(!fit(seen(true, 2, &[0]), 2));
    assert!(!fit(seen(true, 3, &[0, 0, 0]), 2));
    assert_eq!(with(0).overlap_ms(), 0);
    assert!(with(1).overlap_ms() >= 25_000);
}
