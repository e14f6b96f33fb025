//! Algorithms and their numbers.

use super::*;
use crate::period::Period;

#[test]
fn a_number_out_of_range_is_an_error_that_gives_the_range() {
    const UNITS: &str = "expected a whole number from 1 to 9007199254";
    for (value, what) in [
        ("-5", "-5 is negative"),
        ("0", "0 is too small"),
        ("9007199255", "9007199255 is too large"),
        ("0x100000000000000000000000000000000", "far too large"),
        ("1e3", "1e3 is not a whole number"),
        ("\"10\"", "\"10\" is a string"),
        ("true", "true is a boolean"),
        ("[1]", "this is an array"),
    ] {
        assert_refused(
            &where_("limit", value),
            &[&format!(
                "policies.toml:6: policy \"api\": limit: {what}; {UNITS}"
            )],
        );
        assert_added_is_refused(
            &format!("burst = {value}"),
            &[&format!("8 burst: {what}; {UNITS}")],
        );
    }
    assert_added_is_refused(
        "version = 0",
        &["8 version: 0 is too small; expected a whole number from 1 to 4294967295"],
    );
    assert_refused(
        "revision = 0\nregions = [\"a\"]",
        &[
            "policies.toml:1: revision: 0 is too small; expected a whole number from 1 to 9007199254740991",
        ],
    );
}

#[test]
fn a_wrong_unit_is_an_error_that_says_what_to_write() {
    const RANGE: &str = "expected a duration from 1s to 366d, such as \"1h\"";
    const BARE: &str =
        "expected a duration with its unit, in quotes, from 1s to 366d: for 60 seconds, \"60s\"";
    for (value, message) in [
        ("60", format!("60 has no unit; {BARE}")),
        ("\"60\"", format!("60 has no unit; {BARE}")),
        (
            "\"60 apples\"",
            format!("\"60 apples\" is not a duration; {RANGE}"),
        ),
        ("\"-5s\"", format!("\"-5s\" is not a duration; {RANGE}")),
        ("\"\"", format!("\"\" is not a duration; {RANGE}")),
        ("\"999ms\"", format!("\"999ms\" is too short; {RANGE}")),
        ("\"367d\"", format!("\"367d\" is too long; {RANGE}")),
        (
            "\"1month\"",
            format!("\"1month\" has a unit of no fixed length: write days; {RANGE}"),
        ),
        (
            "\"1.0005s\"",
            format!("\"1.0005s\" is not a whole number of milliseconds; {RANGE}"),
        ),
        ("true", format!("true is a boolean; {RANGE}")),
    ] {
        assert_added_is_refused(
            &format!("usage = {value}"),
            &[&format!("8 usage: {message}")],
        );
    }
}

#[test]
fn a_burst_belongs_to_buckets() {
    assert_refused(
        &(where_("", "") + "burst = 5\n"),
        &[
            "policies.toml:8: policy \"api\": burst: this algorithm has no burst; expected a burst with \"token-bucket\" or \"gcra\" alone",
        ],
    );
}

#[test]
fn each_algorithm_is_read_with_what_it_needs() {
    const MINUTE: &str = "limit = 100\nper = \"1m\"\n";
    let per_ms = 60_000;
    for (kind, added, algorithm, burst) in [
        ("sliding-log", "", Algorithm::SlidingLog { per_ms }, 100),
        (
            "sliding-window",
            "",
            Algorithm::SlidingWindow {
                per_ms,
                buckets: 20,
            },
            100,
        ),
        (
            "sliding-window",
            "buckets = 1",
            Algorithm::SlidingWindow { per_ms, buckets: 1 },
            100,
        ),
        (
            "sliding-window",
            "buckets = 60",
            Algorithm::SlidingWindow {
                per_ms,
                buckets: 60,
            },
            100,
        ),
        (
            "token-bucket",
            "burst = 7",
            Algorithm::TokenBucket { per_ms },
            7,
        ),
        ("gcra", "burst = 7", Algorithm::Gcra { per_ms }, 7),
        ("gcra", "", Algorithm::Gcra { per_ms }, 100),
    ] {
        let policy = only(&of_kind(kind, &format!("{MINUTE}{added}")));
        assert_eq!(policy.algorithm, algorithm);
        assert_eq!(policy.algorithm.name(), kind);
        assert_eq!(policy.limits, limits(100, burst));
        let fill_ms = if algorithm.is_bucket() {
            burst * 600
        } else {
            0
        };
        assert_eq!(policy.fill_ms, fill_ms, "{kind}");
    }
}

#[test]
fn fixed_windows_may_be_calendar_periods_and_others_may_not() {
    for (per, period) in [
        ("day", Period::DAY),
        ("week", Period::WEEK),
        ("month", Period::Month),
    ] {
        let policy = only(&where_("per", &format!("{per:?}")));
        assert_eq!(policy.algorithm, Algorithm::FixedWindow { period });
        for kind in ["sliding-log", "sliding-window", "token-bucket", "gcra"] {
            assert_api_is_refused(
                &of_kind(kind, &format!("limit = 9\nper = {per:?}")),
                &[&format!(
                    "7 per: \"{per}\", a calendar period, is for fixed windows alone; expected a duration, such as \"24h\""
                )],
            );
        }
    }
}

#[test]
fn buckets_are_1_to_60_and_of_a_sliding_window_alone() {
    const RANGE: &str = "expected a whole number from 1 to 60";
    for (value, what) in [("0", "0 is too small"), ("61", "61 is too large")] {
        assert_api_is_refused(
            &of_kind(
                "sliding-window",
                &format!("limit = 9\nper = \"1m\"\nbuckets = {value}"),
            ),
            &[&format!("8 buckets: {what}; {RANGE}")],
        );
    }
    for kind in ["fixed-window", "sliding-log", "token-bucket", "gcra"] {
        assert_api_is_refused(
            &of_kind(kind, "limit = 9\nper = \"1m\"\nbuckets = 9"),
            &[
                "8 buckets: this algorithm has no buckets; expected buckets with \"sliding-window\" alone",
            ],
        );
    }
}

#[test]
fn one_bucket_bounds_the_limit_by_what_is_counted_exactly() {
    let classic = |limit: u64, rest: &str| {
        of_kind(
            "sliding-window",
            &format!("limit = {limit}\nper = \"1d\"\nbuckets = 1\n{rest}"),
        )
    };
    // 2^53 / 86,400,000.
    const MOST: u64 = 104_249_991;
    only(&classic(MOST, ""));
    const SAID: &str = "104249992 is too large: with buckets = 1 the limit times the milliseconds of per, 86400000, can be \
                        at most 2^53; expected a whole number from 1 to 104249991";
    assert_api_is_refused(&classic(MOST + 1, ""), &[&format!("6 limit: {SAID}")]);
    assert_api_is_refused(
        &classic(1, "plans = { by = \"plan\", pro = { limit = 104249992 } }"),
        &[&format!("9 plans.pro.limit: {SAID}")],
    );
    only(&of_kind(
        "sliding-window",
        "limit = 9007199254\nper = \"366d\"\nbuckets = 2",
    ));
}

#[test]
fn what_is_remembered_one_by_one_is_at_most_ten_thousand() {
    const LOG: &str = "10001 is too large: a sliding log remembers every admission; expected a whole number from 1 to 10000";
    let log = |limit: u64, rest: &str| {
        of_kind(
            "sliding-log",
            &format!("limit = {limit}\nper = \"1m\"\n{rest}"),
        )
    };
    only(&log(10_000, ""));
    assert_api_is_refused(&log(10_001, ""), &[&format!("6 limit: {LOG}")]);
    assert_api_is_refused(
        &log(9, "plans = { by = \"plan\", pro = { limit = 10001 } }"),
        &[&format!("8 plans.pro.limit: {LOG}")],
    );
    assert_api_is_refused(
        &log(
            9,
            "override = [{ key = { tenant = \"a\" }, limit = 10001 }]",
        ),
        &[&format!("8 override[0].limit: {LOG}")],
    );
    assert_api_is_refused(
        &of_kind(
            "concurrency",
            "limit = 10001\nmode = \"region\"\nslot_ttl = \"30s\"",
        ),
        &[
            "6 limit: 10001 is too large: every slot that is taken is remembered; expected a whole number from 1 to 10000",
        ],
    );
}

#[test]
fn concurrency_is_of_a_region_and_has_a_time_to_live() {
    let policy = only(&of_kind(
        "concurrency",
        "limit = 1\nmode = \"region\"\nslot_ttl = \"30s\"",
    ));
    assert_eq!(
        policy.algorithm,
        Algorithm::Concurrency {
            slot_ttl_ms: 30_000
        }
    );
    assert_eq!(policy.mode, Mode::Region);
    assert_eq!(policy.fill_ms, 0);
    let set = parse(&of_kind(
        "concurrency",
        "limit = 1\nmode = \"region\"\nslot_ttl = \"1d\"",
    ));
    assert_eq!(set.unwrap().warnings, [""; 0]);
}

#[test]
fn concurrency_is_not_dealt_in_shares_and_says_so() {
    const NO_SHARES: &str =
        "slots are not dealt in shares; expected mode = \"region\" or mode = \"home\"";
    for (added, expected) in [
        ("slot_ttl = \"30s\"", format!("5 algorithm: {NO_SHARES}")),
        (
            "slot_ttl = \"30s\"\nmode = \"shares\"",
            format!("8 mode: {NO_SHARES}"),
        ),
        (
            "slot_ttl = \"30s\"\nmode = \"home\"\nhome = \"us-east\"",
            "8 mode: \"home\" is not supported yet; expected \"region\"".to_owned(),
        ),
        (
            "slot_ttl = \"30s\"\nmode = \"region\"\nweights = { us-east = 1, eu-west = 1 }",
            "9 weights: slots are not dealt: each region has the limit for itself; expected to be left out"
                .to_owned(),
        ),
        (
            "slot_ttl = \"30s\"\nmode = \"region\"\nper = \"1m\"",
            "9 per: concurrency has no period; expected no per".to_owned(),
        ),
        (
            "slot_ttl = \"30s\"\nmode = \"region\"\nburst = 2",
            "9 burst: this algorithm has no burst; expected a burst with \"token-bucket\" or \"gcra\" alone"
                .to_owned(),
        ),
        (
            "mode = \"region\"",
            "2 slot_ttl: missing; expected how long a slot is taken that nobody releases: a duration from 100ms to 1d, such as \"30s\""
                .to_owned(),
        ),
        (
            "mode = \"region\"\nslot_ttl = \"25h\"",
            "8 slot_ttl: \"25h\" is too long; expected a duration from 100ms to 1d, such as \"30s\""
                .to_owned(),
        ),
    ] {
        assert_api_is_refused(
            &of_kind("concurrency", &format!("limit = 9\n{added}")),
            &[&expected],
        );
    }
    assert_added_is_refused(
        "slot_ttl = \"30s\"",
        &[
            "8 slot_ttl: this algorithm has no slots; expected a slot_ttl with \"concurrency\" alone",
        ],
    );
}
