//! The simulated world: regions with a store each, nodes that come and go, and a network between them.

mod checks;
mod faults;
mod rollouts;
mod traffic;

use crate::audit::{Admission, Audit, Violation};
use crate::files::Rollouts;
use crate::plans::Plans;
use apportion_core::allotment::Timing;
use apportion_core::fence::SPAN_MS;
use apportion_core::lives::OnEmpty;
use apportion_core::meter::{Reading, Settled};
use apportion_core::schedule::MICRO;
use apportion_core::{Actor, Attributes, Key, Policy, PolicySet, Regime, Region, StoreMs};
use apportion_store::{Charge, Decide, Memory, MeterId, Mode, Op, Reply, StoreError};
use apportion_sync::{Config, Effect, Input, Machine, Message, Pressure};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
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
    /// With `one_sided`: from here on it goes to the second one.
    pub flip_at_ms: Option<u64>,
    pub on_empty: OnEmpty,
    /// With some, the policies are drawn from the seed.
    pub rollouts: Rollouts,
}

/// What came of a run that broke no promise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub asked: u64,
    pub admitted: u64,
    pub undecided: u64,
    pub losses: u64,
    pub steps: u64,
    /// Roll-outs that came to an end everywhere, and words that a region is off for good.
    pub rolled_out: u64,
    pub retired: u64,
    /// Units asked for and units admitted, by key text.
    pub by_key: BTreeMap<String, (u64, u64)>,
    /// Units admitted in each region, before and after the flip.
    pub by_region: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Shop {
    region: Region,
    memory: Memory,
    snapshot: Option<(Memory, u64)>,
    /// The store's clock: offset, and parts per million that it is fast.
    offset: i64,
    drift_ppm: i64,
    /// It answers nobody any more.
    off: bool,
}

#[derive(Debug)]
struct Node {
    machine: Option<Machine>,
    /// Counts its restarts: what was on its way to an earlier one is lost.
    generation: u32,
    /// Which of the files it is started with.
    file: usize,
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
    NextFile {
        node: usize,
        file: usize,
    },
    Off {
        shop: usize,
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
    /// In the order in which they are rolled out.
    files: Vec<Arc<PolicySet>>,
    shops: Vec<Shop>,
    nodes: Vec<Node>,
    cuts: BTreeMap<(usize, usize), u64>,
    keys: Vec<(Arc<Policy>, Key)>,
    plans: Plans,
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

/// So many policies are in use in one run.
const POLICIES_MAX: usize = 4;
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
        let files = if setup.rollouts.files > 0 {
            setup.rollouts.draw(&mut rng)
        } else {
            let policies = PolicySet::parse(&setup.policies, "simulated");
            vec![Arc::new(
                policies.expect("the simulated policies are valid"),
            )]
        };
        let policies = Arc::clone(&files[0]);
        let regions: BTreeSet<&Region> = files.iter().flat_map(|file| &file.regions).collect();
        let shops: Vec<Shop> = regions
            .into_iter()
            .take(setup.regions)
            .map(|region| Shop {
                region: region.clone(),
                memory: Memory::new(&format!("{region}-0")),
                snapshot: None,
                offset: rng.random_range(-20_000..20_000),
                drift_ppm: *[-400, 0, 400].choose(&mut rng).expect("there are choices"),
                off: false,
            })
            .collect();
        let node = || Node {
            machine: None,
            generation: 0,
            file: 0,
            started: 0,
            paused_until: 0,
            regime: None,
            wake_at: u64::MAX,
        };
        let nodes = (0..setup.regions * setup.nodes).map(|_| node()).collect();
        // A few of the policies, so that each has traffic enough to run short.
        let chosen: Vec<&Arc<Policy>> = policies
            .policies
            .choose_multiple(&mut rng, POLICIES_MAX)
            .collect();
        let keys: Vec<_> = chosen
            .into_iter()
            .flat_map(|policy| {
                ["acme", "zeta"].map(|tenant| {
                    let attributes = Attributes::from([("tenant".to_owned(), tenant.to_owned())]);
                    (
                        Arc::clone(policy),
                        Key::of(policy, &attributes, &policies.subject_hash)
                            .expect("a plain subject"),
                    )
                })
            })
            .collect();
        let mut plans = Plans::default();
        for (policy, key) in &keys {
            plans.draw(&mut rng, policy, key, setup.regions);
        }
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
            files,
            shops,
            nodes,
            cuts: BTreeMap::new(),
            keys,
            plans,
            audit: Audit::default(),
            outcome: Outcome {
                by_region: vec![(0, 0); setup.regions],
                ..Outcome::default()
            },
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
        world.plan_rollouts();
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
        self.outcome.rolled_out = u64::from(self.is_rolled_out());
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
                if self.shops[shop].off {
                    return Ok(());
                }
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
            Event::NextFile { node, file } => self.next_file(node, file),
            Event::Off { shop } => self.turn_off(shop),
            Event::Second => self.second(),
            Event::Weigh => return self.weigh(),
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) {
        let shop = self.shop_of(node);
        let region = self.shops[shop].region.clone();
        let policies = Arc::clone(&self.files[self.nodes[node].file]);
        // It doesn't start with a file that it isn't in.
        let shops = self.shops.iter().map(|s| &s.region);
        let shops = shops.filter(|r| policies.regions.contains(r));
        let (own, peers): (Vec<Region>, Vec<Region>) = shops.cloned().partition(|r| *r == region);
        if own.is_empty() {
            return;
        }
        if self.setup.rollouts.files > 0 {
            self.plans.in_use(&policies, self.now);
        }
        let config = Config {
            region,
            peers,
            policies,
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
