//! The machine's work in hand: rounds and surveys by its own accord, and messages from peers.

use super::Effect;
use super::{JOBS_MAX, Machine};
use crate::message::{Message, Trade, UsageEntry};
use crate::plan::{self, Occasion};
use crate::track::Mono;
use crate::work::{Progress, Work};
use apportion_core::fence::Fence;
use apportion_core::lives::RegionState;
use apportion_core::usage::{RETENTION_MS, Slot};
use apportion_core::{Partition, Regime, Region, StoreMs};
use apportion_store::{FeedPage, MeterId, Op, Reply, StoreError, UsageSlot};
use std::collections::BTreeMap;

/// Traded keys of one partition that a round looks after.
const TRADED_MAX: usize = 256;
/// Usage slots of one partition in one message.
const FEED_MAX: usize = 32;
/// What is assumed of a period of a policy that isn't known here.
const PERIOD_GUESS_MS: u64 = 31 * 86_400_000;

/// A piece of work between two calls of the store.
#[derive(Debug)]
pub(super) enum Job {
    /// Waits for the lease, the traded keys and the usage feeds.
    Gather {
        regime: Box<Regime>,
        readers: Vec<(Region, String)>,
    },
    Survey {
        regime: Box<Regime>,
        occasion: Occasion,
        work: Work,
        out: BTreeMap<Region, Out>,
    },
    /// A message whose usage is being merged.
    Merge {
        regime: Box<Regime>,
        message: Box<Message>,
        token: Option<u64>,
    },
    Answer {
        regime: Box<Regime>,
        message: Box<Message>,
        token: Option<u64>,
        work: Work,
    },
    /// Nobody waits for the outcome.
    Note,
}

/// The usage that goes out to one peer.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub(super) usage: Vec<UsageEntry>,
    pub(super) through: Option<StoreMs>,
    pub(super) feed: Vec<(u8, u64)>,
    pub(super) reader: String,
}

/// Where a peer's reading of the feed stands is kept under this name. Which slots it is sent depends on which lives are
/// present: where they change, it reads all anew, so that slots of a life that is over are passed on.
fn reader(state: &RegionState, peer: &Region) -> Option<String> {
    let (life, digest) = (state.present.get(peer)?, state.present_digest());
    Some(format!("{peer}/{life}/{}/{digest:016x}", state.life))
}

impl Machine {
    pub(super) fn begin_round(&mut self, regime: &Regime) -> (Job, Vec<Op>) {
        let fence = regime.fence();
        let lease = Op::Lease {
            holder: self.holder,
            ttl_ms: self.config.interval_ms * 2,
        };
        let readers: Vec<(Region, String)> = self
            .config
            .peers
            .iter()
            .filter_map(|peer| Some((peer.clone(), reader(&regime.state, peer)?)))
            .collect();
        let mut ops = vec![lease];
        for partition in (0..=u8::MAX).map(Partition) {
            ops.push(Op::Traded {
                fence,
                partition,
                limit: TRADED_MAX,
            });
            for (_, reader) in &readers {
                ops.push(Op::Feed {
                    fence,
                    partition,
                    reader: reader.clone(),
                    limit: FEED_MAX,
                });
            }
        }
        (
            Job::Gather {
                regime: Box::new(regime.clone()),
                readers,
            },
            ops,
        )
    }

    /// Starts looking after `ids`. False where there was nothing to start.
    pub(super) fn survey(
        &mut self,
        regime: &Regime,
        ids: Vec<MeterId>,
        occasion: Occasion,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let mut work = Work::new(ids);
        let Some(ops) = work.read(&regime.fence()) else {
            return false;
        };
        let job = Job::Survey {
            regime: Box::new(regime.clone()),
            occasion,
            work,
            out: BTreeMap::new(),
        };
        self.start(job, ops, effects);
        true
    }

    pub(super) fn message(
        &mut self,
        now: Mono,
        message: Message,
        token: Option<u64>,
        effects: &mut Vec<Effect>,
    ) {
        let from = message.from().clone();
        if !self
            .keeper
            .hear(&message.table, message.policies == self.digest, now)
            || self.jobs.len() >= JOBS_MAX
        {
            return refuse(token, effects);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.heard_at = Some(now);
            peer.policies_differ = message.policies != self.digest;
            self.keeper.compare(&message.table.rollout, peer);
        }
        let Some(regime) = self.keeper.regime() else {
            return refuse(token, effects);
        };
        let fence = regime.fence();
        let mut ops = self.merges(&fence, &regime.state, &message);
        // What is confirmed was sent under the name that is echoed; by now we may send under another one.
        for (partition, seq) in &message.acks {
            let (partition, reader) = (Partition(*partition), message.reader.clone());
            ops.push(Op::Ack {
                fence,
                partition,
                reader,
                seq: *seq,
            });
        }
        let job = Job::Merge {
            regime: Box::new(regime),
            message: Box::new(message),
            token,
        };
        if ops.is_empty() {
            self.merged(job, effects);
        } else {
            self.start(job, ops, effects);
        }
    }

    fn merges(&self, fence: &Fence, state: &RegionState, message: &Message) -> Vec<Op> {
        let mut slots: BTreeMap<Partition, Vec<UsageSlot>> = BTreeMap::new();
        let own = state.actor();
        for entry in message.usage.iter().filter(|entry| entry.actor != own) {
            let known = self
                .policies
                .get(entry.key.policy_id())
                .and_then(|policy| policy.usage_ms);
            let keep_until = entry
                .period
                .plus(known.unwrap_or(PERIOD_GUESS_MS))
                .plus(RETENTION_MS);
            slots
                .entry(entry.key.partition())
                .or_default()
                .push(UsageSlot {
                    key: entry.key.clone(),
                    period: entry.period,
                    keep_until,
                    slot: Slot {
                        actor: entry.actor.clone(),
                        counts: entry.counts,
                    },
                });
        }
        let merge = |(partition, slots)| Op::Merge {
            fence: *fence,
            partition,
            slots,
        };
        slots.into_iter().map(merge).collect()
    }

    pub(super) fn advance(
        &mut self,
        now: Mono,
        id: u64,
        job: Job,
        replies: Vec<Result<Reply, StoreError>>,
        effects: &mut Vec<Effect>,
    ) {
        match job {
            Job::Gather { regime, readers } => {
                self.gathered(now, *regime, &readers, replies, effects)
            }
            Job::Survey {
                regime,
                occasion,
                mut work,
                out,
            } => {
                let fence = regime.fence();
                let progress = work.replied(&fence, replies, |id, snapshot, store_now| {
                    self.plan(
                        now,
                        &regime,
                        id,
                        snapshot,
                        store_now,
                        effects,
                        |scene, track, snapshot| plan::survey(scene, track, snapshot, occasion),
                    )
                });
                match progress {
                    Progress::Ask(ops) => {
                        self.jobs.insert(
                            id,
                            Job::Survey {
                                regime,
                                occasion,
                                work,
                                out,
                            },
                        );
                        effects.push(Effect::Store { job: id, ops });
                    }
                    Progress::Done => self.surveyed(&regime, occasion, work.tell, out, effects),
                    Progress::Broken(error) => {
                        self.over(occasion);
                        self.broken(now, &error);
                    }
                }
            }
            Job::Merge { token, .. } => match replies.into_iter().find_map(Result::err) {
                None => self.merged(job, effects),
                Some(error) => {
                    refuse(token, effects);
                    self.broken(now, &error);
                }
            },
            Job::Answer {
                regime,
                message,
                token,
                mut work,
            } => {
                let fence = regime.fence();
                let from = message.table.sender.clone();
                let progress = work.replied(&fence, replies, |id, snapshot, store_now| {
                    self.plan(
                        now,
                        &regime,
                        id,
                        snapshot,
                        store_now,
                        effects,
                        |scene, track, snapshot| {
                            plan::answer(
                                scene,
                                track,
                                snapshot,
                                &from,
                                message.table.epoch,
                                &message.trade,
                            )
                        },
                    )
                });
                match progress {
                    Progress::Ask(ops) => {
                        self.jobs.insert(
                            id,
                            Job::Answer {
                                regime,
                                message,
                                token,
                                work,
                            },
                        );
                        effects.push(Effect::Store { job: id, ops });
                    }
                    Progress::Done => self.reply(&regime, &message, token, work.tell, effects),
                    Progress::Broken(error) => {
                        refuse(token, effects);
                        self.broken(now, &error);
                    }
                }
            }
            Job::Note => {}
        }
    }

    fn gathered(
        &mut self,
        now: Mono,
        regime: Regime,
        readers: &[(Region, String)],
        replies: Vec<Result<Reply, StoreError>>,
        effects: &mut Vec<Effect>,
    ) {
        let mut replies = replies.into_iter();
        let leads = matches!(replies.next(), Some(Ok(Reply::Held(true))));
        let mut ids = self.followed(now);
        let mut pages: BTreeMap<Region, Vec<(u8, FeedPage)>> = BTreeMap::new();
        for partition in 0..=u8::MAX {
            match replies.next() {
                Some(Ok(Reply::Traded(traded))) => ids.extend(traded),
                Some(Err(error)) => {
                    self.over(Occasion::Round);
                    return self.broken(now, &error);
                }
                _ => {}
            }
            for (peer, _) in readers {
                if let Some(Ok(Reply::Feed(page))) = replies.next() {
                    pages
                        .entry(peer.clone())
                        .or_default()
                        .push((partition, page));
                }
            }
        }
        if !leads {
            // Another node does the region's rounds; this one only greets, to know who is within reach.
            return self.surveyed(
                &regime,
                Occasion::Round,
                BTreeMap::new(),
                BTreeMap::new(),
                effects,
            );
        }
        let store_now = self.store_now(now);
        let ahead: Vec<MeterId> = ids
            .iter()
            .filter_map(|id| {
                let policy = self.policies.get(id.key.policy_id())?;
                plan::ahead(policy, id, store_now, self.config.interval_ms)
            })
            .collect();
        ids.extend(ahead);
        let mut out: BTreeMap<Region, Out> = self
            .config
            .peers
            .iter()
            .map(|peer| (peer.clone(), Out::default()))
            .collect();
        for (peer, pages) in pages {
            let unread = pages.iter().any(|(_, page)| page.more);
            if unread {
                self.round_due = self.round_due.min(now + self.config.interval_ms / 8);
            }
            let reader = readers
                .iter()
                .find(|(region, _)| *region == peer)
                .map(|(_, name)| name.clone());
            let reader = reader.unwrap_or_default();
            out.insert(
                peer.clone(),
                Out {
                    reader,
                    ..outgoing(&regime.state, pages)
                },
            );
        }
        let mut work = Work::new(ids);
        match work.read(&regime.fence()) {
            Some(ops) => {
                let job = Job::Survey {
                    regime: Box::new(regime),
                    occasion: Occasion::Round,
                    work,
                    out,
                };
                self.start(job, ops, effects);
            }
            None => self.surveyed(&regime, Occasion::Round, BTreeMap::new(), out, effects),
        }
    }

    fn surveyed(
        &mut self,
        regime: &Regime,
        occasion: Occasion,
        mut tell: BTreeMap<Region, Trade>,
        mut out: BTreeMap<Region, Out>,
        effects: &mut Vec<Effect>,
    ) {
        self.over(occasion);
        for peer in self.config.peers.clone() {
            let trade = tell.remove(&peer).unwrap_or_default();
            // A round goes to every peer, so that each hears from this region once an interval.
            if occasion == Occasion::Round || !trade.is_empty() {
                let out = out.remove(&peer).unwrap_or_default();
                effects.push(self.send(regime, &peer, out, trade));
            }
        }
    }

    fn over(&mut self, occasion: Occasion) {
        match occasion {
            Occasion::Tick => self.tick_running = false,
            Occasion::Urgent => self.urgent_running = false,
            Occasion::Round => self.round_running = false,
        }
    }

    /// The message's usage is in the store; now for its trade.
    fn merged(&mut self, job: Job, effects: &mut Vec<Effect>) {
        let Job::Merge {
            regime,
            message,
            token,
        } = job
        else {
            return;
        };
        if let Some(through) = message.through {
            let mark = Op::Mark {
                life: regime.state.life,
                actor: message.table.sender.clone(),
                through,
            };
            self.start(Job::Note, vec![mark], effects);
        }
        let trades = message.policies == self.digest;
        let mut ids = message.trade.ids();
        ids.retain(|id| trades && self.is_traded(id));
        let mut work = Work::new(ids);
        match work.read(&regime.fence()) {
            Some(ops) => self.start(
                Job::Answer {
                    regime,
                    message,
                    token,
                    work,
                },
                ops,
                effects,
            ),
            None => self.reply(&regime, &message, token, BTreeMap::new(), effects),
        }
    }

    fn reply(
        &mut self,
        regime: &Regime,
        message: &Message,
        token: Option<u64>,
        mut tell: BTreeMap<Region, Trade>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(token) = token else { return };
        // The table as it is now: what was heard meanwhile may be on record already.
        let regime = self.keeper.regime().unwrap_or_else(|| regime.clone());
        let answer = Message {
            table: regime.state.table(),
            policies: self.digest,
            is_reply: true,
            usage: Vec::new(),
            through: None,
            feed: Vec::new(),
            reader: message.reader.clone(),
            acks: message.feed.clone(),
            trade: tell.remove(message.from()).unwrap_or_default(),
        };
        effects.push(Effect::Answer {
            token,
            message: Box::new(answer),
        });
    }

    fn broken(&mut self, now: Mono, error: &StoreError) {
        if matches!(error, StoreError::Fenced(_) | StoreError::LookAgain) {
            self.keeper.look_again(now);
        }
    }
}

fn refuse(token: Option<u64>, effects: &mut Vec<Effect>) {
    effects.extend(token.map(|token| Effect::Refuse { token }));
}

/// Own slots, and those of lives that are over: the rest their own regions send.
fn outgoing(state: &RegionState, pages: Vec<(u8, FeedPage)>) -> Out {
    let mut out = Out::default();
    let complete = pages.iter().all(|(_, page)| !page.more) && pages.len() == 256;
    out.through = pages
        .iter()
        .map(|(_, page)| page.now)
        .min()
        .filter(|_| complete);
    let own = state.actor();
    for (partition, page) in pages
        .into_iter()
        .filter(|(_, page)| !page.entries.is_empty())
    {
        out.feed.push((partition, page.seq));
        let entries = page.entries.into_iter().map(|entry| UsageEntry {
            key: entry.key,
            period: entry.period,
            actor: entry.actor.unwrap_or_else(|| own.clone()),
            counts: entry.counts,
        });
        out.usage
            .extend(entries.filter(|entry| entry.actor == own || !state.is_present(&entry.actor)));
    }
    out
}
