//! What a decision costs the server. This prints figures: `cargo test --test redis speed -- --ignored --nocapture`.

use super::*;

/// Microseconds that a call of the script takes the server, in pipelines of 16. redis-benchmark can't send these: what
/// it reads with -x ends for it at the first zero byte.
fn micros_a_call(server: &Server, command: &[Vec<u8>], calls: u64) -> f64 {
    run(server, &["CONFIG", "RESETSTAT"]);
    let (name, args) = command.split_first().unwrap();
    let mut connection = server.connection();
    let mut pipeline = redis::pipe();
    for _ in 0..16 {
        pipeline.cmd(std::str::from_utf8(name).unwrap());
        for arg in args {
            pipeline.arg(arg.as_slice());
        }
    }
    for _ in 0..calls / 16 {
        let _: Vec<Vec<u8>> = pipeline.query(&mut connection).unwrap();
    }
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .unwrap();
    let evalsha = stats.lines().find(|l| l.starts_with("cmdstat_evalsha:"));
    let evalsha = evalsha.unwrap();
    assert!(evalsha.contains("failed_calls=0"), "{evalsha}");
    let micros = evalsha.split("usec_per_call=").nth(1).unwrap();
    micros.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
#[ignore = "prints figures, for a minute"]
async fn microseconds_that_a_decision_costs_the_server() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let algorithms = [
        ("bucket", Algorithm::TokenBucket { per_ms: 1_000 }),
        (
            "window",
            Algorithm::FixedWindow {
                period: apportion_core::Period::DAY,
            },
        ),
        ("log", Algorithm::SlidingLog { per_ms: 1_000 }),
        (
            "counter",
            Algorithm::SlidingWindow {
                per_ms: 1_000,
                buckets: 1,
            },
        ),
        ("slots", Algorithm::Concurrency { slot_ttl_ms: 1_000 }),
    ];
    for (name, algorithm) in algorithms {
        for usage_ms in [None, Some(24 * HOUR_MS)] {
            for batch in [1, 32] {
                let decides: Vec<Decide> = (0..batch)
                    .map(|n| {
                        let key = key(&format!("{name}@1:subject-{n:04}"));
                        let mut charge =
                            charge(&key, rule(algorithm, 1_000_000_000, 1_000_000_000), 1);
                        charge.usage_ms = usage_ms;
                        request(fence, Mode::Charge, vec![charge])
                    })
                    .collect();
                let command = store.decide_command(&decides).unwrap();
                let micros = micros_a_call(&server, &command, 200_000 / (batch + 3));
                println!(
                    "{name}, usage {}, {batch} in a call: {micros:.1} us a call, {:.1} a decision",
                    usage_ms.is_some(),
                    micros / batch as f64
                );
            }
        }
    }
}
