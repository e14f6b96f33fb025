//! One running node of one region, as its faces (HTTP, gRPC) see it.

use crate::RunError;
use crate::config::OnEmpty;
use crate::store::AnyStore;
use crate::telling::Telling;
use crate::usage_view::merge_periods;
use apportion_core::allotment::Timing;
use apportion_core::lives;
use apportion_core::rollout::{REVISIONS_MAX, Refusal};
use apportion_core::usage::{RETENTION_MS, period_start};
use apportion_core::{
    Actor, Algorithm, Epoch, Key, Life, Limits, Partition, Policy, PolicySet, Regime, Region,
    StoreMs,
};
use apportion_engine::{CheckError, CheckRequest, Decision, DeniedCache, Engine, Outlook, Shared};
use apportion_store::{MeterId, Op, Reply, Store};
use apportion_sync::transport::{
    self, BoxFuture, Options, Peers, Share, ShareError, ShareQuery, ShareSource,
};
use apportion_sync::{
    CloseError, ClosingStatus, Handle, OpenError, Opened, Pressure, RolloutView, Setup, share_of,
};
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::error;

pub use apportion_core::usage::Counts;

/// Periods of one key in one answer.
const PERIODS_MAX: u64 = 1_000;
/// Feed entries of one partition that are looked through for keys.
const LISTED_MAX: usize = 10_000;
/// How long a region may take to say what its part of a budget is.
const SHARES_WITHIN: Duration = Duration::from_secs(1);
/// How often the store is told what the node refused by itself.
const FLUSH: Duration = Duration::from_secs(1);
/// Keys under pressure on their way from the engine to the sync side.
const PRESSURE_MAX: usize = 1_024;

/// One node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    policies: Arc<PolicySet>,
    region: Region,
    store: AnyStore,
    engine: Engine<AnyStore>,
    sync: Handle,
    regime: Arc<arc_swap::ArcSwapOption<Regime>>,
    peers: Peers,
}

/// What a node is made of.
#[derive(Debug)]
pub struct Parts {
    pub region: Region,
    pub policies: Arc<PolicySet>,
    pub store: AnyStore,
    pub on_empty: OnEmpty,
    /// The other regions and where they listen.
    pub peers: Vec<(Region, String)>,
    pub interval: Duration,
    pub loan_term: Duration,
    pub one_way_delay: Duration,
}

/// One accounting period of one key, merged over all actors known here.
#[derive(Debug, Clone)]
pub struct PeriodUsage {
    pub start: StoreMs,
    pub end: StoreMs,
    pub total: Counts,
    /// The slots of a region's lives, added up; `through` is the region's clock up to which they are known here.
    pub by_region: BTreeMap<Region, (Counts, StoreMs)>,
    /// The period is over, every region has told all of it, and nothing is in doubt.
    pub complete: bool,
    /// The admitted units lie between these.
    pub low: u64,
    pub high: u64,
}

/// One region's part of a key's budget, in units of the limit.
#[derive(Debug, Clone, Default)]
pub struct RegionShare {
    pub base: f64,
    pub lent: f64,
    pub borrowed: f64,
    pub given: u64,
    pub received: u64,
    pub in_force: f64,
    pub used: f64,
    /// The region's store clock at the reading; `None`: it could not be asked, and only `base` is known.
    pub as_of: Option<StoreMs>,
}

#[derive(Debug, Clone)]
pub struct Status {
    pub region: Region,
    /// `None` before the first contact with the store.
    pub life: Option<Life>,
    pub epoch: Epoch,
    /// In words: "first", "asking", "later".
    pub standing: &'static str,
    pub store_ok: bool,
    /// The region is closed, and how far that is.
    pub closed: Option<ClosingStatus>,
    pub peers: BTreeMap<Region, PeerStatus>,
    pub rollout: RolloutView,
}

#[derive(Debug, Clone)]
pub struct PeerStatus {
    pub reachable: bool,
    /// Milliseconds since the last message was heard from it; `None`: never.
    pub lag_ms: Option<u64>,
    pub actor: Option<Actor>,
    /// The newest revision that it goes by.
    pub revision: Option<u64>,
    /// Its policies aren't ours, so nothing is traded with it.
    pub policies_differ: bool,
    /// It has other policies under our revision.
    pub conflicts: bool,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("the store is out of reach: {0}")]
    StoreUnavailable(String),
}

impl Node {
    /// Starts a node: its sync side, and the service for other regions on `sync_listener`. What runs ends soon after
    /// `shutdown`.
    ///
    /// # Errors
    /// Where a peer's address can't be used.
    pub fn start(
        parts: Parts,
        sync_listener: TcpListener,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Vec<JoinHandle<()>>), RunError> {
        let Parts {
            region,
            policies,
            store,
            on_empty,
            peers,
            interval,
            loan_term,
            one_way_delay,
        } = parts;
        let interval_ms = whole_ms(interval);
        let names = peers.iter().map(|(region, _)| region.clone()).collect();
        let peers = Peers::new(peers, Options { one_way_delay })
            .map_err(|error| RunError::Configuration(error.to_string()))?;
        let outlook = Arc::new(Outlook::default());
        let used_up = Arc::clone(&outlook);
        let machine = apportion_sync::Config {
            region: region.clone(),
            peers: names,
            policies: Arc::clone(&policies),
            interval_ms,
            timing: Timing {
                term_ms: whole_ms(loan_term),
            },
            on_empty: match on_empty {
                OnEmpty::Ask => lives::OnEmpty::Ask,
                OnEmpty::Lost => lives::OnEmpty::Lost,
                OnEmpty::New => lives::OnEmpty::New,
                OnEmpty::NewUntil(moment) => lives::OnEmpty::NewUntil(moment),
            },
            seed: rand::random(),
        };
        let denied = Arc::new(DeniedCache::default());
        let (sync, driver) = apportion_sync::spawn(Setup {
            machine,
            store: Telling {
                region: region.clone(),
                store: store.clone(),
                denied: Arc::clone(&denied),
            },
            peers: peers.clone(),
            used_up: Arc::new(move |key: &Key, label, gone| {
                used_up.set_exhausted(key, label, gone)
            }),
            shutdown: shutdown.clone(),
        });
        let (pressure, pressed) = mpsc::channel(PRESSURE_MAX);
        let regime = sync.regime();
        let shared = Shared {
            policies: Arc::new(ArcSwap::from(Arc::clone(&policies))),
            regime: Arc::clone(&regime),
            outlook,
            denied,
            look_again: sync.look_again(),
            pressure,
        };
        let engine = Engine::new(region.clone(), Arc::new(store.clone()), interval_ms, shared);
        let forward = tokio::spawn(forward(pressed, sync.pressure(), shutdown.clone()));
        let flushed = shutdown.clone();
        let node = Self(Arc::new(Inner {
            policies,
            region,
            store,
            engine,
            sync,
            regime,
            peers,
        }));
        let flush = tokio::spawn(flush_denied(node.clone(), flushed));
        let service = node.0.sync.service(Arc::new(node.clone()));
        let stop = shutdown.clone();
        let serving = tokio::spawn(async move {
            if let Err(error) = transport::serve(sync_listener, service, stop).await {
                error!(%error, "the sync port can't be served any more");
            }
        });
        Ok((node, vec![driver, forward, flush, serving]))
    }

    pub fn region(&self) -> &Region {
        &self.0.region
    }

    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.0.policies
    }

    /// Asks whether a request may pass. Where the caller goes away midway, what was charged stays charged.
    ///
    /// # Errors
    /// Where the request can't be understood, or a store that it needs is out of reach.
    pub async fn check(&self, request: CheckRequest) -> Result<Decision, CheckError> {
        self.0.engine.check(request).await
    }

    /// The periods of `key` that begin in `[from, to)`, oldest first, at most the last 1,000; empty where none was
    /// counted.
    ///
    /// # Errors
    /// Where the store is out of reach.
    pub async fn usage(
        &self,
        policy: &Policy,
        key: &Key,
        from: Option<StoreMs>,
        to: Option<StoreMs>,
    ) -> Result<Vec<PeriodUsage>, ReadError> {
        let Some(period_ms) = policy.usage_ms else {
            return Ok(Vec::new());
        };
        let regime = self.regime()?;
        let now = self.now().await?;
        let oldest = now.minus(RETENTION_MS + period_ms);
        let to = to.unwrap_or(StoreMs::MAX).min(now.plus(period_ms));
        let from = from
            .unwrap_or(oldest)
            .max(oldest)
            .max(to.minus(PERIODS_MAX * period_ms));
        let first = period_start(from.plus(period_ms - 1), period_ms);
        let count = to.since(first).div_ceil(period_ms).min(PERIODS_MAX);
        let starts: Vec<StoreMs> = (0..count).map(|i| first.plus(i * period_ms)).collect();
        let ops = vec![
            Op::Usage {
                fence: regime.fence(),
                partition: key.partition(),
                key: key.clone(),
                starts: starts.clone(),
            },
            Op::Marks {
                life: regime.state.life,
            },
        ];
        let mut replies = self.0.store.call(ops).await.into_iter();
        let (Some(Ok(Reply::Usage { now, periods })), Some(Ok(Reply::Marks(marks)))) =
            (replies.next(), replies.next())
        else {
            return Err(ReadError::StoreUnavailable(
                "it didn't say what was used".into(),
            ));
        };
        Ok(merge_periods(
            policy,
            period_ms,
            &self.0.policies.regions,
            &regime.state,
            now,
            &marks,
            starts,
            periods,
        ))
    }

    /// Every key of `policy` with usage on record here, in no particular order, at most `limit` keys.
    ///
    /// # Errors
    /// Where the store is out of reach.
    pub async fn usage_keys(&self, policy: &Policy, limit: usize) -> Result<Vec<Key>, ReadError> {
        let fence = self.regime()?.fence();
        let id = policy.id();
        // A reader that never acknowledges anything is shown everything.
        let feed = |partition| Op::Feed {
            fence,
            partition,
            reader: String::new(),
            limit: LISTED_MAX,
        };
        let ops = (0..=u8::MAX).map(Partition).map(feed).collect();
        let mut keys = BTreeSet::new();
        for reply in self.0.store.call(ops).await {
            let page = match reply {
                Ok(Reply::Feed(page)) => page,
                Ok(_) => continue,
                Err(error) => return Err(ReadError::StoreUnavailable(error.to_string())),
            };
            keys.extend(
                page.entries
                    .into_iter()
                    .map(|entry| entry.key)
                    .filter(|key| key.policy_id() == id),
            );
        }
        Ok(keys.into_iter().take(limit).collect())
    }

    /// Ends the slots that a check took; false where there was nothing (any more) to release.
    ///
    /// # Errors
    /// Where the reservation can't be understood, or the store is out of reach.
    pub async fn release(&self, reservation: &str) -> Result<bool, CheckError> {
        self.0.engine.release(reservation).await
    }

    /// The limits that `key` goes by: those of its subject, or the policy's own where they depend on a request's plan.
    pub fn limits_of(&self, policy: &Policy, key: &Key) -> Limits {
        let found = policy.limits_of_key(key, &self.0.policies.subject_hash);
        found.unwrap_or(policy.limits)
    }

    /// Asks every region for its part of `key`; those that can't be reached within a second are reported by base alone.
    ///
    /// # Errors
    /// Where this region's own store is out of reach.
    pub async fn shares(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<BTreeMap<Region, RegionShare>, ReadError> {
        let limits = self.limits_of(policy, key);
        let query = ShareQuery {
            key: key.clone(),
            label: None,
        };
        let own = self
            .share(&query)
            .await
            .map_err(|error| ReadError::StoreUnavailable(error.to_string()))?;
        let asked = self
            .0
            .policies
            .regions
            .iter()
            .filter(|region| **region != self.0.region)
            .map(|region| {
                let (peers, query, region) = (self.0.peers.clone(), query.clone(), region.clone());
                let base = base_of(policy, limits.limit, &region);
                async move {
                    let share = peers.shares(&region, &query, SHARES_WITHIN).await;
                    let only_base = RegionShare {
                        base,
                        ..RegionShare::default()
                    };
                    (region, share.map_or(only_base, RegionShare::from))
                }
            });
        let mut shares: BTreeMap<Region, RegionShare> = futures_util::future::join_all(asked)
            .await
            .into_iter()
            .collect();
        shares.insert(self.0.region.clone(), own.into());
        Ok(shares)
    }

    pub fn status(&self) -> Status {
        let sync = self.0.sync.status();
        let peer = |p: apportion_sync::PeerStatus| PeerStatus {
            reachable: p.reachable,
            lag_ms: p.lag_ms,
            actor: p.actor,
            revision: p.revision,
            policies_differ: p.policies_differ,
            conflicts: p.conflicts,
        };
        Status {
            closed: sync.closed().cloned(),
            region: sync.region,
            life: sync.life,
            epoch: sync.epoch,
            standing: sync.standing,
            store_ok: sync.store_ok,
            rollout: sync.rollout,
            peers: sync
                .peers
                .into_iter()
                .map(|(region, p)| (region, peer(p)))
                .collect(),
        }
    }

    /// Why this node can't ever serve with the files that it was given, once it has seen its store.
    pub fn misfit(&self) -> Option<String> {
        let sync = self.0.sync.status();
        if let Some(other) = sync.foreign {
            return Some(format!(
                "store.url: this store holds the budgets of region {other}; expected one of {}'s own",
                sync.region
            ));
        }
        let ours = self.0.policies.revision;
        match sync.refusal {
            Some(Refusal::Behind(newer)) => {
                return Some(format!(
                    "policies: revision {ours} is behind: a node with revision {newer} has been at this region's \
                     store; expected that file, or a newer one"
                ));
            }
            Some(Refusal::OtherContent) => {
                return Some(format!(
                    "policies: this region's store knows revision {ours} by another content; expected a higher \
                     revision with every change of the file"
                ));
            }
            Some(Refusal::TooMany) => {
                return Some(format!(
                    "policies: {REVISIONS_MAX} revisions before {ours} are under way in this region; expected that the \
                     regions they wait for are back, or retired: {}",
                    sync.rollout
                        .oldest
                        .map_or_else(String::new, |oldest| format!("the oldest is {oldest}"))
                ));
            }
            None => {}
        }
        let policy = sync.redefined.first()?;
        Some(format!(
            "policy {policy}: the store has it on record under the same version with another key, algorithm, period, \
             usage, pool or sensitive attributes; expected a higher version, which starts afresh"
        ))
    }

    pub(crate) fn sync(&self) -> &Handle {
        &self.0.sync
    }

    pub(crate) fn sync_status(&self) -> apportion_sync::SyncStatus {
        self.0.sync.status()
    }

    /// True from the first contact with the store until draining, but for when the region is closed.
    pub fn ready(&self) -> bool {
        let sync = self.0.sync.status();
        sync.life.is_some() && sync.closed().is_none()
    }

    /// Stops the whole region, so that its store can be restarted without loss.
    ///
    /// # Errors
    /// Where it isn't closed, and goes on.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.0.sync.close().await
    }

    /// Lets a closed region go on; `as_lost`: in a new life.
    ///
    /// # Errors
    /// Where it is still closed.
    pub async fn open(&self, as_lost: bool) -> Result<Opened, OpenError> {
        self.0.sync.open(as_lost).await
    }

    fn regime(&self) -> Result<Arc<Regime>, ReadError> {
        let none = || ReadError::StoreUnavailable("it has not been reached yet".into());
        self.0.regime.load_full().ok_or_else(none)
    }

    async fn now(&self) -> Result<StoreMs, ReadError> {
        match self.0.store.one(Op::Look).await {
            Ok(Reply::Looked(looked)) => Ok(looked.now),
            Ok(_) => Err(ReadError::StoreUnavailable(
                "it didn't say what time it is".into(),
            )),
            Err(error) => Err(ReadError::StoreUnavailable(error.to_string())),
        }
    }

    async fn share(&self, query: &ShareQuery) -> Result<Share, ShareError> {
        let unavailable = |why: String| ShareError::StoreUnavailable(why);
        let id = query.key.policy_id();
        let policy = self
            .0
            .policies
            .policies
            .iter()
            .find(|policy| policy.id() == id);
        let policy = policy.ok_or_else(|| ShareError::UnknownPolicy(id.to_owned()))?;
        let regime = self
            .regime()
            .map_err(|error| unavailable(error.to_string()))?;
        let label = match policy.algorithm {
            Algorithm::FixedWindow { period } => {
                let now = self
                    .now()
                    .await
                    .map_err(|error| unavailable(error.to_string()))?;
                Some(query.label.unwrap_or_else(|| period.label(now)))
            }
            _ => None,
        };
        let id = MeterId {
            key: query.key.clone(),
            label,
        };
        let read = Op::Read {
            fence: regime.fence(),
            partition: query.key.partition(),
            ids: vec![id.clone()],
        };
        match self.0.store.one(read).await {
            Ok(Reply::Snapshots { now, snapshots }) => match snapshots.first() {
                Some(snapshot) => Ok(share_of(
                    &regime,
                    policy,
                    &self.0.policies.subject_hash,
                    &id,
                    snapshot,
                    now,
                )),
                None => Err(unavailable("it didn't say".into())),
            },
            Ok(_) => Err(unavailable("it didn't say".into())),
            Err(error) => Err(unavailable(error.to_string())),
        }
    }
}

impl ShareSource for Node {
    fn shares(&self, query: ShareQuery) -> BoxFuture<'_, Result<Share, ShareError>> {
        Box::pin(async move { self.share(&query).await })
    }
}

impl From<Share> for RegionShare {
    fn from(share: Share) -> Self {
        Self {
            base: share.base,
            lent: share.lent,
            borrowed: share.borrowed,
            given: share.given,
            received: share.received,
            in_force: share.in_force,
            used: share.used,
            as_of: Some(share.as_of),
        }
    }
}

/// A region's base share of `limit`, in its units.
fn base_of(policy: &Policy, limit: u64, region: &Region) -> f64 {
    match policy.algorithm {
        Algorithm::FixedWindow { .. } => policy.base_units(limit, region) as f64,
        Algorithm::Concurrency { .. } => limit as f64,
        _ => limit as f64 * policy.base_ppb(region) as f64 / 1e9,
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Tells the store what the node refused without asking it: every second, and all of it at the end.
async fn flush_denied(node: Node, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(FLUSH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        node.0.engine.flush_denied().await;
    }
    node.0.engine.drain_denied().await;
}

/// Carries the engine's word of keys under pressure to the sync side.
async fn forward(
    mut pressed: mpsc::Receiver<apportion_engine::Pressure>,
    sync: mpsc::Sender<Pressure>,
    shutdown: CancellationToken,
) {
    while let Some(Some(p)) = shutdown.run_until_cancelled(pressed.recv()).await {
        let pressure = Pressure {
            policy: p.policy,
            key: p.key,
            label: p.label,
            limits: p.limits,
            refused: p.refused,
        };
        // A hint: what has no room comes again with the next refusal.
        let _full = sync.try_send(pressure);
    }
}
