//! What the store promises on a real Redis and its own clock, beyond what the differential tests compare.

mod common;

use apportion_core::meter::{Rule, Terms};
use apportion_core::schedule::{PPB, Rate, Schedule};
use apportion_core::usage::{Counts, Slot};
use apportion_core::{Actor, Epoch, Life, Region, StoreMs};
use apportion_store::*;
use common::proxy::Proxy;
use common::*;
use std::time::{Duration, Instant};

const HOUR_MS: u64 = 3_600_000;

fn of_three() -> Charge {
    charge(&key("api@1:acme"), bucket_rule(1, HOUR_MS, 3), 1)
}

fn run(server: &Server, command: &[&str]) {
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(&mut server.connection())
        .unwrap();
}

/// How many of `calls` charges are admitted.
async fn admitted(store: &RedisStore, op: &Op, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(decided(store.one(op.clone()).await).admitted);
    }
    admitted
}

// === admission ===

#[tokio::test]
async fn a_bucket_admits_what_it_holds_and_no_more() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 10).await, 3);
}

#[tokio::test]
async fn a_bucket_refills_by_the_clock_of_redis() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let rule = bucket_rule(10, 1_000, 1);
    let op = decide(
        fence,
        Mode::Charge,
        vec![charge(&key("api@1:acme"), rule, 1)],
    );
    assert_eq!(admitted(&store, &op, 1).await, 1);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(admitted(&store, &op, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_callers_over_four_nodes_get_exactly_the_hundred_that_there_are() {
    let server = Server::start();
    let nodes: Vec<RedisStore> = (0..4).map(|_| server.store()).collect();
    let fence = begin(&nodes[0], record(1)).await;
    for node in &nodes[1..] {
        attach(node, fence.record.life).await;
    }
    let rule = bucket_rule(1, 24 * HOUR_MS, 100);
    let op = decide(
        fence,
        Mode::Charge,
        vec![charge(&key("api@1:acme"), rule, 1)],
    );
    let callers: Vec<_> = (0..200)
        .map(|n| {
            let (node, op) = (nodes[n % 4].clone(), op.clone());
            tokio::spawn(async move { decided(node.one(op).await).admitted })
        })
        .collect();
    let mut admitted = 0;
    for caller in callers {
        admitted += usize::from(caller.await.unwrap());
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let other = Life::from_random(99);
    let mut stale = fence;
    stale.record.life = other;
    let ops = vec![
        Op::Look,
        decide(fence, Mode::Charge, vec![of_three()]),
        decide(stale, Mode::Charge, vec![of_three()]),
        Op::Marks { life: other },
        decide(fence, Mode::Peek, vec![of_three()]),
    ];
    let replies = store.call(ops).await;
    assert!(matches!(replies[0], Ok(Reply::Looked(_))));
    assert!(matches!(replies[1], Ok(Reply::Decided(_))));
    assert_eq!(replies[2], Err(StoreError::LookAgain));
    assert_eq!(replies[3], Ok(Reply::Marks(vec![])));
    assert!(decided(replies[4].clone()).admitted);
}

// === another store, or the same one emptied ===

#[tokio::test]
async fn scripts_that_the_server_lost_are_never_loaded_again_unlooked() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    run(&server, &["SCRIPT", "FLUSH"]);
    for _ in 0..3 {
        assert_eq!(store.one(op.clone()).await, Err(StoreError::LookAgain));
    }
    attach(&store, fence.record.life).await;
    assert_eq!(admitted(&store, &op, 10).await, 3, "nothing was charged");
}

#[tokio::test]
async fn a_server_that_restarted_empty_admits_nothing_until_it_is_adopted_again() {
    let mut server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 3).await, 3);
    let before = look(&store).await.fingerprint;

    server.restart();
    let mut answered = 0;
    for _ in 0..20 {
        match store.one(op.clone()).await {
            Err(StoreError::LookAgain) => answered += 1,
            Err(StoreError::NotSent(_) | StoreError::Unknown(_)) => {}
            other => panic!("answered {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(answered > 0, "it never got there");

    let life = fence.record.life;
    let attach_as = |fingerprint: &str| Op::Attach {
        life,
        fingerprint: fingerprint.into(),
    };
    let attached = store.one(attach_as(&before)).await;
    assert_eq!(attached, Err(StoreError::LookAgain));
    assert_eq!(store.one(op.clone()).await, Err(StoreError::LookAgain));

    attach(&store, life).await;
    assert_eq!(store.one(op).await, Err(StoreError::Fenced(None)));
}

#[tokio::test]
async fn an_emptied_store_is_fenced() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 3).await, 3);
    run(&server, &["FLUSHALL"]);
    assert_eq!(store.one(op).await, Err(StoreError::Fenced(None)));
}

#[tokio::test]
async fn a_node_behind_the_record_is_told_what_it_is() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let mut ahead = fence;
    ahead.record.epoch = Epoch(7);
    let op = decide(ahead, Mode::Charge, vec![of_three()]);
    let fenced = Err(StoreError::Fenced(Some(fence.record)));
    assert_eq!(store.one(op).await, fenced);
}

#[tokio::test]
async fn a_broken_connection_to_the_same_process_needs_no_new_attachment() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);
    run(
        &server,
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(admitted(&store, &op, 9).await, 2);
}

// === outcomes that nobody knows ===

#[tokio::test]
async fn an_answer_that_never_comes_is_unknown_and_charged_at_most_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let timeout = Duration::from_millis(200);
    let store = RedisStore::new(&proxy.url(), timeout, "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);

    proxy.stall();
    let began = Instant::now();
    let unknown = store.one(op.clone()).await;
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    assert!(began.elapsed() < 3 * timeout, "it waited too long");
    proxy.go_on();

    assert_eq!(admitted(&store, &op, 10).await, 1, "1 + 1 unknown + 1");
}

#[tokio::test]
async fn a_connection_cut_before_the_answer_is_unknown_and_charged_at_most_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), TIMEOUT, "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    assert_eq!(admitted(&store, &op, 1).await, 1);

    proxy.stall();
    let (unknown, ()) = tokio::join!(store.one(op.clone()), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut();
    });
    assert!(
        matches!(unknown, Err(StoreError::Unknown(_))),
        "{unknown:?}"
    );
    proxy.go_on();

    assert_eq!(admitted(&store, &op, 10).await, 1, "1 + 1 unknown + 1");
}

#[tokio::test]
async fn decisions_do_not_wait_behind_other_work() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::new(&proxy.url(), Duration::from_millis(300), "ap").unwrap();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);

    proxy.stall_connection(0);
    let (looked, admitted) = tokio::join!(store.one(Op::Look), admitted(&store, &op, 3));
    assert_eq!(admitted, 3);
    assert!(matches!(looked, Err(StoreError::Unknown(_))));
}

#[tokio::test]
async fn a_store_that_is_not_there_is_not_hammered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let proxy = Proxy::to(port).await;
    let store = RedisStore::new(&proxy.url(), TIMEOUT, "ap").unwrap();
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < Duration::from_secs(1) {
        let callers: Vec<_> = (0..20).map(|_| store.one(Op::Look)).collect();
        for caller in callers {
            let looked = caller.await;
            assert!(matches!(looked, Err(StoreError::NotSent(_))), "{looked:?}");
            calls += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(calls > 500, "{calls} calls: callers wait for attempts");
    assert!(proxy.accepted() < 12, "{} attempts", proxy.accepted());
}

// === what the server refuses ===

#[tokio::test]
async fn a_server_that_will_not_write_rejects_and_charges_nothing() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let op = decide(fence, Mode::Charge, vec![of_three()]);
    let refusals = [
        (["maxmemory", "1"], ["maxmemory", "0"], "OOM"),
        (
            ["min-replicas-to-write", "1"],
            ["min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    for ([name, on], [_, off], code) in refusals {
        run(&server, &["CONFIG", "SET", name, on]);
        match store.one(op.clone()).await {
            Err(StoreError::Rejected(why)) => assert!(why.contains(code), "{why}"),
            other => panic!("answered {other:?}"),
        }
        run(&server, &["CONFIG", "SET", name, off]);
    }
    assert_eq!(admitted(&store, &op, 10).await, 3);

    run(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    match store.one(op).await {
        Err(StoreError::Rejected(why)) => assert!(why.contains("READONLY"), "{why}"),
        other => panic!("answered {other:?}"),
    }
}

#[tokio::test]
async fn what_can_not_be_read_is_rejected_by_the_name_of_its_key() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let partition = tenant.partition();
    let mut one = of_three();
    one.usage_ms = Some(HOUR_MS);
    let charge = decide(fence, Mode::Charge, vec![one]);
    let life = fence.record.life;
    let id = MeterId {
        key: tenant.clone(),
        label: None,
    };
    let read = Op::Read {
        fence,
        partition,
        ids: vec![id],
    };
    let named = |kind: &str| format!("ap{{{:02x}}}{life}{kind}", partition.0);
    let meter = named("kapi@1:acme");
    let traded = named("tapi@1:acme");
    for (name, value) in [
        (&meter, vec!["SET", "1,2"]),
        (&meter, vec!["SET", "1,2,3;4"]),
        (&meter, vec!["SET", "-1,2,3"]),
        (&meter, vec!["SET", ""]),
        (&meter, vec!["SET", "99999999999999999999,2,3"]),
        (&meter, vec!["RPUSH", "1"]),
        (&traded, vec!["HSET", "v", "one"]),
        (&traded, vec!["HSET", "v", "1", "s", "b1;2;3"]),
        (&traded, vec!["HSET", "v", "1", "s", "b1;2;0,1,1,1,0"]),
        (&traded, vec!["HSET", "v", "1", "s", "b1;2;0,1,1,1,1,"]),
        (&traded, vec!["HSET", "v", "1", "s", "w1.5"]),
        (&traded, vec!["SET", "1"]),
    ] {
        let (command, rest) = value.split_first().unwrap();
        let mut connection = server.connection();
        let mut write = redis::cmd(command);
        write.arg(name).arg(rest).exec(&mut connection).unwrap();
        match store.one(read.clone()).await {
            // A bucket's key that holds a window is readable as such.
            Ok(_) => assert_eq!(rest, ["1,2"]),
            Err(StoreError::Rejected(why)) => assert!(why.contains(name.as_str()), "{why}"),
            other => panic!("{value:?}: answered {other:?}"),
        }
        // A decision may take a number that is too large for the largest there is; it may not do worse.
        match store.one(charge.clone()).await {
            Err(StoreError::Rejected(why)) => assert!(why.contains(name.as_str()), "{why}"),
            Ok(Reply::Decided(_)) => {}
            other => panic!("{value:?}: answered {other:?}"),
        }
        run(&server, &["DEL", name]);
    }

    let record = format!("ap{{{:02x}}}r", partition.0);
    run(&server, &["SET", &record, "what"]);
    match store.one(charge).await {
        Err(StoreError::Rejected(why)) => assert!(why.contains(&record), "{why}"),
        other => panic!("answered {other:?}"),
    }
}

#[tokio::test]
async fn numbers_that_redis_can_not_count_are_rejected_unsent() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let mut huge = of_three();
    huge.cost = (1 << 53) + 1;
    let replies = store
        .call(vec![
            decide(fence, Mode::Charge, vec![huge]),
            decide(fence, Mode::Charge, vec![of_three()]),
        ])
        .await;
    assert!(matches!(replies[0], Err(StoreError::Rejected(_))));
    assert!(decided(replies[1].clone()).admitted);
}

#[tokio::test]
async fn a_store_says_whether_it_may_evict() {
    let server = Server::start();
    let store = server.store();
    let inspected = store.inspect().await.unwrap();
    assert!(
        inspected.version.starts_with(|c: char| c >= '7'),
        "{inspected:?}"
    );
    assert_eq!(inspected.role, "master");
    assert_eq!(inspected.maxmemory_policy.as_deref(), Some("noeviction"));
    assert_eq!(inspected.min_replicas_to_write, Some(0));
    run(
        &server,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    let inspected = store.inspect().await.unwrap();
    assert_eq!(inspected.maxmemory_policy.as_deref(), Some("allkeys-lru"));
}

// === keys ===

#[tokio::test]
async fn every_key_but_the_records_and_the_state_expires() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let partition = tenant.partition();
    let mut bucket = of_three();
    bucket.usage_ms = Some(HOUR_MS);
    let rule = Rule::Window {
        per_ms: HOUR_MS,
        base: 1,
        base_from: StoreMs(0),
    };
    let window = charge(&key("day@1:acme"), rule, 1);
    let hold = Mode::Hold {
        id: 1,
        ttl_ms: 5_000,
    };
    let actor = Actor {
        region: Region::new("eu"),
        life: Life::from_random(2),
    };
    let now = look(&store).await.now;
    let three = Rate {
        limit: 1,
        per_ms: HOUR_MS,
        burst: 3,
    }
    .share(PPB);
    let swap = Swap {
        fence,
        id: MeterId {
            key: tenant.clone(),
            label: None,
        },
        rule: bucket_rule(1, HOUR_MS, 3),
        expect: 0,
        terms: Terms::Bucket {
            epoch: fence.record.epoch,
            schedule: Schedule::constant(three),
            own_cap: three.cap,
        },
        allotment: vec![1],
        keep_until: now.plus(1_000),
    };
    let slot = UsageSlot {
        key: tenant.clone(),
        period: StoreMs(0),
        keep_until: now.plus(HOUR_MS),
        slot: Slot {
            actor: actor.clone(),
            counts: Counts {
                admitted: 1,
                ..Counts::default()
            },
        },
    };
    let through = StoreMs(1);
    let life = fence.record.life;
    let mut outside = fence;
    outside.span = apportion_core::fence::Span::never();
    let mut nothing = charge(&key("other@1:acme"), bucket_rule(1, HOUR_MS, 3), 0);
    nothing.cost = 0;
    let ops = vec![
        decide(fence, hold, vec![bucket.clone(), window.clone()]),
        decide(fence, Mode::Charge, vec![bucket, window]),
        decide(outside, Mode::Charge, vec![nothing]),
        Op::Swap(swap),
        Op::Merge {
            fence,
            partition,
            slots: vec![slot],
        },
        Op::Ack {
            fence,
            partition,
            reader: "eu".into(),
            seq: 1,
        },
        Op::Mark {
            life,
            actor,
            through,
        },
        Op::Lease {
            holder: 1,
            ttl_ms: 1_000,
        },
    ];
    for (i, reply) in store.call(ops).await.into_iter().enumerate() {
        assert!(reply.is_ok(), "{i}: {reply:?}");
    }
    let mut connection = server.connection();
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for name in names {
        let ttl: i64 = redis::cmd("PTTL")
            .arg(&name)
            .query(&mut connection)
            .unwrap();
        let (_, rest) = name.split_once('}').unwrap();
        let lasting = rest == "r" || rest == "s";
        assert_eq!(ttl == -1, lasting, "{name} has {ttl} ms");
        kinds.insert(rest.replace(&life.to_string(), "").chars().next());
    }
    let kinds: String = kinds.into_iter().flatten().collect();
    assert_eq!(kinds, "cfklmqrstux", "each kind of key was met");
}

#[tokio::test]
async fn a_password_in_the_address_is_not_told() {
    let url = "redis://user:secret@127.0.0.1:1/";
    let store = RedisStore::new(url, TIMEOUT, "ap").unwrap();
    let looked = store.one(Op::Look).await;
    assert!(!format!("{store:?} {looked:?}").contains("secret"));
    let bad = RedisStore::new("redis://user:secret@host:port/", TIMEOUT, "ap");
    assert!(!format!("{bad:?}").contains("secret"));
}
