use super::*;
use apportion_core::rollout::{Told, ToldRetired, ToldRevision};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use prost::Message as _;

const NAMES: [&str; 4] = ["ap-south", "eu-west", "us-east", "x"];

fn a_region() -> impl Strategy<Value = Region> {
    prop::sample::select(&NAMES[..]).prop_map(Region::new)
}

fn a_life() -> impl Strategy<Value = Life> {
    prop_oneof![Just(0), Just(LIFE_MAX), 0..=LIFE_MAX].prop_map(Life::from_random)
}

fn an_actor() -> impl Strategy<Value = Actor> {
    (a_region(), a_life()).prop_map(|(region, life)| Actor { region, life })
}

fn a_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(NUMBER_MAX), 0..=NUMBER_MAX]
}

fn a_moment() -> impl Strategy<Value = StoreMs> {
    a_number().prop_map(StoreMs)
}

fn a_key() -> impl Strategy<Value = Key> {
    let text = prop_oneof![
        "[a-z]{1,8}@[1-9]:",
        "[a-z]{1,8}@[1-9]:[A-Za-z0-9._~-]{1,20}",
        "[a-z]{1,8}@[1-9]:%:%3A%20",
    ];
    // What looks like a secret ("sk_…") is no key.
    text.prop_filter_map("no key", |text| Key::parse(&text))
}

fn a_rate() -> impl Strategy<Value = MeterId> {
    a_key().prop_map(|key| MeterId { key, label: None })
}

fn a_window() -> impl Strategy<Value = MeterId> {
    let label = |(key, label)| MeterId {
        key,
        label: Some(label),
    };
    (a_key(), a_number()).prop_map(label)
}

fn some_limits() -> impl Strategy<Value = Limits> {
    let units = || 0..=*limits::UNITS.end();
    (units(), units()).prop_map(|(limit, burst)| Limits { limit, burst })
}

fn a_count() -> impl Strategy<Value = Count> {
    let id = prop_oneof![a_rate().boxed(), a_window().boxed()];
    let units = a_number().prop_flat_map(|units| (Just(units), 0..=units));
    (id, an_actor(), a_moment(), units).prop_map(|(id, actor, began, (units, recent))| Count {
        id,
        actor,
        told: apportion_core::tally::Told {
            began,
            units,
            recent,
        },
    })
}

fn an_ask() -> impl Strategy<Value = Ask> {
    let of = |id: BoxedStrategy<MeterId>, most: u64| {
        let flags = any::<(bool, bool)>();
        let limits = proptest::option::of(some_limits());
        (
            id,
            a_moment(),
            0..=most,
            proptest::option::of(0..=most),
            flags,
            limits,
        )
            .prop_map(
                |(id, asked_at, want, keep, (refusing, last_resort), limits)| Ask {
                    id,
                    asked_at,
                    want,
                    keep,
                    refusing,
                    last_resort,
                    limits,
                },
            )
    };
    prop_oneof![
        of(a_rate().boxed(), PPB),
        of(a_window().boxed(), NUMBER_MAX)
    ]
}

fn a_trade() -> impl Strategy<Value = Trade> {
    let epoch = || any::<u32>().prop_map(Epoch);
    let grant = (
        an_actor(),
        epoch(),
        an_actor(),
        epoch(),
        a_moment(),
        0..=PPB,
    );
    let grant = grant.prop_map(
        |(by, by_epoch, to, to_epoch, asked_at, amount_ppb)| LoanGrant {
            by,
            by_epoch,
            to,
            to_epoch,
            asked_at,
            amount_ppb,
        },
    );
    let statement = (an_actor(), epoch(), an_actor(), a_moment(), 0..=PPB);
    let statement = statement.prop_map(|(by, epoch, to, up_to, keep_ppb)| Statement {
        by,
        epoch,
        to,
        up_to,
        keep_ppb,
    });
    let row = (an_actor(), an_actor(), a_number());
    let row = row.prop_map(|(from, to, units)| Row { from, to, units });
    let seen = (an_actor(), an_actor(), a_number());
    let seen = seen.prop_map(|(from, to, units)| RowSeen { from, to, units });
    let left = prop_oneof![a_rate(), a_window()];
    (
        vec(an_ask(), 0..4),
        vec((a_key(), grant), 0..4),
        vec((a_key(), statement), 0..4),
        vec((a_window(), row), 0..4),
        vec((a_window(), seen), 0..4),
        vec((left, a_number()), 0..4),
        vec((a_key(), a_number()), 0..4),
    )
        .prop_map(
            |(asks, grants, statements, rows, seen, left, demands)| Trade {
                asks,
                grants,
                statements,
                rows,
                seen,
                left,
                demands,
            },
        )
}

fn a_table() -> impl Strategy<Value = LifeTable> {
    (
        an_actor(),
        any::<u32>(),
        btree_map(a_region(), a_life(), 0..4),
        btree_map(a_region(), btree_set(a_life(), 0..4), 0..4),
        btree_set(a_life(), 0..4),
        proptest::option::of(a_word()),
        btree_map(a_region(), a_kept(), 0..4),
        told(),
    )
        .prop_map(
            |(sender, epoch, present, known, ended, word, kept, rollout)| LifeTable {
                sender,
                epoch: Epoch(epoch),
                began_at: StoreMs(u64::from(epoch) * 1_000),
                present,
                known,
                ended,
                word,
                kept,
                rollout,
            },
        )
}

fn a_nonce() -> impl Strategy<Value = Nonce> {
    any::<(u32, u64)>().prop_map(|(number, random)| Nonce { number, random })
}

fn a_word() -> impl Strategy<Value = Word> {
    (a_nonce(), any::<Option<u64>>()).prop_map(|(nonce, strike_by)| Word { nonce, strike_by })
}

fn a_kept() -> impl Strategy<Value = Kept> {
    (a_life(), a_nonce(), any::<(bool, Option<u64>)>()).prop_map(
        |(life, nonce, (told, struck_by))| Kept {
            life,
            nonce,
            told,
            struck_by,
        },
    )
}

fn told() -> impl Strategy<Value = Told> {
    let said = (
        any::<u64>(),
        any::<bool>(),
        prop::option::of((a_moment(), a_number())),
    );
    let retired = (a_number(), btree_set(a_life(), 0..4));
    (
        btree_map(a_number(), said, 0..4),
        any::<bool>(),
        btree_map(a_region(), retired, 0..3),
        btree_set(any::<u64>(), 0..4),
    )
        .prop_map(|(revisions, original, retired, behind)| Told {
            behind,
            revisions: revisions
                .into_iter()
                .map(|(number, (digest, loses, kept))| ToldRevision {
                    number,
                    digest,
                    loses,
                    kept,
                })
                .collect(),
            original,
            retired: retired
                .into_iter()
                .map(|(region, (number, lives))| ToldRetired {
                    region,
                    number,
                    lives,
                })
                .collect(),
        })
}

fn a_message() -> impl Strategy<Value = Message> {
    let counts = (a_number(), a_number(), a_number());
    let counts = counts.prop_map(|(admitted, refunded, refused)| Counts {
        admitted,
        refunded,
        refused,
    });
    let usage = (a_key(), a_moment(), an_actor(), counts);
    let usage = usage.prop_map(|(key, period, actor, counts)| UsageEntry {
        key,
        period,
        actor,
        counts,
    });
    let positions = || vec((any::<u8>(), a_number()), 0..5);
    (
        a_table(),
        any::<u64>(),
        any::<bool>(),
        (vec(usage, 0..6), vec(a_count(), 0..6)),
        prop::option::of(a_moment()),
        positions(),
        ("[!-~]{0,128}", positions()),
        a_trade(),
    )
        .prop_map(
            |(table, policies, is_reply, (usage, counts), through, feed, (reader, acks), trade)| {
                Message {
                    table,
                    policies,
                    is_reply,
                    usage,
                    counts,
                    through,
                    feed,
                    reader,
                    acks,
                    trade,
                }
            },
        )
}

/// Anything that the wire's form can hold, mostly out of bounds.
fn anything() -> impl Strategy<Value = proto::Message> {
    let text = || {
        prop_oneof![
            Just(String::new()),
            Just("eu-west".to_owned()),
            Just("p@1:t".to_owned()),
            Just("p@1".to_owned()),
            Just("p@1:%".to_owned()),
            ".{0,40}",
        ]
    };
    let number = || prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()];
    let place = || prop_oneof![Just(0u32), 0..3u32, Just(u32::MAX)];
    let actor = (text(), number());
    let actor = actor.prop_map(|(region, life)| proto::Actor { region, life });
    let lives = (text(), vec(number(), 0..4));
    let lives = lives.prop_map(|(region, lives)| proto::Lives { region, lives });
    let usage = (place(), text(), number(), number()).prop_map(|(actor, key, a, b)| proto::Usage {
        actor,
        key,
        period_ms: a,
        admitted: b,
        refunded: a,
        refused: b,
    });
    let feed = (any::<u32>(), number());
    let feed = feed.prop_map(|(partition, seq)| proto::FeedPosition { partition, seq });
    let row = (
        text(),
        prop::option::of(number()),
        place(),
        place(),
        number(),
    );
    let row = row.prop_map(|(key, label, from, to, units)| proto::Row {
        key,
        label,
        from,
        to,
        units,
    });
    let trade = vec(row, 0..3).prop_map(|rows| proto::Trade {
        asks: rows
            .iter()
            .map(|row| proto::Ask {
                key: row.key.clone(),
                label: row.label,
                want: row.units,
                ..proto::Ask::default()
            })
            .collect(),
        grants: rows
            .iter()
            .map(|row| proto::Grant {
                key: row.key.clone(),
                by: row.from,
                to: row.to,
                amount_ppb: row.units,
                ..proto::Grant::default()
            })
            .collect(),
        seen: rows.clone(),
        rows,
        ..proto::Trade::default()
    });
    (
        vec(actor.clone(), 0..3),
        vec(actor, 0..3),
        vec(lives, 0..3),
        vec(number(), 0..3),
        vec(usage, 0..3),
        prop::option::of(number()),
        vec(feed, 0..3),
        prop::option::of(trade),
    )
        .prop_map(
            |(actors, present, known, ended, usage, through_ms, feed, trade)| proto::Message {
                actors,
                present,
                known,
                ended,
                usage,
                through_ms,
                feed,
                trade,
                ..proto::Message::default()
            },
        )
}

proptest! {
    #[test]
    fn a_message_survives_the_wire(message in a_message()) {
        let bytes = to_wire(&message).encode_to_vec();
        let wire = proto::Message::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(from_wire(wire), Ok(message));
    }

    #[test]
    fn nothing_on_the_wire_makes_a_panic(wire in anything()) {
        let _either = from_wire(wire);
    }

    #[test]
    fn no_bytes_make_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(wire) = proto::Message::decode(bytes.as_slice()) {
            let _either = from_wire(wire);
        }
    }

    /// Most random bytes aren't of the form at all; these nearly are.
    #[test]
    fn no_damage_makes_a_panic(
        message in a_message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = to_wire(&message).encode_to_vec();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        if let Ok(wire) = proto::Message::decode(bytes.as_slice())
            && let Ok(read) = from_wire(wire)
        {
            prop_assert_eq!(from_wire(to_wire(&read)), Ok(read));
        }
    }
}

fn least() -> proto::Message {
    proto::Message {
        actors: vec![proto::Actor {
            region: "eu-west".into(),
            life: 7,
        }],
        ..proto::Message::default()
    }
}

fn refused(change: impl FnOnce(&mut proto::Message)) -> String {
    let mut wire = least();
    change(&mut wire);
    from_wire(wire).unwrap_err().to_string()
}

#[test]
fn every_bound_is_held_and_named() {
    from_wire(least()).unwrap();
    let cases: [(&str, String); 23] = [
        ("actors: missing", refused(|m| m.actors.clear())),
        (
            "actors: 16385 of them; expected at most 16384",
            refused(|m| m.actors = vec![m.actors[0].clone(); ACTORS_MAX + 1]),
        ),
        (
            "actors.life: 281474976710656; expected at most 281474976710655",
            refused(|m| m.actors[0].life = 1 << 48),
        ),
        (
            "actors.region: no name for a region",
            refused(|m| m.actors[0].region = "EU".into()),
        ),
        (
            "present: 65 of them; expected at most 64",
            refused(|m| m.present = vec![m.actors[0].clone(); 65]),
        ),
        (
            "present.region: named twice",
            refused(|m| m.present = vec![m.actors[0].clone(); 2]),
        ),
        (
            "known.lives: 257 of them; expected at most 256",
            refused(|m| {
                m.known = vec![proto::Lives {
                    region: "x".into(),
                    lives: (0..257).collect(),
                }];
            }),
        ),
        (
            "ended: 257 of them; expected at most 256",
            refused(|m| m.ended = (0..257).collect()),
        ),
        (
            "kept: 65 of them; expected at most 64",
            refused(|m| m.kept = vec![proto::KeptClosing::default(); 65]),
        ),
        (
            "kept.region: named twice",
            refused(|m| {
                let region = "x".to_owned();
                m.kept = vec![
                    proto::KeptClosing {
                        region,
                        ..Default::default()
                    };
                    2
                ];
            }),
        ),
        (
            "usage: 20001 of them; expected at most 20000",
            refused(|m| m.usage = vec![proto::Usage::default(); USAGE_MAX + 1]),
        ),
        (
            "counts: 20001 of them; expected at most 20000",
            refused(|m| m.counts = vec![proto::Count::default(); COUNTS_MAX + 1]),
        ),
        (
            "counts.recent: 2; expected at most 1",
            refused(|m| {
                m.counts = vec![proto::Count {
                    key: "p@1:".into(),
                    units: 1,
                    recent: 2,
                    ..proto::Count::default()
                }];
            }),
        ),
        (
            "usage.key: no key",
            refused(|m| m.usage = vec![proto::Usage::default()]),
        ),
        (
            "usage.actor: not a place in the list of actors",
            refused(|m| {
                m.usage = vec![proto::Usage {
                    key: "p@1:".into(),
                    actor: 1,
                    ..proto::Usage::default()
                }];
            }),
        ),
        (
            "usage.admitted: 9007199254740992; expected at most 9007199254740991",
            refused(|m| {
                m.usage = vec![proto::Usage {
                    key: "p@1:".into(),
                    admitted: 1 << 53,
                    ..proto::Usage::default()
                }];
            }),
        ),
        (
            "through_ms: 18446744073709551615; expected at most 9007199254740991",
            refused(|m| m.through_ms = Some(u64::MAX)),
        ),
        (
            "feed: 256; expected at most 255",
            refused(|m| {
                m.feed = vec![proto::FeedPosition {
                    partition: 256,
                    seq: 1,
                }];
            }),
        ),
        (
            "reader: not a name of at most 128 printable ASCII characters",
            refused(|m| m.reader = "r".repeat(129)),
        ),
        (
            "reader: not a name of at most 128 printable ASCII characters",
            refused(|m| m.reader = "two words".into()),
        ),
        (
            "trade.asks: 5001 of them; expected at most 5000",
            refused(|m| {
                m.trade = Some(proto::Trade {
                    asks: vec![proto::Ask::default(); TRADE_MAX + 1],
                    ..proto::Trade::default()
                });
            }),
        ),
        (
            "trade.grants.amount_ppb: 1000000001; expected at most 1000000000",
            refused(|m| {
                m.trade = Some(proto::Trade {
                    grants: vec![proto::Grant {
                        key: "p@1:".into(),
                        amount_ppb: PPB + 1,
                        ..proto::Grant::default()
                    }],
                    ..proto::Trade::default()
                });
            }),
        ),
        (
            "trade.rows.label: missing",
            refused(|m| {
                m.trade = Some(proto::Trade {
                    rows: vec![proto::Row {
                        key: "p@1:".into(),
                        ..proto::Row::default()
                    }],
                    ..proto::Trade::default()
                });
            }),
        ),
    ];
    for (expected, said) in cases {
        assert_eq!(said, expected);
    }
}
