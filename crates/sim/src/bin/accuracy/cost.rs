//! What regions tell each other, in bytes of messages (what gRPC and HTTP/2 put around them is some 150 bytes a message).

use crate::policies::{runs, setup};
use apportion_sim::{Flow, Record, Setup};

const ROUNDS: u64 = 10;
const INTERVAL_MS: u64 = 2_000;
const QUIET_MS: u64 = 10_000;
const END_MS: u64 = QUIET_MS + ROUNDS * INTERVAL_MS;

/// `active` keys are asked for about three times a round, `pressed` of them half more often than the limit allows.
fn state(keys: usize, active: usize, pressed: usize) -> Setup {
    let policy = "algorithm = \"token-bucket\"\nlimit = 100\nper = \"1s\"\nusage = \"1h\"\n";
    let flow = |keys: usize, per_second: f64, cost: u64| Flow {
        region: 0,
        per_second,
        from_ms: QUIET_MS,
        until_ms: END_MS,
        cost,
        keys,
    };
    let mut flows = Vec::new();
    if active > 0 {
        flows.push(flow(active, active as f64 * 1.5, 1));
    }
    if pressed > 0 {
        flows.push(flow(pressed, pressed as f64 * 150.0, 1));
    }
    let mut setup = setup(policy, flows, END_MS);
    if let Some(stated) = &mut setup.stated {
        stated.keys = keys;
    }
    setup
}

fn record(setup: &Setup) -> Record {
    let mut outcomes = runs(setup, 1);
    outcomes.pop().map(|o| o.record).unwrap_or_default()
}

#[allow(clippy::print_stdout)]
pub(crate) fn table() {
    println!(
        "| keys | active | under pressure | messages a round | bytes a round, to both peers and back | usage slots told | bytes a changed key and peer |"
    );
    println!("|---|---|---|---|---|---|---|");
    let idle = record(&state(1_000, 0, 0)).bytes;
    let rows = [
        (1_000, 0, 0),
        (1_000, 1_000, 0),
        (1_000, 0, 1),
        (1_000, 0, 10),
        (1_000, 1_000, 10),
        (1_000, 1_000, 100),
        (10_000, 1_000, 0),
        (10_000, 10_000, 0),
        (10_000, 10_000, 100),
        (100_000, 1_000, 0),
        (100_000, 100_000, 0),
        (1_000_000, 1_000, 0),
    ];
    for (keys, active, pressed) in rows {
        let record = record(&state(keys, active, pressed));
        let each = (record.slots > 0)
            .then(|| format!("{:.1}", (record.bytes - idle) as f64 / record.slots as f64));
        println!(
            "| {keys} | {active} | {pressed} | {} | {} | {} | {} |",
            record.messages / (END_MS / INTERVAL_MS),
            record.bytes / (END_MS / INTERVAL_MS),
            record.slots / ROUNDS,
            each.unwrap_or_default()
        );
    }
}
