//! One connection to Redis, made when it is needed and made again when it breaks. Nothing is ever sent twice.

use crate::StoreError;
use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::socket2::TcpKeepalive;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, Pipeline, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after a failed attempt the next one is made: doubling, between these.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// A connection on which nothing was heard for so long, though something was asked, is given up.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Calls that wait to be written; more wait for a place among them, within their own timeout.
const QUEUE_MAX: usize = 1_024;

#[derive(Clone)]
pub(super) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    timeout: Duration,
    began: Instant,
    live: Mutex<Option<Live>>,
    attempts: Arc<tokio::sync::Mutex<Attempts>>,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
    /// When something was last heard, in milliseconds since the link began.
    heard_ms: Arc<AtomicU64>,
}

#[derive(Default)]
struct Attempts {
    failed: Option<Failed>,
}

struct Failed {
    why: String,
    next_at: Instant,
    backoff: Duration,
}

// === impl Link ===

impl Link {
    /// `timeout`: how long an answer may take.
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        // The third version of the protocol tells when the connection ends.
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let tcp = info
            .tcp_settings()
            .clone()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(Duration::from_secs(10)));
        let client = Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))?;
        Ok(Self(Arc::new(Inner {
            client,
            timeout,
            began: Instant::now(),
            live: Mutex::new(None),
            attempts: Arc::default(),
        })))
    }

    /// Sends `pipeline` once. An error says whether it may have been executed; errors of single commands are among
    /// the answers.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let mut live = self.connected().await?;
        let sent = live
            .connection
            .send_packed_commands(pipeline, 0, pipeline.len())
            .await;
        match sent {
            Ok(answers) => {
                live.heard_ms.store(self.0.now_ms(), Ordering::Relaxed);
                if answers.len() != pipeline.len() {
                    self.0.give_up(&live);
                    return Err(StoreError::Unknown("some answers are missing".into()));
                }
                Ok(answers)
            }
            Err(error) => {
                if !error.is_timeout() || self.0.silence(&live) > SILENCE_MAX {
                    self.0.give_up(&live);
                }
                Err(StoreError::Unknown(error.to_string()))
            }
        }
    }

    /// A connection, made within the timeout if there is none.
    async fn connected(&self) -> Result<Live, StoreError> {
        if let Some(live) = self.0.current() {
            return Ok(live);
        }
        tokio::time::timeout(self.0.timeout, self.attempt())
            .await
            .unwrap_or_else(|_| Err(StoreError::NotSent("still connecting".into())))
    }

    /// At most one attempt runs at a time, to its end, whether or not its caller still waits.
    async fn attempt(&self) -> Result<Live, StoreError> {
        let mut attempts = Arc::clone(&self.0.attempts).lock_owned().await;
        if let Some(live) = self.0.current() {
            return Ok(live);
        }
        if let Some(failed) = &attempts.failed
            && Instant::now() < failed.next_at
        {
            return Err(StoreError::NotSent(failed.why.clone()));
        }
        let inner = Arc::clone(&self.0);
        let attempt = tokio::spawn(async move {
            let made = inner.connect().await;
            attempts.note(made.as_ref().err());
            made
        });
        match attempt.await {
            Ok(Ok(live)) => Ok(live),
            Ok(Err(error)) => Err(StoreError::NotSent(error.to_string())),
            Err(error) => Err(StoreError::NotSent(error.to_string())),
        }
    }
}

// === impl Inner ===

impl Inner {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn current(&self) -> Option<Live> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref()?.broken.load(Ordering::Acquire) {
            *live = None;
        }
        live.clone()
    }

    fn silence(&self, live: &Live) -> Duration {
        let heard_ms = live.heard_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(heard_ms))
    }

    /// The next call makes another connection; those that wait on this one still get what comes.
    fn give_up(&self, live: &Live) {
        if !live.broken.swap(true, Ordering::AcqRel) {
            tracing::warn!(server = %self.server(), "the connection to the store is given up");
        }
    }

    fn server(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&broken);
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                flag.store(true, Ordering::Release);
            }
            Ok::<(), ::redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(QUEUE_MAX)
            .set_push_sender(on_push);
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let live = Live {
            connection,
            broken,
            heard_ms: Arc::new(AtomicU64::new(self.now_ms())),
        };
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        tracing::debug!(server = %self.server(), "connected to the store");
        Ok(live)
    }
}

// === impl Attempts ===

impl Attempts {
    fn note(&mut self, error: Option<&RedisError>) {
        self.failed = error.map(|error| {
            let backoff = match &self.failed {
                Some(before) => (before.backoff * 2).min(BACKOFF_MAX),
                None => BACKOFF_MIN,
            };
            Failed {
                why: error.to_string(),
                next_at: Instant::now() + backoff,
                backoff,
            }
        });
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.0.current().is_some();
        f.debug_struct("Link")
            .field("connected", &connected)
            .finish_non_exhaustive()
    }
}
