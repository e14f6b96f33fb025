//! The simulated world: regions with a store each, nodes that come and go, and a network between them.

use crate::audit::{Audit, Violation};
use apportion_core::allotment::Timing;
use apportion_core::fence::SPAN_MS;
use apportion_core::lives::OnEmpty;
use apportion_core::meter::{Bucket, Reading};
use apportion_core::schedule::MICRO;
use apportion_core::{
    Actor, Algorithm, Attributes, Key, Partition, Policy, PolicySet, Regime, Region, StoreMs,
};
use apportion_store::{Charge, Decide, Memory, MeterId, Mode, Op, Reply, StoreError};
use apportion_sync::{Config, Effect, Input, Machine, Message, Pressure};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// What goes wrong, as chances in a thousand each simulated second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A message is lost, or doubled: chances in a thousand for each.
    pub lose: u32,
    pub double: u32,
    /// A one-way cut between two regions begins; it lasts up to 20 s.
    pub cut: u32,
    /// A node crashes; it is back within 8 s.
    pub crash: u32,
    /// A node stands still for up to 12 s.
    pub pause: u32,
    /// A store forgets everything, or goes back to what it was a while ago.
    pub lose_store: u32,
    pub roll_back: u32,
    /// A store's clock steps by up to 30 s, either way.
    pub step: u32,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Setup {
    pub policies: String,
    pub regions: usize,
    pub nodes: usize,
    pub duration_ms: u64,
    /// Delay of a message, one way.
    pub delay_ms: (u64, u64),
    pub faults: Faults,
    /// Faults end here, so that what comes after shows recovery.
    pub faults_until_ms: u64,
    /// Requests a second in all; which region gets them changes now and then.
    pub requests_per_s: u64,
    /// All of the traffic goes to the first region.
    pub one_sided: bool,
    pub on_empty: OnEmpty,
}

/// What came of a run that broke no promise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub asked: u64,
    pub admitted: u64,
    pub undecided: u64,
    pub losses: u64,
    pub steps: u64,
    /// Units asked for and units admitted, by key text.
    pub by_key: BTreeMap<String, (u64, u64)>,
}

#[derive(Debug)]
struct Shop {
    region: Region,
    memory: Memory,
    snapshot: Option<(Memory, u64)>,
    /// The store's clock: offset, and parts per million that it is fast.
    offset: i64,
    drift_ppm: i64,
}

#[derive(Debug)]
struct Node {
    machine: Option<Machine>,
    /// Counts its restarts: what was on its way to an earlier one is lost.
    generation: u32,
    started: u64,
    paused_until: u64,
    regime: Option<Regime>,
    wake_at: u64,
}

#[derive(Debug)]
enum Event {
    Wake {
        node: usize,
        generation: u32,
    },
    Call {
        node: usize,
        generation: u32,
        job: u64,
        ops: Vec<Op>,
    },
    Reply {
        node: usize,
        generation: u32,
        job: u64,
        replies: Vec<Result<Reply, StoreError>>,
    },
    Deliver {
        to: Region,
        from: usize,
        generation: u32,
        message: Box<Message>,
        answer: bool,
    },
    Restart {
        node: usize,
    },
    Request,
    Decided {
        node: usize,
        decide: Box<Decide>,
        policy: Arc<Policy>,
    },
    Second,
    Weigh,
}

#[derive(Debug)]
struct Scheduled {
    at: u64,
    order: u64,
    event: Event,
}

#[derive(Debug)]
pub struct World {
    setup: Setup,
    seed: u64,
    rng: SmallRng,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    policies: Arc<PolicySet>,
    shops: Vec<Shop>,
    nodes: Vec<Node>,
    cuts: BTreeMap<(usize, usize), u64>,
    keys: Vec<(Arc<Policy>, Key)>,
    audit: Audit,
    outcome: Outcome,
    /// The region that most of the traffic goes to; all alike where there is none.
    busy: Option<usize>,
    /// How the traffic of this run is: in a thousand, what goes to any region instead of the busy one.
    spread: u32,
    requests_per_s: u64,
    /// In a thousand, what goes to one favourite key.
    fond: u32,
    favourite: usize,
    /// Tokens of requests that wait for an answer: who asked.
    waiting: BTreeMap<u64, (usize, u32)>,
    next_token: u64,
}

/// How often the shares in force are added up.
const WEIGH_MS: u64 = 200;
/// Before the end nothing is asked, so that usage can settle.
const QUIET_MS: u64 = 10_000;
// Store clocks begin here, so that windows of any length have a past.
const BEGINNING: u64 = 1_700_000_000_000;

impl World {
    /// # Panics
    /// Where the policies of `setup` aren't valid.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let policies = Arc::new(
            PolicySet::parse(&setup.policies, "simulated")
                .expect("the simulated policies are valid"),
        );
        let shops: Vec<Shop> = policies.regions[..setup.regions]
            .iter()
            .map(|region| Shop {
                region: region.clone(),
                memory: Memory::new(&format!("{region}-0")),
                snapshot: None,
                offset: rng.random_range(-20_000..20_000),
                drift_ppm: *[-400, 0, 400].choose(&mut rng).expect("there are choices"),
            })
            .collect();
        let node = || Node {
            machine: None,
            generation: 0,
            started: 0,
            paused_until: 0,
            regime: None,
            wake_at: u64::MAX,
        };
        let nodes = (0..setup.regions * setup.nodes).map(|_| node()).collect();
        let keys: Vec<_> = policies
            .policies
            .iter()
            .flat_map(|policy| {
                ["acme", "zeta"].map(|tenant| {
                    let attributes = Attributes::from([("tenant".to_owned(), tenant.to_owned())]);
                    (
                        Arc::clone(policy),
                        Key::of(policy, &attributes).expect("a plain subject"),
                    )
                })
            })
            .collect();
        let spread = *[0, 50, 300].choose(&mut rng).expect("there are choices");
        let fond = *[0, 700, 1000].choose(&mut rng).expect("there are choices");
        let requests_per_s = setup.requests_per_s * rng.random_range(1..=3);
        let favourite = rng.random_range(0..keys.len());
        let mut world = Self {
            setup: setup.clone(),
            seed,
            rng,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            policies,
            shops,
            nodes,
            cuts: BTreeMap::new(),
            keys,
            audit: Audit::default(),
            outcome: Outcome::default(),
            busy: Some(0),
            spread,
            requests_per_s,
            fond,
            favourite,
            waiting: BTreeMap::new(),
            next_token: 0,
        };
        for node in 0..world.nodes.len() {
            let at = world.rng.random_range(0..500);
            world.at(at, Event::Restart { node });
        }
        world.at(1_000, Event::Second);
        world.at(1_000, Event::Weigh);
        world.at(1_000, Event::Request);
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Scheduled {
            at,
            order: self.order,
            event,
        }));
    }

    fn shop_of(&self, node: usize) -> usize {
        node / self.setup.nodes
    }

    fn store_now(&self, shop: usize) -> StoreMs {
        let shop = &self.shops[shop];
        let elapsed = self.now as i64;
        let drifted = elapsed + elapsed * shop.drift_ppm / 1_000_000;
        StoreMs((BEGINNING as i64 + shop.offset + drifted) as u64)
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(mut self) -> Result<Outcome, Violation> {
        while let Some(Reverse(next)) = self.events.pop() {
            if next.at > self.setup.duration_ms {
                break;
            }
            self.now = next.at;
            self.handle(next.event)
                .map_err(|what| self.violation(what))?;
        }
        self.compare_usage().map_err(|what| self.violation(what))?;
        for (_, key) in &self.keys {
            let sums = self
                .outcome
                .by_key
                .entry(key.as_str().to_owned())
                .or_default();
            sums.1 = self.audit.admitted(key);
        }
        Ok(self.outcome)
    }

    fn violation(&self, what: String) -> Violation {
        Violation {
            seed: self.seed,
            at_ms: self.now,
            what,
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Wake { node, generation } => {
                if self.nodes[node].wake_at <= self.now {
                    self.step(node, generation, Input::Wake);
                }
            }
            Event::Call {
                node,
                generation,
                job,
                ops,
            } => {
                // A call that is on its way when its node dies is still executed.
                let shop = self.shop_of(node);
                let now = self.store_now(shop);
                let replies = ops
                    .into_iter()
                    .map(|op| self.shops[shop].memory.apply(now, op))
                    .collect();
                let at = self.now + self.rng.random_range(0..3);
                self.at(
                    at,
                    Event::Reply {
                        node,
                        generation,
                        job,
                        replies,
                    },
                );
            }
            Event::Reply {
                node,
                generation,
                job,
                replies,
            } => {
                self.step(node, generation, Input::Replies { job, replies });
            }
            Event::Deliver {
                to,
                from,
                generation,
                message,
                answer,
            } => self.deliver(&to, from, generation, message, answer),
            Event::Restart { node } => self.restart(node),
            Event::Request => self.request(),
            Event::Decided {
                node,
                decide,
                policy,
            } => return self.decide(node, *decide, &policy),
            Event::Second => self.second(),
            Event::Weigh => return self.weigh(),
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) {
        let shop = self.shop_of(node);
        let region = self.shops[shop].region.clone();
        let peers = self
            .shops
            .iter()
            .map(|s| s.region.clone())
            .filter(|r| *r != region)
            .collect();
        let config = Config {
            region,
            peers,
            policies: Arc::clone(&self.policies),
            interval_ms: 2_000,
            timing: Timing { term_ms: 10_000 },
            on_empty: self.setup.on_empty,
            seed: self.rng.random(),
        };
        let n = &mut self.nodes[node];
        n.generation += 1;
        n.started = self.now;
        n.regime = None;
        n.machine = Some(Machine::new(config, 0));
        let generation = n.generation;
        self.step(node, generation, Input::Wake);
    }

    fn step(&mut self, node: usize, generation: u32, input: Input) {
        let n = &mut self.nodes[node];
        if n.generation != generation {
            return;
        }
        // A node that stands still gets everything late.
        if n.paused_until > self.now {
            let at = n.paused_until;
            match input {
                Input::Wake => self.at(at, Event::Wake { node, generation }),
                Input::Replies { job, replies } => self.at(
                    at,
                    Event::Reply {
                        node,
                        generation,
                        job,
                        replies,
                    },
                ),
                _ => {}
            }
            return;
        }
        let mono = self.now - n.started;
        let Some(machine) = &mut n.machine else {
            return;
        };
        let effects = machine.step(mono, input);
        let wake = machine.wake_at();
        let wake = if wake == u64::MAX {
            u64::MAX
        } else {
            (n.started + wake).max(self.now + 1)
        };
        n.wake_at = wake;
        if wake != u64::MAX {
            self.at(wake, Event::Wake { node, generation });
        }
        for effect in effects {
            self.carry_out(node, generation, effect);
        }
    }

    fn carry_out(&mut self, node: usize, generation: u32, effect: Effect) {
        match effect {
            Effect::Store { job, ops } => {
                let at = self.now + self.rng.random_range(0..4);
                self.at(
                    at,
                    Event::Call {
                        node,
                        generation,
                        job,
                        ops,
                    },
                );
            }
            Effect::Send { to, message } => self.transmit(node, generation, &to, message, false),
            Effect::Answer { token, message } => {
                if let Some((asker, asker_generation)) = self.waiting.remove(&token) {
                    let to = self.shops[self.shop_of(asker)].region.clone();
                    // The answer comes back over the asker's own connection.
                    let from = self.shop_of(node);
                    self.travel(
                        from,
                        self.shop_of(asker),
                        Event::Deliver {
                            to,
                            from: asker,
                            generation: asker_generation,
                            message,
                            answer: true,
                        },
                    );
                }
            }
            Effect::Regime(regime) => self.nodes[node].regime = regime.map(|r| *r),
            Effect::Refuse { token } => {
                self.waiting.remove(&token);
            }
            Effect::UsedUp { .. } | Effect::StoreOk(_) => {}
        }
    }

    fn transmit(
        &mut self,
        node: usize,
        generation: u32,
        to: &Region,
        message: Box<Message>,
        answer: bool,
    ) {
        let Some(target) = self.shops.iter().position(|s| s.region == *to) else {
            return;
        };
        let copies = if self.faulty() && self.rng.random_ratio(self.setup.faults.double, 1000) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let event = Event::Deliver {
                to: to.clone(),
                from: node,
                generation,
                message: message.clone(),
                answer,
            };
            self.travel(self.shop_of(node), target, event);
        }
    }

    fn travel(&mut self, from: usize, to: usize, event: Event) {
        let cut = self
            .cuts
            .get(&(from, to))
            .is_some_and(|until| *until > self.now);
        let lost = self.faulty() && self.rng.random_ratio(self.setup.faults.lose, 1000);
        if cut || lost {
            return;
        }
        let (least, most) = self.setup.delay_ms;
        // Now and then something is very late.
        let late = self.faulty() && self.rng.random_ratio(10, 1000);
        let delay = self.rng.random_range(least..=most)
            + if late {
                self.rng.random_range(0..40_000)
            } else {
                0
            };
        self.at(self.now + delay, event);
    }

    fn deliver(
        &mut self,
        to: &Region,
        from: usize,
        generation: u32,
        message: Box<Message>,
        answer: bool,
    ) {
        if answer {
            self.step(
                from,
                generation,
                Input::Message {
                    message,
                    token: None,
                },
            );
            return;
        }
        let Some(target) = self.shops.iter().position(|s| s.region == *to) else {
            return;
        };
        let node = target * self.setup.nodes + self.rng.random_range(0..self.setup.nodes);
        self.next_token += 1;
        let token = self.next_token;
        self.waiting.insert(token, (from, generation));
        let generation = self.nodes[node].generation;
        self.step(
            node,
            generation,
            Input::Message {
                message,
                token: Some(token),
            },
        );
    }

    fn faulty(&self) -> bool {
        self.now < self.setup.faults_until_ms
    }

    fn request(&mut self) {
        if self.now + QUIET_MS > self.setup.duration_ms {
            return;
        }
        let gap = 1_000 / self.requests_per_s.max(1);
        let at = self.now + self.rng.random_range(0..=gap * 2);
        self.at(at, Event::Request);
        if self.rng.random_ratio(1, 300) {
            let which = self.rng.random_range(0..=self.setup.regions);
            self.busy = (which < self.setup.regions).then_some(which);
        }
        let here = if self.setup.one_sided {
            0
        } else {
            let busy = self
                .busy
                .filter(|_| !self.rng.random_ratio(self.spread, 1000));
            busy.unwrap_or_else(|| self.rng.random_range(0..self.setup.regions))
        };
        let node = here * self.setup.nodes + self.rng.random_range(0..self.setup.nodes);
        let which = if self.rng.random_ratio(self.fond, 1000) {
            self.favourite
        } else {
            self.rng.random_range(0..self.keys.len())
        };
        let (policy, key) = self.keys[which].clone();
        let units = if self.rng.random_ratio(1, 6) {
            self.rng.random_range(1..=3)
        } else {
            1
        };
        let n = &self.nodes[node];
        self.outcome.asked += 1;
        self.outcome
            .by_key
            .entry(key.as_str().to_owned())
            .or_default()
            .0 += units;
        let Some(regime) = n
            .regime
            .as_ref()
            .filter(|_| n.machine.is_some() && n.paused_until <= self.now)
        else {
            self.outcome.undecided += 1;
            return;
        };
        let rule = regime.rule(&policy);
        let cost = match policy.algorithm {
            Algorithm::TokenBucket { .. } => units * MICRO,
            Algorithm::FixedWindow { .. } => units,
        };
        let mode = if self.rng.random_ratio(1, 10) {
            Mode::Hold {
                id: self.rng.random_range(0..1 << 53),
                ttl_ms: 2_000,
            }
        } else {
            Mode::Charge
        };
        let charge = Charge {
            key: key.clone(),
            rule,
            cost,
            units,
            usage_ms: policy.usage_ms,
            shadow: false,
        };
        let decide = Decide {
            fence: regime.fence(),
            partition: key.partition(),
            mode,
            charges: vec![charge],
        };
        // A node may stand still between its thought and its call.
        let late = if self.faulty() && self.rng.random_ratio(5, 1000) {
            self.rng.random_range(0..15_000)
        } else {
            0
        };
        let at = self.now + self.rng.random_range(0..4) + late;
        self.at(
            at,
            Event::Decided {
                node,
                decide: Box::new(decide),
                policy,
            },
        );
    }

    fn decide(&mut self, node: usize, decide: Decide, policy: &Arc<Policy>) -> Result<(), String> {
        let shop = self.shop_of(node);
        let now = self.store_now(shop);
        let charge = decide.charges[0].clone();
        let generation = self.nodes[node].generation;
        match self.shops[shop].memory.apply(now, Op::Decide(decide)) {
            Ok(Reply::Decided(decided)) => {
                let reading = decided.answers[0].reading;
                let label = match reading {
                    Reading::Window { label, .. } => Some(label),
                    Reading::Bucket { .. } => None,
                };
                if decided.admitted {
                    self.outcome.admitted += charge.units;
                    self.audit
                        .admit(policy, &charge.key, label, charge.units, self.now)?;
                } else {
                    let pressure = Pressure {
                        policy: Arc::clone(policy),
                        key: charge.key,
                        label,
                        refused: true,
                    };
                    self.step(node, generation, Input::Pressure(pressure));
                }
            }
            Err(StoreError::Fenced(_) | StoreError::LookAgain) => {
                self.outcome.undecided += 1;
                self.step(node, generation, Input::LookAgain);
            }
            _ => self.outcome.undecided += 1,
        }
        Ok(())
    }

    fn second(&mut self) {
        self.at(self.now + 1_000, Event::Second);
        if !self.faulty() {
            self.cuts.clear();
            return;
        }
        let faults = self.setup.faults;
        let chance =
            |rng: &mut SmallRng, per_mille: u32| rng.random_ratio(per_mille.min(1000), 1000);
        let regions = self.setup.regions;
        if chance(&mut self.rng, faults.cut) {
            let (a, b) = (
                self.rng.random_range(0..regions),
                self.rng.random_range(0..regions),
            );
            let until = self.now + self.rng.random_range(1_000..20_000);
            self.cuts.insert((a, b), until);
            if self.rng.random_ratio(1, 2) {
                self.cuts.insert((b, a), until);
            }
        }
        let node = self.rng.random_range(0..self.nodes.len());
        if chance(&mut self.rng, faults.crash) {
            self.nodes[node].machine = None;
            self.nodes[node].regime = None;
            self.nodes[node].generation += 1;
            let at = self.now + self.rng.random_range(100..8_000);
            self.at(at, Event::Restart { node });
        }
        if chance(&mut self.rng, faults.pause) {
            self.nodes[node].paused_until = self.now + self.rng.random_range(100..12_000);
        }
        let shop = self.rng.random_range(0..regions);
        if self.rng.random_ratio(1, 5) {
            self.shops[shop].snapshot = Some((self.shops[shop].memory.clone(), self.now));
        }
        if chance(&mut self.rng, faults.lose_store) {
            self.outcome.losses += 1;
            let fingerprint = format!("{}-{}", self.shops[shop].region, self.outcome.losses);
            self.shops[shop].memory = Memory::new(&fingerprint);
        } else if chance(&mut self.rng, faults.roll_back) && self.shops[shop].snapshot.is_some() {
            self.outcome.losses += 1;
            let fingerprint = format!("{}-{}", self.shops[shop].region, self.outcome.losses);
            if let Some((memory, _)) = self.shops[shop].snapshot.take() {
                self.shops[shop].memory = memory.restarted(&fingerprint);
            }
        }
        if chance(&mut self.rng, faults.step) {
            self.outcome.steps += 1;
            self.audit.step();
            let step = self.rng.random_range(-30_000..30_000);
            // Steps that nobody can see are covered by the audit's allowance; larger ones are caught.
            self.shops[shop].offset += if self.rng.random_ratio(1, 2) {
                step
            } else {
                step % SPAN_MS as i64
            };
        }
    }

    /// The capacities in force for a rate never add up to more than the burst, whether or not anybody uses them. Steps of
    /// a clock are left out: one that nobody can see may double a share for a moment, and the audit allows for that.
    fn weigh(&mut self) -> Result<(), String> {
        self.at(self.now + WEIGH_MS, Event::Weigh);
        if self.outcome.steps > 0 {
            return Ok(());
        }
        for (policy, key) in self.keys.clone() {
            let Algorithm::TokenBucket { burst, .. } = policy.algorithm else {
                continue;
            };
            let mut parts = Vec::new();
            for shop in 0..self.shops.len() {
                let nodes = shop * self.setup.nodes..(shop + 1) * self.setup.nodes;
                let caps = nodes.filter_map(|node| self.cap_in_force(node, &policy, &key));
                // Whichever of the region's nodes decides next.
                let caps: Vec<u64> = caps.collect();
                parts.extend(caps.into_iter().max());
            }
            let sum: u64 = parts.iter().sum();
            if sum > burst * MICRO {
                return Err(format!(
                    "{key:?}: the capacities in force are {parts:?} of {burst} units"
                ));
            }
        }
        Ok(())
    }

    /// The capacity under which a call of `node` would be decided now.
    fn cap_in_force(&mut self, node: usize, policy: &Policy, key: &Key) -> Option<u64> {
        let shop = self.shop_of(node);
        let now = self.store_now(shop);
        let regime = self.nodes[node].regime.clone()?;
        let fence = regime.fence();
        let ids = vec![MeterId {
            key: key.clone(),
            label: None,
        }];
        let read = Op::Read {
            fence,
            partition: key.partition(),
            ids,
        };
        let Ok(Reply::Snapshots { snapshots, .. }) = self.shops[shop].memory.apply(now, read)
        else {
            return None;
        };
        let terms = snapshots
            .first()?
            .traded
            .as_ref()
            .and_then(|t| t.terms.as_ref());
        let rule = regime.rule(policy);
        match Bucket::settle(None, &rule, terms, &fence, now).reading {
            Reading::Bucket { flow, .. } => Some(flow.cap),
            Reading::Window { .. } => None,
        }
    }

    /// After the faults are over all regions read the same usage, and it is what was admitted.
    fn compare_usage(&mut self) -> Result<(), String> {
        let quiet = self
            .setup
            .duration_ms
            .saturating_sub(self.setup.faults_until_ms);
        if quiet < 30_000 {
            return Ok(());
        }
        for (policy, key) in self.keys.clone() {
            let Some(period_ms) = policy.usage_ms else {
                continue;
            };
            let mut totals = Vec::new();
            for shop in 0..self.shops.len() {
                let Some(regime) = self.nodes[shop * self.setup.nodes].regime.clone() else {
                    continue;
                };
                let now = self.store_now(shop);
                let first = StoreMs(now.0 - now.0 % period_ms).minus(period_ms * 2);
                let starts = (0..5).map(|i| first.plus(i * period_ms)).collect();
                let op = Op::Usage {
                    fence: regime.fence(),
                    partition: key.partition(),
                    key: key.clone(),
                    starts,
                };
                let own = regime.actor();
                if let Ok(Reply::Usage { periods, .. }) = self.shops[shop].memory.apply(now, op) {
                    let mut slots: BTreeMap<Actor, u64> = BTreeMap::new();
                    for (actor, counts) in periods.into_iter().flatten() {
                        *slots
                            .entry(actor.unwrap_or_else(|| own.clone()))
                            .or_default() += counts.admitted;
                    }
                    slots.retain(|_, units| *units > 0);
                    totals.push((self.shops[shop].region.clone(), slots));
                }
            }
            let admitted = self.audit.admitted(&key);
            let sums: Vec<u64> = totals
                .iter()
                .map(|(_, slots)| slots.values().sum())
                .collect();
            if totals.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                return Err(format!("{key:?}: usage differs: {totals:?}"));
            }
            if sums.iter().any(|sum| *sum > admitted) {
                return Err(format!(
                    "{key:?}: {admitted} admitted, but usage says {sums:?}"
                ));
            }
            if self.outcome.losses == 0 && sums.iter().any(|sum| *sum != admitted) {
                return Err(format!(
                    "{key:?}: {admitted} admitted, and usage says {sums:?}"
                ));
            }
        }
        Ok(())
    }

    /// The partition of a key, for tests.
    pub fn partition_of(key: &Key) -> Partition {
        key.partition()
    }
}

// === impl Scheduled ===

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
