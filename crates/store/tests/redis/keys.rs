//! What is left behind in Redis, and in messages.

use super::*;

#[tokio::test]
async fn every_key_but_the_records_and_the_state_expires() {
    let server = Server::start();
    let store = server.store();
    let fence = begin(&store, record(1)).await;
    let tenant = key("api@1:acme");
    let partition = tenant.partition();
    let mut bucket = of_three();
    bucket.usage_ms = Some(HOUR_MS);
    bucket.newcomers_max = Some(10);
    bucket.member = Some(Member {
        name: "a".into(),
        weight: 1,
    });
    let window = charge(&key("day@1:acme"), window_rule(2, HOUR_MS), 1);
    let log = Algorithm::SlidingLog { per_ms: HOUR_MS };
    let log = charge(&key("log@1:acme"), rule(log, 10, 0), 1);
    let slots = Algorithm::Concurrency {
        slot_ttl_ms: HOUR_MS,
    };
    let slots = charge(&key("slots@1:acme"), rule(slots, 10, 0), 2);
    let counter = Algorithm::SlidingWindow {
        per_ms: HOUR_MS,
        buckets: 6,
    };
    let counter = charge(&key("count@1:acme"), rule(counter, 10, 0), 1);
    let all = vec![bucket.clone(), window, log.clone(), slots, counter];
    let hold = Mode::Hold { ttl_ms: 5_000 };
    let actor = Actor {
        region: Region::new("eu"),
        life: Life::from_random(2),
    };
    let now = look(&store).await.now;
    let swap = Swap {
        fence,
        id: MeterId {
            key: tenant.clone(),
            label: None,
        },
        rule: Arc::new(bucket_rule(1, HOUR_MS, 3)),
        expect: 0,
        terms: Terms::Loans {
            epoch: fence.record.epoch,
            shares: Shares::constant(PPB),
            own_ppb: PPB,
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
    let mut remembered = request(fence, Mode::Charge, all.clone());
    remembered.remember = Some(Remember {
        id: "a name".into(),
        content: 1,
        others: vec![],
    });
    let ops = vec![
        decide(fence, hold, all.clone()),
        Op::Decide(remembered),
        decide(fence, Mode::Charge, all),
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
    // The log's newest entry is in its meter; the next one puts it in the list.
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(decided(store.one(decide(fence, Mode::Charge, vec![log])).await).admitted);
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
        let kind = rest.replace(&life.to_string(), "");
        kinds.insert(kind.chars().next().filter(|_| !kind.contains("a meter")));
    }
    let kinds: String = kinds.into_iter().flatten().collect();
    assert_eq!(kinds, "CFILNPQSTUWXacdlmrs", "each kind of key was met");
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
