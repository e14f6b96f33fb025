//! A region's store, of either kind, opened only if it may hold budgets.

use crate::config::{Replicas, StoreUrl};
use apportion_core::StoreMs;
use apportion_core::fence::overlap_ms;
use apportion_store::{Inspection, RedisStore, Replication};
use apportion_store::{Memory, MemoryStore, Op, Reply, Store, StoreError};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{error, warn};

/// Begins the names of all keys.
const PREFIX: &str = "ap";
/// The oldest Redis whose scripts and replies are as expected.
const REDIS_MAJOR_MIN: u32 = 7;

/// How often a Redis is asked whether it still may hold budgets.
const INSPECT_EVERY: Duration = Duration::from_secs(10);

/// Cheap to clone.
#[derive(Clone)]
pub enum AnyStore {
    Memory(MemoryStore),
    Redis(Guarded),
}

/// A Redis that is asked what it is before it is used.
#[derive(Clone, Debug)]
pub struct Guarded {
    store: RedisStore,
    shown: String,
    replicas: Replicas,
    /// When it was last found fit.
    fit: Arc<Mutex<Option<Instant>>>,
    told: Arc<AtomicBool>,
    advised: Arc<AtomicBool>,
}

impl AnyStore {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Where the URL can't be one of a store.
    pub fn open(url: &StoreUrl, timeout: Duration) -> Result<Self, StoreError> {
        match url {
            StoreUrl::Memory => {
                let fingerprint = format!("memory-{:016x}", rand::random::<u64>());
                Ok(Self::Memory(MemoryStore::new(
                    Memory::new(&fingerprint),
                    wall_clock,
                )))
            }
            StoreUrl::Redis(text) => Ok(Self::Redis(Guarded {
                store: RedisStore::new(text, timeout, PREFIX)?,
                shown: format!("{url:?}"),
                replicas: Replicas::default(),
                fit: Arc::default(),
                told: Arc::default(),
                advised: Arc::default(),
            })),
        }
    }
}

impl AnyStore {
    /// The same store, with as many replicas as are expected of it.
    #[must_use]
    pub fn with_replicas(self, replicas: Replicas) -> Self {
        match self {
            Self::Memory(_) => self,
            Self::Redis(guarded) => Self::Redis(Guarded {
                replicas,
                ..guarded
            }),
        }
    }

    /// The same store, by which each decision goes in a call of its own. For benchmarks.
    #[must_use]
    pub fn unbatched(self) -> Self {
        match self {
            Self::Memory(_) => self,
            Self::Redis(guarded) => Self::Redis(Guarded {
                store: guarded.store.unbatched(),
                ..guarded
            }),
        }
    }
}

impl Store for AnyStore {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        match self {
            Self::Memory(store) => store.call(ops).await,
            Self::Redis(guarded) => guarded.call(ops).await,
        }
    }
}

impl Guarded {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        // Nothing goes on without a look, so that is where to ask.
        let looks = ops.contains(&Op::Look);
        if looks
            && !self.was_fit_lately()
            && let Err(error) = self.inspect().await
        {
            return ops.iter().map(|_| Err(error.clone())).collect();
        }
        let mut replies = self.store.call(ops).await;
        for reply in &mut replies {
            if let Ok(Reply::Looked(looked)) = reply {
                match self.replicas.unfit_now(&looked.replication) {
                    Some(reason) => *reply = Err(StoreError::Rejected(reason)),
                    None => looked.overlap_ms = self.replicas.overlap_ms(),
                }
            }
        }
        replies
    }

    fn was_fit_lately(&self) -> bool {
        let fit = *self.fit.lock().expect("nothing panics while it is held");
        fit.is_some_and(|at| at.elapsed() < INSPECT_EVERY)
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let found = self.store.inspect().await?;
        let unfit = unfit(&found, &self.replicas);
        match unfit {
            None => {
                *self.fit.lock().expect("nothing panics while it is held") = Some(Instant::now());
                self.told.store(false, Ordering::Relaxed);
                let forgets = found.repl_backlog_ttl_s.is_some_and(|seconds| seconds > 0);
                if self.replicas.count > 0 && forgets && !self.advised.swap(true, Ordering::Relaxed)
                {
                    warn!(
                        store = %self.shown,
                        "its repl-backlog-ttl isn't 0: without replicas for so long, it forgets whether it was ever \
                         one itself; 0 is better"
                    );
                }
                Ok(())
            }
            Some(reason) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    error!(store = %self.shown, %reason, "this Redis can't hold budgets; nothing new is started on it");
                }
                Err(StoreError::Rejected(reason))
            }
        }
    }
}

/// Why this Redis can't hold budgets.
fn unfit(found: &Inspection, replicas: &Replicas) -> Option<String> {
    let major: Option<u32> = found.version.split('.').next().and_then(|v| v.parse().ok());
    if major.is_none_or(|major| major < REDIS_MAJOR_MIN) {
        return Some(format!(
            "it is version {}; expected {REDIS_MAJOR_MIN} or later",
            found.version
        ));
    }
    if found.role != "master" {
        return Some(format!("its role is {}; expected master", found.role));
    }
    let stated = &replicas.stated;
    let policy = found.maxmemory_policy.as_ref();
    match policy
        .or(stated.maxmemory_policy.as_ref())
        .map(String::as_str)
    {
        Some("noeviction") => {}
        Some(policy) => {
            return Some(format!(
                "its maxmemory-policy is {policy}, which may evict spent budget; expected noeviction"
            ));
        }
        None => {
            return Some(
                "it doesn't say its maxmemory-policy, and store.stated doesn't either; expected noeviction".into(),
            );
        }
    }
    replicas.unfit(found)
}

// === impl Replicas ===

impl Replicas {
    /// For how long an old master and a replica that took over may both decide; 0: there are no replicas.
    fn overlap_ms(&self) -> u64 {
        match self.count {
            0 => 0,
            _ => overlap_ms(whole_ms(self.max_lag)),
        }
    }

    /// Whether a master that is cut off from its replicas stops.
    fn unfit(&self, found: &Inspection) -> Option<String> {
        let count = self.count;
        if found.connected_replicas > count {
            return Some(self.too_many(found.connected_replicas));
        }
        if count == 0 {
            return None;
        }
        let least = found
            .min_replicas_to_write
            .or(self.stated.min_replicas_to_write);
        match least {
            Some(least) if least == count => {}
            Some(least) => {
                return Some(format!(
                    "its min-replicas-to-write is {least}; expected {count}, so that it stops when a replica takes over"
                ));
            }
            None => {
                return Some(format!(
                    "it doesn't say its min-replicas-to-write, and store.stated doesn't either; expected {count}"
                ));
            }
        }
        let stated = self.stated.min_replicas_max_lag.map(|lag| lag.as_secs());
        let most = self.max_lag.as_secs();
        match found.min_replicas_max_lag_s.or(stated) {
            Some(lag) if (1..=most).contains(&lag) => None,
            Some(lag) => Some(format!(
                "its min-replicas-max-lag is {lag}; expected 1 to {most}, as store.replica_max_lag says"
            )),
            None => Some(format!(
                "it doesn't say its min-replicas-max-lag, and store.stated doesn't either; expected 1 to {most}"
            )),
        }
    }

    /// What is in the way of going on just now.
    fn unfit_now(&self, replication: &Replication) -> Option<String> {
        if !replication.is_master {
            return Some("its role is slave; expected master".into());
        }
        if replication.replicas > self.count {
            return Some(self.too_many(replication.replicas));
        }
        let within = |lag_ms: &&u64| **lag_ms <= whole_ms(self.max_lag);
        let good = replication.lags_ms.iter().filter(within).count();
        (good < self.count as usize).then(|| {
            format!(
                "{good} of its replicas are up to date; expected {}",
                self.count
            )
        })
    }

    fn too_many(&self, connected: u32) -> String {
        format!(
            "it has {connected} replicas, and one that takes over may have missed writes; expected {}, as \
             store.replicas says",
            self.count
        )
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory:"),
            Self::Redis(guarded) => f.write_str(&guarded.shown),
        }
    }
}

/// The embedded store's clock: this machine's, as a Redis would have it.
#[allow(clippy::disallowed_methods)]
fn wall_clock() -> StoreMs {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    StoreMs(now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }))
}

#[cfg(test)]
mod tests;
