//! A region's store, of either kind, opened only if it may hold budgets.

use crate::config::StoreUrl;
use apportion_core::StoreMs;
use apportion_store::RedisStore;
use apportion_store::{Memory, MemoryStore, Op, Reply, Store, StoreError};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::error;

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
    /// When it was last found fit.
    fit: Arc<Mutex<Option<Instant>>>,
    told: Arc<AtomicBool>,
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
                fit: Arc::default(),
                told: Arc::default(),
            })),
        }
    }
}

impl AnyStore {
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
        self.store.call(ops).await
    }

    fn was_fit_lately(&self) -> bool {
        let fit = *self.fit.lock().expect("nothing panics while it is held");
        fit.is_some_and(|at| at.elapsed() < INSPECT_EVERY)
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let found = self.store.inspect().await?;
        let major: Option<u32> = found.version.split('.').next().and_then(|v| v.parse().ok());
        let unfit = if major.is_none_or(|major| major < REDIS_MAJOR_MIN) {
            Some(format!(
                "it is version {}; expected {REDIS_MAJOR_MIN} or later",
                found.version
            ))
        } else if found.role != "master" {
            Some(format!("its role is {}; expected master", found.role))
        } else if found.connected_replicas > 0 {
            Some(format!(
                "it has {} replicas, and one that takes over may have missed writes: replicas are not supported yet",
                found.connected_replicas
            ))
        } else {
            match found.maxmemory_policy.as_deref() {
                Some("noeviction") => None,
                Some(policy) => Some(format!(
                    "its maxmemory-policy is {policy}, which may evict spent budget; expected noeviction"
                )),
                None => Some("it doesn't say its maxmemory-policy; expected noeviction".into()),
            }
        };
        match unfit {
            None => {
                *self.fit.lock().expect("nothing panics while it is held") = Some(Instant::now());
                self.told.store(false, Ordering::Relaxed);
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
