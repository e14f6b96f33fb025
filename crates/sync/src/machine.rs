//! The sync state machine of one node: inputs in, effects out.
//!
//! Its memory is estimates and work in hand; whatever counts is in the store. So it may die between any two effects,
//! and any number of nodes of a region may run one each.

mod job;

use crate::closing::ClosingStatus;
use crate::keeper::{Keeper, Step, Wish};
use crate::message::{Message, Trade};
use crate::plan::{self, Occasion, Scene};
use crate::track::{Mono, Track};
use apportion_core::allotment::Timing;
use apportion_core::lives::{OnEmpty, RegionState, Stage};
use apportion_core::rollout::Refusal;
use apportion_core::{Actor, Key, Limits, Policy, PolicySet, Regime, Region, StoreMs};
use apportion_store::{MeterId, Op, Reply, Snapshot, StoreError};
use job::{Job, Out};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keys that a node follows closely at one time; what is beyond is left to the regular rounds.
const TRACKS_MAX: usize = 10_000;
/// Keys looked after in one tick or urgent round.
const SURVEY_MAX: usize = 1_000;
/// A key that nothing happened to for so long isn't followed any more.
const TRACK_IDLE_MS: Mono = 30_000;
/// How often followed keys are measured.
const TICK_MS: Mono = 250;
/// Until all regions have met, they greet each other so often.
const HELLO_MS: Mono = 200;
/// That many quick greetings, then one an interval.
const HELLOS_MAX: u32 = 100;
/// Work in hand at one time; messages beyond it are dropped, as a network would.
const JOBS_MAX: usize = 256;

/// What a node's machine is made for.
#[derive(Clone, Debug)]
pub struct Config {
    pub region: Region,
    /// The other regions.
    pub peers: Vec<Region>,
    pub policies: Arc<PolicySet>,
    pub interval_ms: u64,
    pub timing: Timing,
    pub on_empty: OnEmpty,
    /// Seeds the node's own randomness: lives, jitter, its name as a lease holder.
    pub seed: u64,
}

/// Names a piece of work towards the store.
pub type JobId = u64;
/// Names a request that waits for its answer.
pub type ReplyToken = u64;

/// A key whose requests are refused, or soon will be.
#[derive(Clone, Debug)]
pub struct Pressure {
    pub policy: Arc<Policy>,
    pub key: Key,
    pub label: Option<u64>,
    /// What the request goes by.
    pub limits: Limits,
    pub refused: bool,
}

#[derive(Debug)]
pub enum Input {
    /// Time has passed.
    Wake,
    Replies {
        job: JobId,
        replies: Vec<Result<Reply, StoreError>>,
    },
    /// `token`: an answer is waited for.
    Message {
        message: Box<Message>,
        token: Option<ReplyToken>,
    },
    Pressure(Pressure),
    /// Somebody found the store not to be the one that was expected.
    LookAgain,
    /// An operator closes or opens the region.
    Wish(Wish),
    /// An operator says that this region's store is off for good.
    Retire(Region),
}

#[derive(Debug)]
pub enum Effect {
    Store {
        job: JobId,
        ops: Vec<Op>,
    },
    /// What the peer answers comes back as a message.
    Send {
        to: Region,
        message: Box<Message>,
    },
    Answer {
        token: ReplyToken,
        message: Box<Message>,
    },
    /// There will be no answer.
    Refuse {
        token: ReplyToken,
    },
    /// What the node may go by has changed. `None`: nothing, before the first contact with the store.
    Regime(Option<Box<Regime>>),
    /// As far as is known, no region has any rights of this window left (or some has again).
    UsedUp {
        key: Key,
        label: u64,
        used_up: bool,
    },
    /// The store can't be reached, or can again.
    StoreOk(bool),
}

/// What is known of a peer.
#[derive(Clone, Debug, Default)]
pub struct PeerView {
    pub heard_at: Option<Mono>,
    pub actor: Option<Actor>,
    /// Its policies aren't ours, so nothing is traded with it.
    pub policies_differ: bool,
    /// The newest revision that it goes by.
    pub revision: Option<u64>,
    /// Our revision's number stands for another content there.
    pub conflicts: bool,
}

/// How the roll-out of a file stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RolloutView {
    /// This node's.
    pub revision: u64,
    /// The oldest one that still counts here; `None` before the first contact with the store.
    pub oldest: Option<u64>,
    /// Regions whose word is waited for.
    pub waits_for: BTreeSet<Region>,
    /// Regions that are off for good.
    pub retired: BTreeSet<Region>,
    /// Those that share a budget by any revision that counts here.
    pub regions: BTreeSet<Region>,
}

#[derive(Debug)]
pub struct Machine {
    config: Config,
    digest: u64,
    policies: BTreeMap<String, Arc<Policy>>,
    keeper: Keeper,
    rng: SmallRng,
    holder: u64,
    tracks: BTreeMap<Key, Track>,
    urgent: BTreeSet<MeterId>,
    urgent_running: bool,
    tick_running: bool,
    round_running: bool,
    jobs: BTreeMap<JobId, Job>,
    next_job: JobId,
    round_due: Mono,
    tick_due: Mono,
    hello_due: Mono,
    hellos: u32,
    /// How far the region's closing was when peers were last greeted for its sake.
    greeted_at: Option<Stage>,
    peers: BTreeMap<Region, PeerView>,
    /// The store's clock less this node's, as last read. For choosing what to look at, never for deciding.
    offset: i128,
    published: Option<(
        apportion_core::fence::Fence,
        Arc<apportion_core::lives::RegionState>,
    )>,
    store_ok: Option<bool>,
}

/// What two regions must agree on to trade: the policies, and for how long a loan is.
fn trade_digest(config: &Config) -> u64 {
    config.policies.digest() ^ config.timing.term_ms.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The keeper's work.
const KEEPER: JobId = 0;

impl Machine {
    pub fn new(config: Config, now: Mono) -> Self {
        let mut rng = SmallRng::seed_from_u64(config.seed);
        let policies: BTreeMap<String, Arc<Policy>> = config
            .policies
            .policies
            .iter()
            .map(|p| (p.id(), Arc::clone(p)))
            .collect();
        let counts = policies.values().map(|p| p.algorithm.counts_ms());
        let keeper = Keeper::new(
            config.region.clone(),
            config.peers.clone(),
            config.timing,
            counts.max().unwrap_or(0),
            Arc::clone(&config.policies),
            config.on_empty,
        );
        let peers = config
            .peers
            .iter()
            .map(|p| (p.clone(), PeerView::default()))
            .collect();
        let round_due = now + rng.random_range(0..=config.interval_ms);
        Self {
            digest: trade_digest(&config),
            policies,
            keeper,
            holder: rng.random_range(1..1 << 53),
            rng,
            tracks: BTreeMap::new(),
            urgent: BTreeSet::new(),
            urgent_running: false,
            tick_running: false,
            round_running: false,
            jobs: BTreeMap::new(),
            next_job: KEEPER + 1,
            round_due,
            tick_due: now,
            hello_due: now,
            hellos: 0,
            greeted_at: None,
            peers,
            offset: 0,
            published: None,
            store_ok: None,
            config,
        }
    }

    /// When the machine wants to be woken, at the latest.
    pub fn wake_at(&self) -> Mono {
        let mut at = self.keeper.due().min(self.keeper.lapses_at());
        if self.keeper.regime().is_some() {
            if !self.round_running {
                at = at.min(self.round_due);
            }
            if !self.tick_running && !self.tracks.is_empty() {
                at = at.min(self.tick_due);
            }
        }
        if self.greets() {
            at = at.min(self.hello_due);
        }
        at
    }

    pub fn peers(&self) -> &BTreeMap<Region, PeerView> {
        &self.peers
    }

    /// Policies that this store has on record with another definition under the same version.
    pub fn redefined(&self) -> impl Iterator<Item = &str> {
        self.keeper.redefined.iter().map(String::as_str)
    }

    /// Why this node's file can't be gone by in its region.
    pub fn refusal(&self) -> Option<Refusal> {
        self.keeper.refusal
    }

    /// How the roll-out of this node's file stands.
    pub fn rollout(&self) -> RolloutView {
        let rollout = self.keeper.state().map(|state| &state.rollout);
        RolloutView {
            revision: self.config.policies.revision,
            oldest: rollout.and_then(|r| Some(r.revisions.first()?.number)),
            waits_for: self.keeper.waits_for(),
            retired: rollout.map_or_else(BTreeSet::new, |rollout| {
                let all = rollout.retired.keys();
                all.filter(|region| rollout.is_retired(region))
                    .cloned()
                    .collect()
            }),
            regions: rollout.map_or_else(BTreeSet::new, |rollout| {
                rollout.regions().into_iter().cloned().collect()
            }),
        }
    }

    /// The region whose store this node was given by mistake.
    pub fn foreign(&self) -> Option<&Region> {
        self.keeper.foreign.as_ref()
    }

    /// Counts what operators wanted and was done.
    pub fn wishes_done(&self) -> u64 {
        self.keeper.wishes_done
    }

    /// How far the region's last closing is; `None`: there was none in this life.
    pub fn closing(&self) -> Option<ClosingStatus> {
        ClosingStatus::of(self.keeper.state()?, &self.config.peers)
    }

    pub fn step(&mut self, now: Mono, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Wake => {}
            Input::Replies {
                job: KEEPER,
                replies,
            } => {
                let random = self.rng.random();
                for reply in replies.iter().flatten() {
                    self.note_clock(now, reply);
                }
                let step = self.keeper.replied(now, replies, random);
                self.keep(step, &mut effects);
            }
            Input::Replies { job, replies } => {
                for reply in replies.iter().flatten() {
                    self.note_clock(now, reply);
                }
                if let Some(work) = self.jobs.remove(&job) {
                    self.advance(now, job, work, replies, &mut effects);
                }
            }
            Input::Message { message, token } => self.message(now, *message, token, &mut effects),
            Input::Pressure(pressure) => self.pressed(now, &pressure),
            Input::LookAgain => self.keeper.look_again(now),
            Input::Wish(wish) => self.keeper.wish(wish, now),
            Input::Retire(region) => self.keeper.retire(region, now),
        }
        self.run_due(now, &mut effects);
        effects
    }

    fn note_clock(&mut self, now: Mono, reply: &Reply) {
        let store = match reply {
            Reply::Looked(looked) => looked.now,
            Reply::Snapshots { now, .. } => *now,
            _ => return,
        };
        self.offset = i128::from(store.0) - i128::from(now);
    }

    fn store_now(&self, now: Mono) -> StoreMs {
        StoreMs(u64::try_from(i128::from(now) + self.offset).unwrap_or(0))
    }

    /// Carries out what the keeper wants, and publishes what the node may go by if that is new.
    fn keep(&mut self, step: Step, effects: &mut Vec<Effect>) {
        match step {
            Step::Wait => {}
            Step::Ask(ops) => effects.push(Effect::Store { job: KEEPER, ops }),
            Step::Settled => self.store_is(true, effects),
            Step::Failed => self.store_is(false, effects),
        }
        let regime = self.keeper.regime();
        let published = regime.as_ref().map(|r| (r.fence(), Arc::clone(&r.state)));
        if published != self.published {
            for (region, peer) in &mut self.peers {
                let present = regime.as_ref().and_then(|r| r.state.present.get(region));
                peer.actor = present.map(|life| Actor {
                    region: region.clone(),
                    life: *life,
                });
            }
            self.published = published;
            effects.push(Effect::Regime(regime.map(Box::new)));
        }
    }

    fn store_is(&mut self, ok: bool, effects: &mut Vec<Effect>) {
        if self.store_ok != Some(ok) {
            self.store_ok = Some(ok);
            effects.push(Effect::StoreOk(ok));
        }
    }

    fn run_due(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        if self.keeper.lapse(now) {
            self.keep(Step::Wait, effects);
        }
        let step = self.keeper.wake(now);
        if step != Step::Wait {
            self.keep(step, effects);
        }
        self.greet(now, effects);
        let Some(regime) = self.keeper.regime() else {
            return;
        };
        if self.round_due <= now && !self.round_running {
            let interval = self.config.interval_ms;
            self.round_due =
                now + interval - interval / 10 + self.rng.random_range(0..=interval / 5);
            self.round_running = true;
            let (job, ops) = self.begin_round(&regime);
            self.start(job, ops, effects);
        }
        if !self.urgent_running && !self.urgent.is_empty() {
            let ids: Vec<MeterId> = std::mem::take(&mut self.urgent)
                .into_iter()
                .take(SURVEY_MAX)
                .collect();
            self.urgent_running = self.survey(&regime, ids, Occasion::Urgent, effects);
        }
        if self.tick_due <= now && !self.tick_running && !self.tracks.is_empty() {
            self.tick_due = now + TICK_MS;
            self.tracks
                .retain(|_, track| track.touched_at + TRACK_IDLE_MS > now);
            let ids = self.followed(now);
            self.tick_running = self.survey(&regime, ids, Occasion::Tick, effects);
        }
    }

    /// Whether peers are to be told more often than by the rounds: until all have met, and of a closing.
    fn greets(&self) -> bool {
        let speaks = self.keeper.regime().is_some() || self.keeper.sealed().is_some();
        let tells = matches!(
            self.keeper.stage(),
            Some(Stage::Telling { .. } | Stage::Closed | Stage::Opening { .. })
        );
        speaks && !self.config.peers.is_empty() && (tells || !self.keeper.has_met_all())
    }

    fn greet(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        let stage = self.keeper.stage();
        if self.greeted_at != stage {
            self.greeted_at = stage;
            self.hellos = 0;
            self.hello_due = now;
        }
        let state = match (self.keeper.regime(), self.keeper.sealed()) {
            (Some(regime), _) => regime.state,
            (None, Some(state)) => Arc::clone(state),
            (None, None) => return,
        };
        if !self.greets() || self.hello_due > now {
            return;
        }
        self.hellos = self.hellos.saturating_add(1);
        let often = self.hellos < HELLOS_MAX && stage != Some(Stage::Closed);
        let wait = if often {
            HELLO_MS
        } else {
            self.config.interval_ms
        };
        self.hello_due = now + wait;
        for peer in self.config.peers.clone() {
            effects.push(self.send(&state, &peer, Out::default(), Trade::default()));
        }
    }

    /// The meters that followed keys are at now.
    fn followed(&self, now: Mono) -> Vec<MeterId> {
        let store_now = self.store_now(now);
        let at = |key: &Key| {
            let policy = self.policies.get(key.policy_id())?;
            Some(MeterId {
                key: key.clone(),
                label: plan::traded_label(policy, store_now)?,
            })
        };
        self.tracks.keys().take(SURVEY_MAX).filter_map(at).collect()
    }

    fn pressed(&mut self, now: Mono, pressure: &Pressure) {
        let id = MeterId {
            key: pressure.key.clone(),
            label: pressure.label,
        };
        if self.config.peers.is_empty() || !self.is_traded(&id) {
            return;
        }
        let Some(track) = self.track(now, &id.key) else {
            return;
        };
        track.limits = Some(pressure.limits);
        if pressure.refused {
            track.refused(now);
        }
        if track.may_ask(now) && self.urgent.len() < SURVEY_MAX {
            self.urgent.insert(id);
        }
    }

    /// Whether a policy that is known here has such a meter, and regions trade it.
    fn is_traded(&self, id: &MeterId) -> bool {
        let policy = self.policies.get(id.key.policy_id());
        policy.is_some_and(|policy| plan::is_traded(policy, id))
    }

    fn track(&mut self, now: Mono, key: &Key) -> Option<&mut Track> {
        if !self.tracks.contains_key(key) && self.tracks.len() >= TRACKS_MAX {
            return None;
        }
        Some(
            self.tracks
                .entry(key.clone())
                .or_insert_with(|| Track::new(now)),
        )
    }

    #[expect(clippy::too_many_arguments, reason = "one scene, set up in one place")]
    /// Sets up the scene for one key and lets `plan` look at it.
    fn plan(
        &mut self,
        now: Mono,
        regime: &Regime,
        id: &MeterId,
        snapshot: &Snapshot,
        store_now: StoreMs,
        effects: &mut Vec<Effect>,
        plan: impl FnOnce(&Scene<'_>, &mut Track, &Snapshot) -> plan::Plan,
    ) -> plan::Plan {
        let Some(policy) = self.policies.get(id.key.policy_id()).cloned() else {
            return plan::Plan::default();
        };
        if !plan::is_traded(&policy, id) {
            return plan::Plan::default();
        }
        let mut track = self
            .tracks
            .remove(&id.key)
            .unwrap_or_else(|| Track::new(now));
        let is_present = plan::traded_label(&policy, store_now) == Some(id.label);
        if is_present {
            track.sample(now, store_now, plan::counted(snapshot));
            let noted = snapshot.meter.as_ref().and_then(|meter| meter.limits);
            let noted = noted.map(|noted| regime.limits_noted(&policy, noted));
            track.limits = noted.or(track.limits);
        }
        let actors = self
            .peers
            .iter()
            .filter_map(|(r, view)| Some((r.clone(), view.actor.clone()?)))
            .collect();
        let fence = regime.fence();
        // Whoever goes by other policies neither lends nor asks, and isn't waited for.
        let trades =
            |(region, view): (&Region, &PeerView)| (!view.policies_differ).then(|| region.clone());
        let trading: Vec<Region> = self.peers.iter().filter_map(trades).collect();
        let scene = Scene {
            regime,
            fence: &fence,
            policy: &policy,
            hash: &self.config.policies.subject_hash,
            id,
            peers: &trading,
            actors: &actors,
            interval_ms: self.config.interval_ms,
            now: store_now,
            mono: now,
        };
        let planned = plan(&scene, &mut track, snapshot);
        if let Some(label) = id.label.filter(|_| is_present) {
            let used_up = planned.spent && track.is_used_up(&self.config.peers);
            effects.push(Effect::UsedUp {
                key: id.key.clone(),
                label,
                used_up,
            });
        }
        if self.tracks.len() < TRACKS_MAX {
            self.tracks.insert(id.key.clone(), track);
        }
        planned
    }

    fn send(&self, state: &RegionState, to: &Region, out: Out, trade: Trade) -> Effect {
        let message = Message {
            table: state.table(),
            policies: self.digest,
            is_reply: false,
            usage: out.usage,
            counts: out.counts,
            through: out.through,
            feed: out.feed,
            reader: out.reader,
            acks: Vec::new(),
            trade,
        };
        Effect::Send {
            to: to.clone(),
            message: Box::new(message),
        }
    }

    fn start(&mut self, job: Job, ops: Vec<Op>, effects: &mut Vec<Effect>) {
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, job);
        effects.push(Effect::Store { job: id, ops });
    }
}
