use super::*;
use crate::message::{Message, Trade, UsageEntry};
use apportion_core::lives::LifeTable;
use apportion_core::usage::Counts;
use apportion_core::{Actor, Epoch, Life, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

pub(crate) struct Knows;

impl ShareSource for Knows {
    fn shares(&self, query: ShareQuery) -> BoxFuture<'_, Result<Share, ShareError>> {
        Box::pin(async move {
            match query.key.policy_id() {
                "api@1" => Ok(Share {
                    base: 33.3,
                    given: 7,
                    as_of: StoreMs(9),
                    ..Share::default()
                }),
                "slow@1" => std::future::pending().await,
                "gone@1" => Err(ShareError::StoreUnavailable("it is off".into())),
                other => Err(ShareError::UnknownPolicy(other.to_owned())),
            }
        })
    }
}

pub(crate) fn region(name: &str) -> Region {
    Region::new(name)
}

pub(crate) fn message_from(name: &str) -> Message {
    Message {
        table: LifeTable {
            sender: Actor {
                region: region(name),
                life: Life::from_random(7),
            },
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

/// Region eu-west, whose only peer is us-east; what comes in goes to `incoming`.
struct Served {
    address: String,
    shutdown: CancellationToken,
    server: JoinHandle<()>,
}

async fn eu_west(incoming: mpsc::Sender<Incoming>) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let peers = BTreeSet::from([region("us-east")]);
    let service = SyncService::new(region("eu-west"), peers, incoming, Arc::new(Knows));
    let shutdown = CancellationToken::new();
    let serving = serve(listener, service, shutdown.clone());
    Served {
        address,
        shutdown,
        server: tokio::spawn(async move { serving.await.unwrap() }),
    }
}

/// Answers everything at once, in eu-west's name.
fn answering() -> mpsc::Sender<Incoming> {
    let (sender, mut incoming) = mpsc::channel::<Incoming>(8);
    tokio::spawn(async move {
        while let Some(incoming) = incoming.recv().await {
            let _gone = incoming.answer.send(Box::new(message_from("eu-west")));
        }
    });
    sender
}

fn to(address: &str, options: Options) -> Peers {
    Peers::new([(region("eu-west"), address.to_owned())], options).unwrap()
}

async fn refusal(peers: &Peers, message: &Message) -> Code {
    match peers.exchange(&region("eu-west"), message).await {
        Err(ExchangeError::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_is_answered_over_the_network() {
    let eu = eu_west(answering()).await;
    let peers = to(&eu.address, Options::default());
    let answer = peers
        .exchange(&region("eu-west"), &message_from("us-east"))
        .await;
    assert_eq!(answer, Ok(message_from("eu-west")));
}

#[tokio::test]
async fn a_stranger_is_refused() {
    let eu = eu_west(answering()).await;
    let peers = to(&eu.address, Options::default());
    let code = refusal(&peers, &message_from("ap-south")).await;
    assert_eq!(code, Code::PermissionDenied);
}

#[tokio::test]
async fn a_message_out_of_bounds_is_refused_with_the_field_at_fault() {
    let eu = eu_west(answering()).await;
    let peers = to(&eu.address, Options::default());
    let mut message = message_from("us-east");
    message.through = Some(StoreMs(u64::MAX));
    let refused = peers.exchange(&region("eu-west"), &message).await;
    let Err(ExchangeError::Refused { code, message }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.starts_with("through_ms: "), "{message}");
}

#[tokio::test]
async fn a_message_too_many_is_refused_and_one_that_is_dropped_is_given_up() {
    let (sender, mut incoming) = mpsc::channel(1);
    let eu = eu_west(sender).await;
    let peers = to(&eu.address, Options::default());
    let first = tokio::spawn({
        let peers = peers.clone();
        async move { refusal(&peers, &message_from("us-east")).await }
    });
    while incoming.is_empty() {
        tokio::task::yield_now().await;
    }
    let code = refusal(&peers, &message_from("us-east")).await;
    assert_eq!(code, Code::ResourceExhausted);
    drop(incoming.recv().await);
    assert_eq!(first.await.unwrap(), Code::Unavailable);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up_in_time() {
    let (sender, _incoming) = mpsc::channel(8);
    let eu = eu_west(sender).await;
    let peers = to(&eu.address, Options::default());
    let began = Instant::now();
    let code = refusal(&peers, &message_from("us-east")).await;
    assert_eq!(code, Code::Unavailable);
    assert!(began.elapsed() < EXCHANGE_TIMEOUT);
}

#[tokio::test]
async fn an_address_of_another_region_is_noticed() {
    let (sender, mut incoming) = mpsc::channel::<Incoming>(8);
    let eu = eu_west(sender).await;
    tokio::spawn(async move {
        while let Some(incoming) = incoming.recv().await {
            let _gone = incoming.answer.send(Box::new(message_from("ap-south")));
        }
    });
    let peers = to(&eu.address, Options::default());
    let answer = peers
        .exchange(&region("eu-west"), &message_from("us-east"))
        .await;
    assert_eq!(answer, Err(ExchangeError::WrongRegion(region("ap-south"))));
}

#[tokio::test]
async fn a_peer_that_is_down_is_reached_once_it_is_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let peers = to(&format!("http://{address}"), Options::default());
    let message = message_from("us-east");
    assert_eq!(refusal(&peers, &message).await, Code::Unavailable);
    let listener = TcpListener::bind(address).await.unwrap();
    let service = SyncService::new(
        region("eu-west"),
        BTreeSet::from([region("us-east")]),
        answering(),
        Arc::new(Knows),
    );
    tokio::spawn(serve(listener, service, CancellationToken::new()));
    let answer = peers.exchange(&region("eu-west"), &message).await;
    assert_eq!(answer, Ok(message_from("eu-west")));
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let peers = to(&address, Options::default());
    let began = Instant::now();
    let answer = peers
        .exchange(&region("eu-west"), &message_from("us-east"))
        .await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(began.elapsed() <= EXCHANGE_TIMEOUT + Duration::from_secs(2));
}

#[tokio::test]
async fn a_distance_is_a_latency_and_no_limit_of_throughput() {
    let eu = eu_west(answering()).await;
    let one_way_delay = Duration::from_millis(150);
    let peers = to(&eu.address, Options { one_way_delay });
    let began = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let peers = peers.clone();
            tokio::spawn(async move {
                let message = message_from("us-east");
                peers.exchange(&region("eu-west"), &message).await.unwrap();
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let took = began.elapsed();
    assert!(took >= one_way_delay * 2, "{took:?}");
    assert!(took < one_way_delay * 8, "{took:?}: one after the other");
}

#[tokio::test]
async fn a_message_of_many_megabytes_arrives_in_parts() {
    let (sender, mut incoming) = mpsc::channel::<Incoming>(8);
    let arrived = tokio::spawn(async move {
        let mut keys = BTreeSet::new();
        while let Some(incoming) = incoming.recv().await {
            keys.extend(incoming.message.usage.into_iter().map(|entry| entry.key));
            let _gone = incoming.answer.send(Box::new(message_from("eu-west")));
        }
        keys.len()
    });
    let eu = eu_west(sender).await;
    let mut message = message_from("us-east");
    let actor = message.table.sender.clone();
    let long = vec!["%20".repeat(62); 12].join(":");
    message.usage = (0..8_192)
        .map(|n| UsageEntry {
            key: Key::parse(&format!("p@1:{n}:{long}")).unwrap(),
            period: StoreMs(0),
            actor: actor.clone(),
            counts: Counts::default(),
        })
        .collect();
    let peers = to(&eu.address, Options::default());
    let sent = peers.send(&region("eu-west"), message).await;
    assert_eq!(sent.error, None);
    assert!(sent.answers.len() > 1);
    eu.shutdown.cancel();
    drop(peers);
    eu.server.await.unwrap();
    assert_eq!(arrived.await.unwrap(), 8_192);
}

#[tokio::test]
async fn a_region_says_what_it_has_of_a_budget() {
    let eu = eu_west(answering()).await;
    let peers = to(&eu.address, Options::default());
    let ask = async |key: &str| {
        let key = Key::parse(key).unwrap();
        let query = ShareQuery { key, label: None };
        peers
            .shares(&region("eu-west"), &query, Duration::from_millis(500))
            .await
    };
    let share = ask("api@1:acme").await.unwrap();
    assert_eq!(share.base, 33.3);
    assert_eq!((share.given, share.as_of), (7, StoreMs(9)));
    let unknown = ShareError::UnknownPolicy("other@1".into());
    assert_eq!(ask("other@1:acme").await, Err(unknown));
    for key in ["gone@1:acme", "slow@1:acme"] {
        let answer = ask(key).await;
        assert!(
            matches!(answer, Err(ShareError::Unreachable(_))),
            "{answer:?}"
        );
    }
}

#[test]
fn an_address_that_is_none_is_named() {
    let addresses = [(region("eu-west"), "not an address".to_owned())];
    let error = Peers::new(addresses, Options::default()).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("eu-west") && said.contains("not an address"),
        "{said}"
    );
}
