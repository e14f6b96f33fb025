//! What one decision costs in core: settle a meter, charge it, say what it says.

use apportion_core::fence::{Fence, Missing, Span};
use apportion_core::meter::{Meter, Part, Rule, Settled, Slack};
use apportion_core::period::Period;
use apportion_core::policy::{Algorithm, Limits};
use apportion_core::schedule::{PPB, Shares};
use apportion_core::{Epoch, Life, Record, StoreMs};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

const NOW: StoreMs = StoreMs(1_764_444_444_444);
const MINUTE_MS: u64 = 60_000;

fn fence() -> Fence {
    Fence {
        record: Record {
            life: Life::from_random(1),
            epoch: Epoch(1),
            revision: 1,
        },
        span: Span {
            from: StoreMs(0),
            until: StoreMs(u64::MAX),
        },
        epoch_began: StoreMs(0),
        missing: Missing::Full,
        closed_before: StoreMs(0),
        replicated: false,
    }
}

fn rule(algorithm: Algorithm) -> Rule {
    let part = match algorithm {
        Algorithm::FixedWindow { .. } => Part::Base {
            units: 10_000,
            from: StoreMs(0),
        },
        Algorithm::Concurrency { .. } => Part::Whole,
        _ => Part::Shares(Shares::constant(PPB)),
    };
    Rule {
        algorithm,
        limits: Limits::of(10_000),
        by_plan: false,
        fill_ms: MINUTE_MS,
        part,
        slack: Slack::Nothing,
    }
}

/// A meter that was charged 1,000 times, spread over a minute.
fn used(rule: &Rule) -> Option<Meter> {
    let mut meter = None;
    for i in 0..1_000 {
        let now = NOW.minus(MINUTE_MS).plus(i * MINUTE_MS / 1_000);
        let mut settled = Settled::new(meter.as_ref(), None, rule, None, &fence(), now);
        settled.charge(1, i, None);
        meter = Some(settled.meter);
    }
    meter
}

fn meters(c: &mut Criterion) {
    let per_ms = MINUTE_MS;
    for algorithm in [
        Algorithm::TokenBucket { per_ms },
        Algorithm::FixedWindow {
            period: Period::every(per_ms),
        },
        Algorithm::FixedWindow {
            period: Period::Month,
        },
        Algorithm::SlidingWindow { per_ms, buckets: 1 },
        Algorithm::SlidingWindow {
            per_ms,
            buckets: 20,
        },
        Algorithm::SlidingLog { per_ms },
        Algorithm::Concurrency {
            slot_ttl_ms: per_ms,
        },
    ] {
        let (rule, fence) = (rule(algorithm), fence());
        let meter = used(&rule);
        c.bench_function(&format!("{algorithm:?}"), |b| {
            b.iter(|| {
                let stored = black_box(meter.as_ref());
                let mut settled = Settled::new(stored, None, &rule, None, &fence, NOW);
                if settled.available() > 0 {
                    settled.charge(1, 7, None);
                }
                black_box(settled.reading(1))
            });
        });
    }
}

criterion_group!(benches, meters);
criterion_main!(benches);
