//! What a subject costs in memory. The ignored one prints figures: `cargo test --test redis memory -- --ignored --nocapture`.

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

/// Charges each of so many subjects once under `policies`; gives the server, and what it used before.
async fn charged(subjects: u64, policies: &[&str], usage: bool, fill_ms: u64) -> (Server, u64) {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let rule = bucket_rule(1_000, fill_ms, 1_000);
    let warm = decide(fence, Mode::Charge, vec![of_three()]);
    assert!(decided(store.one(warm).await).admitted);
    let before = used_memory(&server);
    for chunk in 0..subjects / 500 {
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
    (server, before)
}

async fn bytes_a_subject(policies: &[&str], usage: bool) -> f64 {
    let (server, before) = charged(SUBJECTS, policies, usage, HOUR_MS).await;
    (used_memory(&server) - before) as f64 / SUBJECTS as f64
}

#[tokio::test]
async fn a_subject_of_one_bucket_costs_at_most_160_bytes() {
    let bytes = bytes_a_subject(&["tenant-api@1"], false).await;
    assert!(bytes <= 160.0, "{bytes}");
}

#[tokio::test]
async fn memory_comes_back_when_buckets_are_full() {
    // They are full after a second, and forgotten five later.
    let (server, before) = charged(20_000, &["tenants@1"], false, 1_000).await;
    let began = Instant::now();
    while used_memory(&server) as f64 > before as f64 * 1.05 {
        let waited = began.elapsed();
        let used = used_memory(&server);
        assert!(
            waited < Duration::from_secs(60),
            "{used} of {before} at first"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
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
}
