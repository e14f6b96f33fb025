//! The machine's work in hand: rounds and surveys by its own accord, and messages from peers.

use super::Effect;
use super::{JOBS_MAX, Machine};
use crate::message::{Count, Message, Trade, UsageEntry};
use crate::plan::{self, Occasion};
use crate::track::Mono;
use crate::work::{Progress, Work};
use apportion_core::fence::{Fence, SKEW_MS};
use apportion_core::lives::RegionState;
use apportion_core::meter::tally_cell_ms;
use apportion_core::planted::{self, Bug};
use apportion_core::policy::Tolerance;
use apportion_core::usage::{RETENTION_MS, Slot};
use apportion_core::{Actor, Algorithm, Partition, Policy, Regime, Region, StoreMs};
use apportion_store::{FeedPage, Heard, MeterId, Op, Reply, StoreError, UsageSlot};
use std::collections::BTreeMap;
use std::sync::Arc;

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
    pub(super) counts: Vec<Count>,
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
        let sweep = Op::Sweep {
            fence,
            readers: readers.iter().map(|(_, reader)| reader.clone()).collect(),
            traded_max: TRADED_MAX,
            feed_max: FEED_MAX,
        };
        let ops = vec![lease, sweep];
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
        ops.extend(self.hears(now, &regime, &message.counts));
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

    /// What peers admitted, for the policies that go by it. Of a window that is long over, or far ahead by this store's
    /// clock, nothing is kept.
    fn hears(&self, now: Mono, regime: &Regime, counts: &[Count]) -> Vec<Op> {
        let (own, store_now) = (regime.actor(), self.store_now(now));
        let mut partitions: BTreeMap<Partition, Vec<Heard>> = BTreeMap::new();
        for count in counts.iter().filter(|count| count.actor != own) {
            let Some(policy) = self.policies.get(count.id.key.policy_id()) else {
                continue;
            };
            if policy.tolerance == Tolerance::NeverOver || !matters(policy, &count.id, store_now) {
                continue;
            }
            let hash = &self.config.policies.subject_hash;
            let limits = policy.limits_of_key(&count.id.key, hash);
            let heard = Heard {
                id: count.id.clone(),
                rule: Arc::new(regime.rule(policy, limits.unwrap_or_else(|| policy.largest()))),
                actor: count.actor.clone(),
                told: count.told,
            };
            let partition = count.id.key.partition();
            partitions.entry(partition).or_default().push(heard);
        }
        let fence = regime.fence();
        let hear = |(partition, heard)| Op::Hear {
            fence,
            partition,
            heard,
        };
        partitions.into_iter().map(hear).collect()
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
        let (through, pages) = match replies.next() {
            Some(Ok(Reply::Swept(swept))) => {
                ids.extend(swept.traded);
                (swept.now, swept.pages)
            }
            Some(Err(error)) => {
                self.over(Occasion::Round);
                return self.broken(now, &error);
            }
            _ => return self.over(Occasion::Round),
        };
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
        for ((peer, reader), pages) in readers.iter().zip(pages) {
            let unread = pages.iter().any(|(_, page)| page.more);
            if unread {
                self.round_due = self.round_due.min(now + self.config.interval_ms / 8);
            }
            out.insert(
                peer.clone(),
                Out {
                    reader: reader.clone(),
                    through: (!unread).then_some(through),
                    ..self.outgoing(&regime.state, pages)
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
                effects.push(self.send(&regime.state, &peer, out, trade));
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
        // The table as it is now: what was heard meanwhile may be on record already.
        let regime = self.keeper.regime().unwrap_or_else(|| regime.clone());
        let to_asker = tell.remove(message.from()).unwrap_or_default();
        // What came free by this message may be what somebody else waits for.
        for (peer, trade) in tell {
            effects.push(self.send(&regime.state, &peer, Out::default(), trade));
        }
        let Some(token) = token else {
            if !to_asker.is_empty() {
                effects.push(self.send(&regime.state, message.from(), Out::default(), to_asker));
            }
            return;
        };
        let answer = Message {
            table: regime.state.table(),
            policies: self.digest,
            is_reply: true,
            usage: Vec::new(),
            counts: Vec::new(),
            through: None,
            feed: Vec::new(),
            reader: message.reader.clone(),
            acks: message.feed.clone(),
            trade: to_asker,
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

/// Whether a peer may speak of such a meter of the policy at `now`.
fn matters(policy: &Policy, id: &MeterId, now: StoreMs) -> bool {
    match (policy.algorithm, id.label) {
        (Algorithm::FixedWindow { period }, Some(label)) => {
            let (start, end) = period.bounds(label);
            let around = period.longest_ms() + SKEW_MS;
            start <= now.plus(around) && now <= end.plus(around)
        }
        (Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. }, _) => false,
        (_, label) => label.is_none(),
    }
}

impl Machine {
    /// Own slots and tallies, and those of lives that are over: the rest their own regions send.
    fn outgoing(&self, state: &RegionState, pages: Vec<(Partition, FeedPage)>) -> Out {
        let mut out = Out::default();
        let own = state.actor();
        for (partition, page) in pages {
            if page.entries.is_empty() && page.tallies.is_empty() {
                continue;
            }
            out.feed.push((partition.0, page.seq));
            let entries = page.entries.into_iter().map(|entry| UsageEntry {
                key: entry.key,
                period: entry.period,
                actor: entry.actor.unwrap_or_else(|| own.clone()),
                counts: entry.counts,
            });
            let ours = |actor: &Actor| {
                let is_over = !state.is_present(actor);
                *actor == own || (is_over && !planted::is_on(Bug::DeadSlotsKept))
            };
            out.usage.extend(entries.filter(|entry| ours(&entry.actor)));
            for entry in page.tallies {
                let actor = entry.actor.unwrap_or_else(|| own.clone());
                let policy = self.policies.get(entry.id.key.policy_id());
                if let Some(policy) = policy.filter(|_| ours(&actor)) {
                    let cell_ms = tally_cell_ms(policy.algorithm, policy.fill_ms);
                    out.counts.push(Count {
                        id: entry.id,
                        told: entry.tally.told(page.now, cell_ms),
                        actor,
                    });
                }
            }
        }
        out
    }
}
