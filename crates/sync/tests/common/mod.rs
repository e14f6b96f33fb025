//! Regions in one process: embedded stores, real drivers, real gRPC, and links between them that can be cut.

use apportion_core::allotment::Timing;
use apportion_core::lives::OnEmpty;
use apportion_core::usage::Counts;
use apportion_core::{Attributes, Key, Policy, PolicySet, Region, StoreMs};
use apportion_store::{
    Charge, Decide, Memory, MemoryStore, Mode, Op, Reply, Store as _, StoreError,
};
use apportion_sync::transport::{
    BoxFuture, Options, Peers, Share, ShareError, ShareQuery, ShareSource, serve,
};
use apportion_sync::{Config, Handle, Pressure, Setup, spawn};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) const POLICIES: &str = r#"
regions = ["ap-south", "eu-west", "us-east"]

[[policy]]
name = "exports"
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "24h"
usage = "24h"
"#;

pub(crate) const INTERVAL_MS: u64 = 300;
const DAY_MS: u64 = 86_400_000;
/// Some noon, so that no window ends during a test.
const NOON_MS: u64 = 20_000 * DAY_MS + DAY_MS / 2;
/// Far more than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(40);

/// A directed link between two regions: a proxy that holds back what it is given while it is cut.
pub(crate) struct Link {
    address: SocketAddr,
    open: watch::Sender<bool>,
}

pub(crate) struct Node {
    pub(crate) store: MemoryStore,
    pub(crate) handle: Handle,
    pub(crate) driver: JoinHandle<()>,
    pub(crate) server: JoinHandle<()>,
    pub(crate) shutdown: CancellationToken,
    clock: Arc<dyn Fn() -> StoreMs + Send + Sync>,
}

pub(crate) struct World {
    pub(crate) policy: Arc<Policy>,
    pub(crate) key: Key,
    pub(crate) nodes: BTreeMap<Region, Node>,
    links: BTreeMap<(Region, Region), Link>,
}

struct NoShares;

impl ShareSource for NoShares {
    fn shares(&self, query: ShareQuery) -> BoxFuture<'_, Result<Share, ShareError>> {
        Box::pin(async move { Err(ShareError::UnknownPolicy(query.key.policy_id().to_owned())) })
    }
}

impl Link {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(forward(near, target, is_open.clone()));
            }
        });
        Self { address, open }
    }
}

async fn forward(near: TcpStream, target: SocketAddr, is_open: watch::Receiver<bool>) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let there = pump(near_in, far_out, is_open.clone());
    let back = pump(far_in, near_out, is_open);
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut is_open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if is_open.wait_for(|open| *open).await.is_err()
            || to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
}

impl World {
    pub(crate) async fn new(on_empty: OnEmpty) -> Self {
        let policies = Arc::new(PolicySet::parse(POLICIES, "policies.toml").unwrap());
        let policy = Arc::clone(&policies.policies[0]);
        let tenant = Attributes::from([("tenant".to_owned(), "acme".to_owned())]);
        let key = Key::of(&policy, &tenant, &policies.subject_hash).unwrap();
        let mut listeners = BTreeMap::new();
        for region in &policies.regions {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listeners.insert(region.clone(), listener);
        }
        let mut links = BTreeMap::new();
        for from in &policies.regions {
            for (to, listener) in listeners.iter().filter(|(to, _)| *to != from) {
                let link = Link::to(listener.local_addr().unwrap()).await;
                links.insert((from.clone(), to.clone()), link);
            }
        }
        let mut nodes = BTreeMap::new();
        for (seed, (region, listener)) in (1..).zip(listeners) {
            let addresses: Vec<(Region, String)> = links
                .iter()
                .filter(|((from, _), _)| *from == region)
                .map(|((_, to), link)| (to.clone(), format!("http://{}", link.address)))
                .collect();
            let config = Config {
                region: region.clone(),
                peers: addresses.iter().map(|(region, _)| region.clone()).collect(),
                policies: Arc::clone(&policies),
                interval_ms: INTERVAL_MS,
                timing: Timing { term_ms: 2_000 },
                on_empty,
                seed,
            };
            let peers = Peers::new(addresses, Options::default()).unwrap();
            nodes.insert(region, Node::start(config, peers, listener));
        }
        Self {
            policy,
            key,
            nodes,
            links,
        }
    }

    pub(crate) fn node(&self, region: &str) -> &Node {
        &self.nodes[&Region::new(region)]
    }

    /// Cuts every link to and from `region`, without a word to anybody, or mends them.
    pub(crate) fn set_reachable(&self, region: &str, reachable: bool) {
        let region = Region::new(region);
        for ((from, to), link) in &self.links {
            if *from == region || *to == region {
                link.open.send_replace(reachable);
            }
        }
    }

    /// Asks for one unit at a region. `None` where it couldn't be decided.
    pub(crate) async fn ask(&self, region: &str) -> Option<bool> {
        let node = self.node(region);
        let regime = node.handle.regime().load_full()?;
        let charge = Charge {
            key: self.key.clone(),
            rule: Arc::new(regime.rule(&self.policy, self.policy.limits)),
            cost: 1,
            units: 1,
            reserve_ppm: 0,
            denied: 0,
            usage_ms: self.policy.usage_ms,
            shadow: false,
            newcomers_max: None,
            member: None,
        };
        let decide = Op::Decide(Decide {
            fence: regime.fence(),
            partition: self.key.partition(),
            id: 0,
            mode: Mode::Charge,
            charges: vec![charge],
            remember: None,
        });
        let decided = match node.store.one(decide).await {
            Ok(Reply::Decided(decided)) => decided,
            Err(StoreError::Fenced(_) | StoreError::LookAgain) => return None,
            other => panic!("a decision was answered by {other:?}"),
        };
        if !decided.admitted {
            let rule = regime.rule(&self.policy, self.policy.limits);
            let _full = node.handle.pressure().try_send(Pressure {
                policy: Arc::clone(&self.policy),
                key: self.key.clone(),
                label: rule.label(decided.now),
                limits: self.policy.limits,
                refused: true,
            });
        }
        Some(decided.admitted)
    }

    /// Asks at `region` until `wanted` units are admitted there, and a while longer. Returns how many were.
    pub(crate) async fn exhaust(&self, region: &str, wanted: u64) -> u64 {
        let mut admitted = 0;
        let began = Instant::now();
        while admitted < wanted {
            assert!(
                began.elapsed() < PATIENCE,
                "{admitted} of {wanted} units were admitted in {region}"
            );
            match self.ask(region).await {
                Some(true) => admitted += 1,
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
        let until = Instant::now() + Duration::from_millis(4 * INTERVAL_MS);
        while Instant::now() < until {
            admitted += u64::from(self.ask(region).await == Some(true));
            sleep(Duration::from_millis(5)).await;
        }
        admitted
    }

    /// The usage of the present period that `region` knows of, over all regions.
    pub(crate) async fn usage(&self, region: &str) -> Counts {
        let node = self.node(region);
        let regime = node.handle.regime().load_full().unwrap();
        let now = (node.clock)();
        let usage = Op::Usage {
            fence: regime.fence(),
            partition: self.key.partition(),
            key: self.key.clone(),
            starts: vec![StoreMs(now.0 - now.0 % DAY_MS)],
        };
        let Ok(Reply::Usage { periods, .. }) = node.store.one(usage).await else {
            return Counts::default();
        };
        let slots = periods.into_iter().flatten();
        slots.fold(Counts::default(), |sum, (_, counts)| sum.plus(counts))
    }

    pub(crate) async fn wait_for_first_lives(&self) {
        for node in self.nodes.values() {
            eventually("every life is a first one", async || {
                node.handle.status().standing == "first"
            })
            .await;
        }
    }

    pub(crate) async fn shut_down(self) {
        for node in self.nodes.values() {
            node.shutdown.cancel();
        }
        for node in self.nodes.into_values() {
            node.driver.await.unwrap();
            node.server.await.unwrap();
        }
    }
}

impl Node {
    fn start(config: Config, peers: Peers, listener: TcpListener) -> Self {
        let began = Instant::now();
        // No two clocks agree.
        let ahead = config.seed * 1_234;
        let clock: Arc<dyn Fn() -> StoreMs + Send + Sync> = Arc::new(move || {
            let elapsed = u64::try_from(began.elapsed().as_millis()).unwrap();
            StoreMs(NOON_MS + ahead + elapsed)
        });
        let store = MemoryStore::new(Memory::new(config.region.as_str()), {
            let clock = Arc::clone(&clock);
            move || clock()
        });
        let shutdown = CancellationToken::new();
        let (handle, driver) = spawn(Setup {
            machine: config,
            store: store.clone(),
            peers,
            used_up: Arc::new(|_, _, _| {}),
            shutdown: shutdown.clone(),
        });
        let service = handle.service(Arc::new(NoShares));
        let serving = serve(listener, service, shutdown.clone());
        let server = tokio::spawn(async move { serving.await.unwrap() });
        Self {
            store,
            handle,
            driver,
            server,
            shutdown,
            clock,
        }
    }

    pub(crate) fn reaches(&self, peer: &str) -> bool {
        self.handle.status().peers[&Region::new(peer)].reachable
    }
}

/// Waits for a condition, for as long as anything that works could take.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
