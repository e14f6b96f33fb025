//! Runs a node's machine on a real store, a real network and a real clock.
//!
//! One task owns the machine and carries out its effects; whatever takes time is a task of its own, whose outcome comes
//! back as an input. The driver decides nothing: what it drops under pressure is what a network might lose.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::keeper::Wish;
use crate::machine::{self, Effect, Input, JobId, Machine, Pressure, ReplyToken};
use crate::message::Message;
use crate::parcel;
use crate::status::{Facts, SyncStatus, Watch};
use crate::track::Mono;
use crate::transport::client::Sent;
use crate::transport::{ExchangeError, Incoming, Peers, ShareSource, SyncService};
use apportion_core::{Key, Regime, Region};
use apportion_store::{Op, Reply, Store, StoreError};
use arc_swap::{ArcSwap, ArcSwapOption};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Messages from peers that wait for the driver; one more is refused.
const INCOMING_MAX: usize = 64;
/// Messages in the machine's hands that wait for an answer; one more is dropped.
const PENDING_MAX: usize = 256;
/// Keys under pressure that wait for the driver; what is beyond comes again with the next refusal.
const PRESSURE_MAX: usize = 1_024;
/// What operators want, and the driver hasn't heard yet.
const WISHES_MAX: usize = 8;
/// Calls to one peer at a time. A message beyond them waits, and later ones are folded into it.
const IN_FLIGHT_MAX: usize = 4;
/// A store bounds its own calls; this is for one that doesn't.
const STORE_DEADLINE: Duration = Duration::from_secs(15);
/// The driver looks about at least so often.
const IDLE_MS: Mono = 1_000;

/// Told that, as far as is known, no region has any rights of a key's window left, or that some has again.
pub type OnUsedUp = Arc<dyn Fn(&Key, u64, bool) + Send + Sync>;

/// What a driver is made of.
pub struct Setup<S> {
    pub machine: machine::Config,
    pub store: S,
    pub peers: Peers,
    pub used_up: OnUsedUp,
    pub shutdown: CancellationToken,
}

/// The rest of the node's hold on its driver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    region: Region,
    peer_regions: Arc<[Region]>,
    clock: Clock,
    regime: Arc<ArcSwapOption<Regime>>,
    facts: Arc<ArcSwap<Facts>>,
    incoming: mpsc::Sender<Incoming>,
    pressure: mpsc::Sender<Pressure>,
    look_again: Arc<Notify>,
    wishes: mpsc::Sender<Wish>,
    retiring: mpsc::Sender<Region>,
}

struct Driver<S> {
    machine: Machine,
    store: S,
    peers: Peers,
    used_up: OnUsedUp,
    clock: Clock,
    regime: Arc<ArcSwapOption<Regime>>,
    facts: Arc<ArcSwap<Facts>>,
    watch: Watch,
    tasks: JoinSet<Done>,
    lanes: BTreeMap<Region, Lane>,
    pending: HashMap<ReplyToken, oneshot::Sender<Box<Message>>>,
    next_token: ReplyToken,
}

/// The calls to one peer.
#[derive(Debug, Default)]
struct Lane {
    in_flight: usize,
    waiting: Option<Box<Message>>,
    /// How the last call ended, so that trouble is logged once.
    trouble: Option<ExchangeError>,
}

/// The outcome of what took time.
enum Done {
    Store {
        job: JobId,
        replies: Vec<Result<Reply, StoreError>>,
    },
    Sent {
        to: Region,
        sent: Sent,
    },
}

/// Starts the driver. Its task ends soon after `shutdown`, and panics if the store does; a node whose sync has ended must
/// not go on serving for long, and can't do harm: nobody vouches for its store's clock any more.
pub fn spawn<S: Store + Clone>(setup: Setup<S>) -> (Handle, JoinHandle<()>) {
    let Setup {
        machine: config,
        store,
        peers,
        used_up,
        shutdown,
    } = setup;
    let clock = Clock::new();
    let (region, peer_regions) = (config.region.clone(), config.peers.clone());
    let interval_ms = config.interval_ms;
    let machine = Machine::new(config, clock.now());
    let watch = Watch::new(region.clone(), interval_ms, &machine, clock);
    let (incoming_sender, incoming) = mpsc::channel(INCOMING_MAX);
    let (pressure_sender, pressure) = mpsc::channel(PRESSURE_MAX);
    let (wish_sender, wishes) = mpsc::channel(WISHES_MAX);
    let (retiring_sender, retiring) = mpsc::channel(1);
    let handle = Handle {
        region,
        peer_regions: peer_regions.into(),
        clock,
        regime: Arc::new(ArcSwapOption::empty()),
        facts: Arc::new(ArcSwap::from_pointee(watch.facts().clone())),
        incoming: incoming_sender,
        pressure: pressure_sender,
        look_again: Arc::new(Notify::new()),
        wishes: wish_sender,
        retiring: retiring_sender,
    };
    let driver = Driver {
        machine,
        store,
        peers,
        used_up,
        clock,
        regime: Arc::clone(&handle.regime),
        facts: Arc::clone(&handle.facts),
        watch,
        tasks: JoinSet::new(),
        lanes: BTreeMap::new(),
        pending: HashMap::new(),
        next_token: 0,
    };
    let look_again = Arc::clone(&handle.look_again);
    let running = driver.run(incoming, pressure, wishes, retiring, look_again, shutdown);
    (handle, tokio::spawn(running))
}

// === impl Handle ===

impl Handle {
    /// What the node may go by; replaced whenever it changes. `None` before the first contact with the store.
    pub fn regime(&self) -> Arc<ArcSwapOption<Regime>> {
        Arc::clone(&self.regime)
    }

    pub fn status(&self) -> SyncStatus {
        self.facts.load().at(self.clock.now())
    }

    /// The operator's word that a region's store is off for good. It is done once the status says so.
    pub async fn retire(&self, region: Region) {
        // A driver that is gone leaves it undone.
        let _gone = self.retiring.send(region).await;
    }

    /// Where the engine tells of keys under pressure: `try_send`, and forget what has no room.
    pub fn pressure(&self) -> mpsc::Sender<Pressure> {
        self.pressure.clone()
    }

    /// To be notified when the store answers that it isn't the one that was expected.
    pub fn look_again(&self) -> Arc<Notify> {
        Arc::clone(&self.look_again)
    }

    pub(crate) fn has_peers(&self) -> bool {
        !self.peer_regions.is_empty()
    }

    /// Lets the driver know what an operator wants. `false`: it has ended, or has too much of that.
    pub(crate) fn wish(&self, wish: Wish) -> bool {
        self.wishes.try_send(wish).is_ok()
    }

    /// What other regions call; to be served with [`crate::transport::serve`].
    pub fn service(&self, shares: Arc<dyn ShareSource>) -> SyncService {
        SyncService::new(
            self.region.clone(),
            self.peer_regions.iter().cloned().collect(),
            self.incoming.clone(),
            shares,
        )
    }
}

// === impl Driver ===

impl<S: Store + Clone> Driver<S> {
    async fn run(
        mut self,
        mut incoming: mpsc::Receiver<Incoming>,
        mut pressure: mpsc::Receiver<Pressure>,
        mut wishes: mpsc::Receiver<Wish>,
        mut retiring: mpsc::Receiver<Region>,
        look_again: Arc<Notify>,
        shutdown: CancellationToken,
    ) {
        loop {
            let now = self.clock.now();
            let wait = self.machine.wake_at().saturating_sub(now).clamp(1, IDLE_MS);
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => self.done(done),
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        Err(error) => debug!(%error, "a task of the sync driver was cancelled"),
                    },
                },
                Some(incoming) = incoming.recv() => self.incoming(incoming),
                Some(pressure) = pressure.recv() => self.step(Input::Pressure(pressure)),
                Some(wish) = wishes.recv() => self.step(Input::Wish(wish)),
                Some(region) = retiring.recv() => self.step(Input::Retire(region)),
                () = look_again.notified() => self.step(Input::LookAgain),
                () = sleep(Duration::from_millis(wait)) => self.wake(),
            }
        }
    }

    fn step(&mut self, input: Input) {
        // What peers are heard to say, and all that the keeper finds out, changes what is known of them.
        let tells = matches!(
            input,
            Input::Wake | Input::Message { .. } | Input::Replies { .. }
        );
        let now = self.clock.now();
        let effects = self.machine.step(now, input);
        let tells = tells || !effects.is_empty();
        for effect in effects {
            self.carry_out(effect);
        }
        if tells {
            self.watch.look(&self.machine, now);
            self.facts.store(Arc::new(self.watch.facts().clone()));
        }
    }

    fn wake(&mut self) {
        self.pending.retain(|_, answer| !answer.is_closed());
        self.step(Input::Wake);
    }

    fn incoming(&mut self, incoming: Incoming) {
        if self.pending.len() >= PENDING_MAX {
            self.pending.retain(|_, answer| !answer.is_closed());
        }
        if self.pending.len() >= PENDING_MAX {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        self.pending.insert(token, incoming.answer);
        self.step(Input::Message {
            message: incoming.message,
            token: Some(token),
        });
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Store { job, ops } => {
                let store = self.store.clone();
                self.tasks.spawn(async move {
                    let replies = call(&store, ops).await;
                    Done::Store { job, replies }
                });
            }
            Effect::Send { to, message } => self.send(to, message),
            Effect::Answer { token, message } => {
                if let Some(answer) = self.pending.remove(&token) {
                    // Whoever waited for it may have gone.
                    let _gone = answer.send(message);
                }
            }
            Effect::Refuse { token } => {
                // Dropping the sender tells the peer that there is no answer.
                self.pending.remove(&token);
            }
            Effect::Regime(regime) => {
                if let Some(regime) = &regime {
                    self.watch.regime(regime);
                }
                self.regime.store(regime.map(Arc::from));
            }
            Effect::UsedUp {
                key,
                label,
                used_up,
            } => (self.used_up)(&key, label, used_up),
            Effect::StoreOk(ok) => self.watch.store(ok),
        }
    }

    fn send(&mut self, to: Region, message: Box<Message>) {
        let lane = self.lanes.entry(to.clone()).or_default();
        if lane.in_flight >= IN_FLIGHT_MAX {
            lane.waiting = Some(match lane.waiting.take() {
                Some(older) => Box::new(parcel::fold(*older, *message)),
                None => message,
            });
            return;
        }
        lane.in_flight += 1;
        let peers = self.peers.clone();
        self.tasks.spawn(async move {
            let sent = peers.send(&to, *message).await;
            Done::Sent { to, sent }
        });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Store { job, replies } => self.step(Input::Replies { job, replies }),
            Done::Sent { to, sent } => {
                let lane = self.lanes.entry(to.clone()).or_default();
                lane.in_flight -= 1;
                lane.note(&to, sent.error);
                if let Some(message) = lane.waiting.take() {
                    self.send(to, message);
                }
                for answer in sent.answers {
                    self.step(Input::Message {
                        message: Box::new(answer),
                        token: None,
                    });
                }
            }
        }
    }
}

impl<S> fmt::Debug for Setup<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("machine", &self.machine)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

// === impl Lane ===

impl Lane {
    /// A peer that is silent is reported as such, once, by the watch; one that refuses is reported here, once.
    fn note(&mut self, peer: &Region, error: Option<ExchangeError>) {
        let known = |error: &ExchangeError| {
            self.trouble
                .as_ref()
                .is_some_and(|before| before.is_like(error))
        };
        match &error {
            Some(error) if error.needs_people() && !known(error) => {
                warn!(%peer, %error, "messages to the peer don't get through");
            }
            Some(error) => debug!(%peer, %error, "a message to the peer has no answer"),
            None => {}
        }
        self.trouble = error;
    }
}

async fn call<S: Store>(store: &S, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
    let count = ops.len();
    let late = |_| vec![Err(StoreError::Unknown("no reply in time".into())); count];
    timeout(STORE_DEADLINE, store.call(ops))
        .await
        .unwrap_or_else(late)
}
