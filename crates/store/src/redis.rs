//! The store on Redis: meters live there, and decisions are made there, by scripts that are twins of `core`'s meters.
//!
//! What it may not do: send anything twice, or run a script on a server whose fingerprint wasn't looked at. Each
//! fenced operation is one script, atomic in itself. A store that is attached has scripts of its own in the server,
//! whose text carries the life and a nonce: a server that lost them is another process, and has to be looked at.
//!
//! Decisions come in batches: one script call decides the requests of many callers, of many partitions, in order and
//! each by itself. What it is told, what it answers, and meters are msgpack, which Redis reads and writes in C.
//!
//! Redis TIME is the only clock. All keys but the records and the state expire. No policy's name has capital letters,
//! so that a meter's name needs no kind. With the prefix `ap`:
//!
//! | key | value |
//! |---|---|
//! | `ap{s}s` | the region's state: hash of version `v` and bytes `d` |
//! | `ap{s}l` | the lease: who has it |
//! | `ap{s}LIFEm` | marks: hash of actor to moment |
//! | `ap{7f}r` | partition 7f's record: `life epoch revision` |
//! | `ap{7f}LIFEKEY`, `…KEY#LABEL` | a meter: `kind epoch` and its state; with 8 in `kind` limits; with 16 `id units until` of each hold |
//! | | 1, a bucket: `tokens at`; or, where it is small and has nothing else, one number: see `pack` |
//! | | 2, a window: `used` |
//! | | 3, a log: sum, moment of the oldest, moment and units of the newest; the others are in `L` |
//! | | 4, a counter: newest cell, how many counts, and these |
//! | | 5, slots: sum, number, and a moment before which none ends; they are in `S` |
//! | `…LKEY` | a log's entries: list of `at units`, oldest first |
//! | `…SKEY`, `…WKEY` | slots: sorted set of ids by their ends; hash of id to units for those that aren't one |
//! | `…OKEY`, `…KKEY` | meters of the overdraft, and of what is known of everybody's usage |
//! | `…HKEY`, `…HKEY#LABEL` | tallies: hash of actor (`.` is the own) to when it began, its units, and how many they were of late |
//! | `…PKEY` | a pool: `tokens`, and `name weight credit seen` of each member |
//! | `…TKEY`, `…TKEY#LABEL` | traded: hash of version `v`, terms `s`, allotment `a`, attempts `n` |
//! | `ap{7f}LIFEX` | names of the traded, in their order |
//! | `…UKEY@PERIOD` | usage: hash of actor (`.` is the own) to `admitted refunded refused` |
//! | `ap{7f}LIFEF`, `…Q`, `…C` | changed slots and tallies by the number of the change; the last number; what each reader acknowledged |
//! | `ap{pp}LIFEIID` | an admitted request: 16 bytes of its content; then when it was, what is kept beside it, and its answers |
//! | `ap{pp}LIFENPOLICY@V#SECOND` | how many keys of a policy were new in this second |
//!
//! For the last two `pp` is the partition of the request's name and of the policy's. Scripts that touch several
//! partitions are for one Redis: on a cluster each partition's requests would be a call of their own, and these two
//! would be in the subject's partition.

mod decode;
mod encode;
mod link;
mod pack;
mod script;
mod text;

use crate::batch::{self, Batcher, Shape, Unanswered};
use crate::op::*;
use crate::{Store, StoreError};
use ::redis::{Pipeline, Value};
use apportion_core::Life;
use encode::{Batch, Encoder, Names};
use link::Link;
use script::{Attachment, Clock};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What doesn't decide requests may take at least so long.
const BULK_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Longest prefix of key names, bytes.
const PREFIX_MAX: usize = 64;

/// Most decisions in one script call, during which the server does nothing else.
const BATCH_MAX: usize = 64;

/// Script calls with decisions that are on their way at a time; beyond that, decisions wait and go together.
const CALLS_MAX: usize = 2;
/// Decisions that wait; one more isn't sent.
const WAITING_MAX: usize = 8_192;

/// A region's store on one Redis. Cheap to clone; clones share connections and the attachment.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>, Gathers);

/// Whether decisions that come at the same time ride in one script call.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Gathers(bool);

struct Inner {
    names: Names,
    clock: Clock,
    /// For decisions alone, so that they never wait behind bulk work.
    decisions: Link,
    bulk: Link,
    gathered: Batcher<Op, Result<Reply, StoreError>>,
    attached: Mutex<Option<Arc<Attachment>>>,
}

/// What has been said of some operations, and is waiting for answers.
enum Part<'a> {
    One(&'a Op, Result<(), StoreError>),
    /// Decisions in one command.
    Decides {
        decides: Vec<&'a Decide>,
        sent: Vec<Result<(), StoreError>>,
        /// None where none of them could be sent.
        answers: usize,
    },
}

/// Whether the server said that it doesn't know the scripts.
#[derive(PartialEq)]
struct Lost(bool);

/// What a Redis says of itself, for whoever has to decide whether it may hold budgets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    pub version: String,
    /// `master` or `slave`.
    pub role: String,
    /// Anything but `noeviction` may forget spent budget. `None`: it doesn't say.
    pub maxmemory_policy: Option<String>,
    pub connected_replicas: u32,
    /// Writes stop with fewer good replicas. `None`: CONFIG isn't permitted.
    pub min_replicas_to_write: Option<u32>,
    /// A replica that was silent for longer isn't good. `None`: CONFIG isn't permitted.
    pub min_replicas_max_lag_s: Option<u64>,
    /// After so long without replicas it takes another name for its history; 0: never. `None`: as above.
    pub repl_backlog_ttl_s: Option<u64>,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects when it is first used. `timeout` is how long the answer to a decision may take; `prefix` begins the
    /// names of all keys.
    ///
    /// # Errors
    /// Where `url` isn't one of a Redis, or `prefix` has braces, which part keys among shards.
    pub fn new(url: &str, timeout: Duration, prefix: &str) -> Result<Self, StoreError> {
        Self::with_clock(url, timeout, prefix, Clock::Redis)
    }

    /// For tests: goes by the milliseconds in the key `{prefix}{s}!clock`, and expires by them.
    #[doc(hidden)]
    pub fn with_fake_clock(url: &str, timeout: Duration, prefix: &str) -> Result<Self, StoreError> {
        Self::with_clock(url, timeout, prefix, Clock::Fake)
    }

    fn with_clock(
        url: &str,
        timeout: Duration,
        prefix: &str,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        if prefix.len() > PREFIX_MAX || prefix.contains(['{', '}']) {
            return Err(StoreError::NotSent(format!(
                "a prefix has at most {PREFIX_MAX} bytes and no braces: {prefix:?}"
            )));
        }
        let link = |timeout| {
            Link::new(url, timeout).map_err(|error| StoreError::NotSent(error.to_string()))
        };
        let (decisions, bulk) = (link(timeout)?, link(timeout.max(BULK_TIMEOUT_MIN))?);
        let shape = Shape {
            calls_max: CALLS_MAX,
            call_len_max: BATCH_MAX,
            waiting_max: WAITING_MAX,
            timeout,
        };
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| {
            let inner = inner.clone();
            let send = move |ops: Vec<Op>| -> batch::Reply<_> {
                let store = inner.upgrade().map(|inner| Self(inner, Gathers(false)));
                Box::pin(async move {
                    match store {
                        Some(store) => store.run(&ops).await,
                        None => Vec::new(),
                    }
                })
            };
            Inner {
                names: Names::new(prefix),
                clock,
                decisions,
                bulk,
                gathered: Batcher::new(shape, send),
                attached: Mutex::new(None),
            }
        });
        Ok(Self(inner, Gathers(true)))
    }

    /// The same store, by which each decision goes in a script call of its own. For benchmarks.
    #[must_use]
    pub fn unbatched(&self) -> Self {
        Self(self.0.clone(), Gathers(false))
    }

    /// Runs a decision in the same script call as others that come at the same time.
    async fn gather(&self, op: Op) -> Result<Reply, StoreError> {
        let answer = self.0.gathered.ask(op).await;
        answer.unwrap_or_else(|why| {
            Err(match why {
                Unanswered::NotSent => {
                    StoreError::NotSent("too much is waiting for the store".into())
                }
                Unanswered::Unknown => StoreError::Unknown("no answer in time".into()),
            })
        })
    }

    /// Asks the server what it is and how it is set up.
    pub async fn inspect(&self) -> Result<Inspection, StoreError> {
        let mut pipeline = Pipeline::new();
        for section in ["server", "replication", "memory"] {
            pipeline.cmd("INFO").arg(section);
        }
        let options = [
            "min-replicas-to-write",
            "min-replicas-max-lag",
            "repl-backlog-ttl",
        ];
        for option in options {
            pipeline.cmd("CONFIG").arg("GET").arg(option);
        }
        let mut answers = self.0.bulk.send(&pipeline).await?;
        let config = answers.split_off(answers.len() - options.len());
        let config = config.into_iter().map(decode::config_value);
        let mut config = config.map(|value| value?.parse::<u64>().ok());
        let mut option = || config.next().flatten();
        let (min_replicas, min_replicas_max_lag_s, repl_backlog_ttl_s) =
            (option(), option(), option());
        let mut info = String::new();
        for answer in answers {
            info += &decode::string(&decode::accepted(answer)?).unwrap_or_default();
        }
        let field = |name| decode::info_field(&info, name).map(str::to_owned);
        let said = |name: &str| {
            decode::info_field(&info, name)
                .map(str::to_owned)
                .ok_or_else(|| StoreError::Rejected(format!("INFO has no {name}")))
        };
        Ok(Inspection {
            version: said("redis_version")?,
            role: said("role")?,
            maxmemory_policy: field("maxmemory_policy"),
            connected_replicas: said("connected_slaves")?.parse().unwrap_or(0),
            min_replicas_to_write: min_replicas.and_then(|n| n.try_into().ok()),
            min_replicas_max_lag_s,
            repl_backlog_ttl_s,
        })
    }

    fn attachment(&self) -> Option<Arc<Attachment>> {
        self.lock_attached().clone()
    }

    fn lock_attached(&self) -> std::sync::MutexGuard<'_, Option<Arc<Attachment>>> {
        let attached = self.0.attached.lock();
        attached.unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs operations none of which is an attach, in one pipeline.
    async fn run(&self, ops: &[Op]) -> Vec<Result<Reply, StoreError>> {
        let attachment = self.attachment();
        let encoder = Encoder {
            names: &self.0.names,
            clock: self.0.clock,
            attachment: attachment.as_deref(),
        };
        let mut pipeline = Pipeline::new();
        let mut parts = Vec::new();
        let mut rest = ops;
        while let Some((op, others)) = rest.split_first() {
            let decides = adjacent_decides(rest);
            let part = if decides.is_empty() {
                rest = others;
                Part::One(op, encoder.add(op, &mut pipeline))
            } else {
                rest = &rest[decides.len()..];
                let Batch { cmd, sent } = encoder.decides(&decides);
                let answers = usize::from(cmd.is_some());
                if let Some(cmd) = cmd {
                    pipeline.add_command(cmd);
                }
                Part::Decides {
                    decides,
                    sent,
                    answers,
                }
            };
            parts.push(part);
        }
        let answers = match pipeline.is_empty() {
            true => Ok(Vec::new()),
            false => self.link(ops).send(&pipeline).await,
        };
        let mut answers = answers.map(Vec::into_iter);
        let mut replies = Vec::with_capacity(ops.len());
        for part in parts {
            if part.replies(&self.0.names, &mut answers, &mut replies) == Lost(true) {
                self.detach(attachment.as_deref());
            }
        }
        replies
    }

    /// For benchmarks: the whole command that decides these, which share a fence. `None` where it can't be sent.
    #[doc(hidden)]
    pub fn decide_command(&self, decides: &[Decide]) -> Option<Vec<Vec<u8>>> {
        let attachment = self.attachment();
        let encoder = Encoder {
            names: &self.0.names,
            clock: self.0.clock,
            attachment: attachment.as_deref(),
        };
        let decides: Vec<&Decide> = decides.iter().collect();
        let cmd = encoder.decides(&decides).cmd?;
        let args = cmd.args_iter().map(|arg| match arg {
            ::redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
            _ => None,
        });
        args.collect()
    }

    /// For benchmarks: the script of that command.
    #[doc(hidden)]
    pub fn decide_script(&self) -> Option<String> {
        let attachment = self.attachment()?;
        Some(script::Fenced::Decide.text(self.0.clock, attachment.life, attachment.nonce))
    }

    fn link(&self, ops: &[Op]) -> &Link {
        let decides = |op: &Op| matches!(op, Op::Decide(_) | Op::EndHolds(_));
        if ops.iter().all(decides) {
            &self.0.decisions
        } else {
            &self.0.bulk
        }
    }

    /// The server doesn't know the scripts of `attachment`: it isn't the process that they were loaded into.
    fn detach(&self, attachment: Option<&Attachment>) {
        let mut attached = self.lock_attached();
        let nonce = |a: &Attachment| a.nonce;
        if attached.as_deref().map(nonce) == attachment.map(nonce) {
            *attached = None;
        }
    }

    /// Loads scripts that only this attachment has, if the server says `expected` of itself. The nonce of an attempt
    /// that failed is never used again.
    async fn attach(&self, life: Life, expected: &str) -> Result<Reply, StoreError> {
        let nonce = rand::random();
        let encoder = Encoder {
            names: &self.0.names,
            clock: self.0.clock,
            attachment: None,
        };
        let mut answers = self.0.bulk.send(&encoder.attach(life, nonce)).await?;
        let mut inner = decode::executed(&mut answers)?.into_iter();
        let info = inner.next().as_ref().and_then(decode::string);
        let fingerprint = info.and_then(|info| decode::fingerprint(&info));
        let digests: Option<Vec<String>> = inner.map(|digest| decode::string(&digest)).collect();
        let digests = digests.and_then(|digests| <[String; 5]>::try_from(digests).ok());
        let (Some(fingerprint), Some(digests)) = (fingerprint, digests) else {
            return Err(StoreError::Rejected(
                "unreadable answer to an attach".into(),
            ));
        };
        if fingerprint != expected {
            *self.lock_attached() = None;
            return Err(StoreError::LookAgain);
        }
        *self.lock_attached() = Some(Arc::new(Attachment {
            life,
            nonce,
            digests,
        }));
        Ok(Reply::Done)
    }
}

// === impl Part ===

impl Part<'_> {
    /// Takes its answers off `answers`, or the error that there is instead of any.
    fn replies(
        self,
        names: &Names,
        answers: &mut Result<std::vec::IntoIter<Value>, StoreError>,
        to: &mut Vec<Result<Reply, StoreError>>,
    ) -> Lost {
        let before = to.len();
        match (self, answers) {
            (Self::One(_, Err(error)), _) => {
                to.push(Err(error));
                return Lost(false);
            }
            (
                Self::Decides {
                    answers: 0, sent, ..
                },
                _,
            ) => {
                let not_sent = || Err(StoreError::NotSent("it is in no command".into()));
                to.extend(sent.into_iter().map(|sent| sent.and(not_sent())));
                return Lost(false);
            }
            (Self::One(op, Ok(())), Ok(answers)) => {
                let mut own: Vec<Value> = answers.take(decode::answers(op)).collect();
                to.push(decode::reply(op, names, &mut own));
            }
            (Self::Decides { decides, sent, .. }, Ok(answers)) => {
                let answer = answers.next().unwrap_or(Value::Nil);
                to.extend(decode::decides(names, &decides, &sent, answer));
            }
            (Self::One(_, Ok(())), Err(error)) => to.push(Err(error.clone())),
            (Self::Decides { sent, .. }, Err(error)) => {
                to.extend(sent.into_iter().map(|sent| sent.and(Err(error.clone()))));
            }
        }
        Lost(to[before..].contains(&Err(StoreError::LookAgain)))
    }
}

/// The decisions that `ops` begins with, as far as they can share a command.
fn adjacent_decides(ops: &[Op]) -> Vec<&Decide> {
    let mut decides: Vec<&Decide> = Vec::new();
    for op in ops.iter().take(BATCH_MAX) {
        match op {
            Op::Decide(decide) if decides.first().is_none_or(|d| d.fence == decide.fence) => {
                decides.push(decide);
            }
            _ => break,
        }
    }
    decides
}

impl Store for RedisStore {
    async fn call(&self, mut ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        if self.1 == Gathers(true)
            && let [Op::Decide(_)] = ops.as_slice()
            && let Some(op) = ops.pop()
        {
            return vec![self.gather(op).await];
        }
        let mut replies = Vec::with_capacity(ops.len());
        let mut rest = ops.as_slice();
        while !rest.is_empty() {
            let run = rest.iter().position(|op| matches!(op, Op::Attach { .. }));
            let (first, others) = rest.split_at(run.unwrap_or(rest.len()));
            if !first.is_empty() {
                replies.extend(self.run(first).await);
            }
            rest = others;
            if let Some((Op::Attach { life, fingerprint }, others)) = others.split_first() {
                replies.push(self.attach(*life, fingerprint).await);
                rest = others;
            }
        }
        replies
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.0.names.prefix())
            .field("attached", &self.attachment())
            .finish_non_exhaustive()
    }
}
