use super::*;
use crate::face::fake::Fake;
use apportion_core::{Algorithm, Policy};
use std::sync::Arc;

fn rendered(decision: &Decision) -> String {
    let mut lines: Vec<String> = rate_limit_headers(decision)
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")))
        .collect();
    lines.sort();
    lines.join("\n")
}

fn with(report: LimitReport, change: impl Fn(&mut LimitReport)) -> LimitReport {
    let mut report = report;
    change(&mut report);
    report
}

fn with_policy(report: LimitReport, change: impl Fn(&mut Policy)) -> LimitReport {
    with(report, |report| {
        change(Arc::make_mut(&mut report.policy));
    })
}

#[test]
fn the_refusing_limit_is_told_and_of_several_the_one_that_refuses_longest() {
    let fake = Fake::new();
    let decision = fake.decision([
        with(fake.report("all", Outcome::NotCharged), |l| l.remaining = 0),
        fake.report("api", Outcome::Refused),
        with(fake.report("search", Outcome::Refused), |l| {
            l.retry_after_ms = 30_001;
            l.reset_ms = 60_000;
        }),
    ]);
    assert_eq!(
        rendered(&decision),
        "ratelimit-policy: \"search\";q=600;w=60\n\
         ratelimit: \"search\";r=0;t=60\n\
         retry-after: 31\n\
         x-ratelimit-limit: 600\n\
         x-ratelimit-remaining: 0\n\
         x-ratelimit-reset: 60"
    );
}

#[test]
fn of_limits_that_admit_the_one_with_the_least_part_remaining_is_told() {
    let fake = Fake::new();
    // 412 of 1,000, 412 of 600, 412 of 100,000.
    let decision =
        fake.decision(["api", "search", "all"].map(|p| fake.report(p, Outcome::Allowed)));
    assert_eq!(
        rendered(&decision),
        "ratelimit-policy: \"all\";q=100000;w=60\n\
         ratelimit: \"all\";r=412;t=2\n\
         x-ratelimit-limit: 100000\n\
         x-ratelimit-remaining: 412\n\
         x-ratelimit-reset: 2"
    );
}

#[test]
fn of_equals_the_first_in_the_file_is_told() {
    let fake = Fake::new();
    for outcome in [Outcome::Allowed, Outcome::Refused] {
        let decision = fake.decision([
            fake.report("api", outcome),
            with(fake.report("search", outcome), |l| l.limit = 1000),
        ]);
        let told = tightest(&decision).expect("one is told");
        assert_eq!(told.policy.name, "api", "{outcome:?}");
    }
}

#[test]
fn a_refusal_never_says_to_wait_less_than_a_second() {
    let fake = Fake::new();
    for (retry_after_ms, seconds) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2")] {
        let decision = fake.decision([with(fake.report("api", Outcome::Refused), |l| {
            l.retry_after_ms = retry_after_ms;
        })]);
        assert_eq!(rate_limit_headers(&decision)[RETRY_AFTER], seconds);
    }
}

#[test]
fn integers_saturate_at_fifteen_digits() {
    let fake = Fake::new();
    let decision = fake.decision([with(fake.report("api", Outcome::Allowed), |l| {
        l.limit = u64::MAX;
        l.remaining = 1_000_000_000_000_000;
        l.reset_ms = u64::MAX;
    })]);
    assert_eq!(
        rendered(&decision),
        "ratelimit-policy: \"api\";q=999999999999999;w=60\n\
         ratelimit: \"api\";r=999999999999999;t=999999999999999\n\
         x-ratelimit-limit: 18446744073709551615\n\
         x-ratelimit-remaining: 1000000000000000\n\
         x-ratelimit-reset: 18446744073709552"
    );
}

#[test]
fn a_window_that_is_not_whole_seconds_is_left_out() {
    let fake = Fake::new();
    let decision = fake.decision([with_policy(
        fake.report("api", Outcome::Allowed),
        |policy| {
            policy.algorithm = Algorithm::FixedWindow {
                period: Period::every(2500),
            };
        },
    )]);
    assert_eq!(
        rate_limit_headers(&decision)[RATELIMIT_POLICY],
        "\"api\";q=1000"
    );
}

#[test]
fn callers_are_not_told_of_shadow_policies() {
    let fake = Fake::new();
    let shadow = with_policy(fake.report("api", Outcome::ShadowRefused), |policy| {
        policy.shadow = true;
    });
    let alone = fake.decision([shadow.clone()]);
    assert!(alone.allowed);
    assert_eq!(rendered(&alone), "");
    let beside = fake.decision([shadow, fake.report("search", Outcome::Allowed)]);
    let told = tightest(&beside).expect("one is told");
    assert_eq!(told.policy.name, "search");
}

#[test]
fn the_fields_parse_as_structured_fields() {
    let fake = Fake::new();
    let decision = fake.decision([fake.report("api", Outcome::Allowed)]);
    let headers = rate_limit_headers(&decision);
    for name in [RATELIMIT, RATELIMIT_POLICY] {
        let text = headers[&name].to_str().expect("ASCII");
        let parsed = sfv::Parser::new(text).parse::<sfv::List>();
        assert_eq!(parsed.expect("a List").len(), 1);
    }
}
