use super::*;
use crate::message::Ask;
use crate::wire::{from_wire, to_wire};
use apportion_core::lives::LifeTable;
use apportion_core::usage::Counts;
use apportion_core::{Actor, Epoch, Life, Region, StoreMs};
use std::collections::BTreeMap;

fn us() -> Actor {
    Actor {
        region: Region::new("eu-west"),
        life: Life::from_random(1),
    }
}

fn empty() -> Message {
    Message {
        table: LifeTable {
            sender: us(),
            epoch: Epoch(1),
            began_at: StoreMs(0),
            present: BTreeMap::new(),
            known: BTreeMap::new(),
            ended: BTreeSet::new(),
            word: None,
            kept: BTreeMap::new(),
            rollout: Default::default(),
        },
        policies: 1,
        is_reply: false,
        usage: Vec::new(),
        counts: Vec::new(),
        through: None,
        feed: Vec::new(),
        reader: String::new(),
        acks: Vec::new(),
        trade: Trade::default(),
    }
}

fn key(n: usize) -> Key {
    Key::parse(&format!("p@1:tenant-{n}")).unwrap()
}

fn asks(numbers: std::ops::Range<usize>, want: u64) -> Message {
    let ask = |n| Ask {
        id: MeterId {
            key: key(n),
            label: None,
        },
        asked_at: StoreMs(want),
        want,
        keep: None,
        refusing: false,
        last_resort: false,
        limits: None,
    };
    Message {
        trade: Trade {
            asks: numbers.map(ask).collect(),
            ..Trade::default()
        },
        ..empty()
    }
}

/// A round with one slot for each of so many keys, and the feed positions that belong to them.
fn round(keys: impl Iterator<Item = Key>) -> Message {
    let mut feed = BTreeMap::new();
    let entry = |key: Key| {
        *feed.entry(key.partition().0).or_insert(0) += 1;
        UsageEntry {
            key,
            period: StoreMs(0),
            actor: us(),
            counts: Counts::default(),
        }
    };
    let usage = keys.map(entry).collect();
    Message {
        usage,
        feed: feed.into_iter().collect(),
        reader: "us-east/AAAAAAAB".into(),
        through: Some(StoreMs(9)),
        ..empty()
    }
}

fn wants(message: &Message) -> BTreeMap<MeterId, u64> {
    let asks = message.trade.asks.iter();
    let wants: BTreeMap<_, _> = asks.clone().map(|a| (a.id.clone(), a.want)).collect();
    assert_eq!(wants.len(), asks.count(), "a key is asked for twice");
    wants
}

#[test]
fn a_folded_message_asks_for_each_key_once_and_as_last_asked() {
    let folded = fold(asks(0..3, 10), asks(2..5, 20));
    let wants: Vec<u64> = wants(&folded).into_values().collect();
    assert_eq!(wants, [10, 10, 20, 20, 20]);
}

#[test]
fn a_round_that_waits_keeps_its_usage_until_a_newer_round_replaces_it() {
    let first = round((0..3).map(key));
    let folded = fold(first.clone(), asks(0..1, 10));
    assert_eq!((&folded.usage, &folded.feed), (&first.usage, &first.feed));
    assert_eq!(
        (&folded.through, &folded.reader),
        (&first.through, &first.reader)
    );
    let second = round((0..5).map(key));
    assert_eq!(fold(folded, second.clone()).usage, second.usage);
}

#[test]
fn nothing_of_another_epoch_is_folded_in() {
    let mut newer = asks(2..3, 20);
    newer.table.epoch = Epoch(2);
    assert_eq!(fold(asks(0..2, 10), newer.clone()), newer);
    let mut newer = asks(2..3, 20);
    newer.table.sender.life = Life::from_random(2);
    assert_eq!(fold(asks(0..2, 10), newer.clone()), newer);
}

#[test]
fn a_small_message_goes_whole() {
    let message = round((0..100).map(key));
    assert_eq!(cut(message.clone()), [message]);
}

#[test]
fn parts_are_within_bounds_and_say_all_of_it_once() {
    let mut message = round((0..2 * USAGE_MAX).map(key));
    message.trade = asks(0..12_001, 10).trade;
    let parts = cut(message.clone());
    assert!(parts.len() > 2);
    for part in &parts {
        assert_eq!(from_wire(to_wire(part)).as_ref(), Ok(part));
    }
    let asked: usize = parts.iter().map(|part| wants(part).len()).sum();
    assert_eq!(asked, 12_001);
    let used: BTreeSet<Key> = parts
        .iter()
        .flat_map(|part| part.usage.iter().map(|e| e.key.clone()))
        .collect();
    assert_eq!(used.len(), 2 * USAGE_MAX);
}

#[test]
fn no_part_claims_usage_that_went_with_another() {
    let parts = cut(round((0..2 * USAGE_MAX).map(key)));
    for part in &parts {
        let claimed: BTreeSet<u8> = part.feed.iter().map(|(partition, _)| *partition).collect();
        let told: BTreeSet<u8> = part.usage.iter().map(|e| e.key.partition().0).collect();
        assert_eq!(claimed, told);
        assert_eq!(part.reader, "us-east/AAAAAAAB");
    }
    let (last, before) = parts.split_last().unwrap();
    assert_eq!(last.through, Some(StoreMs(9)));
    assert!(before.iter().all(|part| part.through.is_none()));
}

#[test]
fn long_keys_make_small_parts() {
    let long = |n: usize| {
        let values = vec!["%20".repeat(62); 12].join(":");
        Key::parse(&format!("p@1:{n}:{values}")).unwrap()
    };
    let parts = cut(round((0..8_192).map(long)));
    assert!(parts.len() > 1);
    for part in parts {
        use prost::Message as _;
        assert!(to_wire(&part).encoded_len() < crate::transport::MESSAGE_BYTES_MAX);
    }
}
