//! What a subject costs in memory. These print figures: `cargo test --test redis memory -- --ignored --nocapture`.

use super::*;

const SUBJECTS: u64 = 200_000;

fn used_memory(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("memory")
        .query(&mut server.connection())
        .unwrap();
    let line = info.lines().find_map(|l| l.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

/// Bytes a subject when each was charged once under `policies`; and that all of it goes again.
async fn bytes_a_subject(policies: &[&str], usage: bool) -> f64 {
    let server = Server::start();
    // Nothing is kept for longer than the test can wait.
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let rule = bucket_rule(1_000, 1_000, 1_000);
    let warm = decide(fence, Mode::Charge, vec![of_three()]);
    assert!(decided(store.one(warm).await).admitted);
    let before = used_memory(&server);
    for chunk in 0..SUBJECTS / 500 {
        let mut ops = Vec::new();
        for n in chunk * 500..(chunk + 1) * 500 {
            let charges = policies.iter().map(|policy| {
                let key = key(&format!("{policy}:subj-{n:07}"));
                let mut charge = charge(&key, rule.clone(), 1);
                charge.usage_ms = usage.then_some(24 * HOUR_MS);
                charge
            });
            ops.push(decide(fence, Mode::Charge, charges.collect()));
        }
        for reply in store.call(ops).await {
            assert!(decided(reply).admitted);
        }
    }
    let bytes = (used_memory(&server) - before) as f64 / SUBJECTS as f64;
    if !usage {
        // It is full after a second, and forgotten five later.
        let began = Instant::now();
        while used_memory(&server) as f64 > before as f64 * 1.05 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it isn't forgotten"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    bytes
}

#[tokio::test]
#[ignore = "prints figures, for a minute"]
async fn bytes_that_a_subject_costs() {
    let short = bytes_a_subject(&["tenants@1"], false).await;
    println!("a bucket, policy of 7 characters: {short:.0} bytes a subject");
    let bucket = bytes_a_subject(&["tenant-api@1"], false).await;
    println!("a bucket, policy of 10 characters: {bucket:.0} bytes a subject");
    let four = ["tenants@1", "per-user@1", "burst@1", "daily@1"];
    let four = bytes_a_subject(&four, false).await;
    println!("four buckets: {four:.0} bytes a subject");
    let usage = bytes_a_subject(&["tenants@1"], true).await;
    println!("a bucket with usage: {usage:.0} bytes a subject");
    assert!(short <= 160.0 && bucket <= 160.0);
}
