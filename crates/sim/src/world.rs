//! The simulated world: regions with a store each, nodes that come and go, and a network between them.

mod checks;
mod faults;
mod flows;
mod network;
mod nodes;
mod queue;
mod rollouts;
mod traffic;

pub use flows::{Asked, Fault, Flow, Record, Scripted, Stated, Weighed};

use crate::audit::{Admission, Audit, Violation};
use crate::knowing::{Knowing, Seen};
use crate::plans::Plans;
use crate::setup::{Faults, Outcome, Setup};
use apportion_core::allotment::Timing;
use apportion_core::fence::SPAN_MS;
use apportion_core::meter::{Reading, Settled};
use apportion_core::schedule::MICRO;
use apportion_core::{Actor, Attributes, Key, Policy, PolicySet, Regime, Region, StoreMs};
use apportion_store::{Charge, Decide, EndHolds, Memory, MeterId, Mode, Op, Reply, StoreError};
use apportion_sync::{Config, Effect, Input, Machine, Message, Pressure};
use queue::Queue;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

#[derive(Debug)]
struct Shop {
    region: Region,
    memory: Memory,
    snapshot: Option<Memory>,
    /// The store's clock: its offset, the one that it began with, and parts per million that it is fast.
    offset: i64,
    first_offset: i64,
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
    /// Parts per million that its own clock is fast.
    drift_ppm: i64,
    paused_until: u64,
    regime: Option<Regime>,
    wake_at: u64,
    /// The earliest wake-up that is on its way.
    woken_at: u64,
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
    Stop {
        node: usize,
    },
    Request,
    Decided {
        node: usize,
        decide: Box<Decide>,
        policy: Arc<Policy>,
    },
    EndHold {
        node: usize,
        hold: Box<Held>,
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
    /// Just now something happened that takes a second or two to be seen.
    WeighOnce,
    /// The next request of a stated flow.
    Flow {
        flow: usize,
    },
    Script {
        index: usize,
        begins: bool,
    },
}

/// A hold that its node means to end.
#[derive(Debug)]
struct Held {
    id: u64,
    laid_at: StoreMs,
    release: bool,
    charge: Charge,
    admission: Admission,
}

/// Who is told what happens.
#[derive(Default)]
struct Tell(Option<Teller>);

type Teller = Box<dyn FnMut(&str)>;

#[derive(Debug)]
pub struct World {
    setup: Setup,
    seed: u64,
    rng: SmallRng,
    now: u64,
    events: Queue<Event>,
    policies: Arc<PolicySet>,
    /// Where files replace each other: all of them, in the order in which they are rolled out.
    files: Vec<Arc<PolicySet>>,
    shops: Vec<Shop>,
    nodes: Vec<Node>,
    cuts: BTreeMap<(usize, usize), u64>,
    /// Lives that may have admitted something.
    admitting: BTreeSet<Actor>,
    keys: Vec<(Arc<Policy>, Key)>,
    plans: Plans,
    audit: Audit,
    knowing: Knowing,
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
    /// Of each stated flow, how long after its beginning its next request is due.
    owed_us: Vec<u64>,
    /// Nobody asks for anything until then.
    lull_until: u64,
    term_ms: u64,
    quiet_ms: u64,
    /// What was in each bucket of each region when it was last looked at.
    levels: BTreeMap<(usize, usize), checks::Level>,
    tell: Tell,
}

/// So many policies are in use in one run, at most.
const POLICIES_MAX: usize = 2;
/// How often the shares in force are added up.
const WEIGH_MS: u64 = 800;
/// Before the end nothing is asked, so that usage can settle, where it is counted.
const QUIET_MS: u64 = 10_000;
/// How long a loan is for in a run. A short one is over, and its margin too, while there is still something to see.
const TERMS_MS: [u64; 2] = [4_000, 10_000];
// Store clocks begin here, so that windows of any length have a past.
const BEGINNING: u64 = 1_700_000_000_000;

impl World {
    /// # Panics
    /// Where the policies of `setup` aren't valid.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let setup = setup.drawn(&mut rng);
        let files = match setup.rollouts.files {
            0 => Vec::new(),
            _ => setup.rollouts.draw(&mut rng),
        };
        let policies = match files.first() {
            Some(first) => Arc::clone(first),
            None => parsed(&setup.policies),
        };
        let all = files.iter().chain([&policies]);
        let regions: BTreeSet<&Region> = all.flat_map(|file| &file.regions).collect();
        let shops: Vec<Shop> = regions
            .into_iter()
            .take(setup.regions)
            .map(|region| {
                let offset = rng.random_range(-15_000..15_000);
                Shop {
                    region: region.clone(),
                    memory: Memory::new(&format!("{region}-0")),
                    snapshot: None,
                    offset,
                    first_offset: offset,
                    drift_ppm: *[-400, 0, 400].choose(&mut rng).expect("there are choices"),
                    off: false,
                }
            })
            .collect();
        let mut node = || Node {
            machine: None,
            generation: 0,
            file: 0,
            started: 0,
            drift_ppm: *[-400, 0, 400].choose(&mut rng).expect("there are choices"),
            paused_until: 0,
            regime: None,
            wake_at: u64::MAX,
            woken_at: u64::MAX,
        };
        let nodes = (0..setup.regions * setup.nodes).map(|_| node()).collect();
        // Where traffic is stated nothing of this is used; it draws as it always did, so that reports stay as they are.
        let is_stated = setup.stated.is_some();
        let number = rng.random_range(1..=if is_stated { 3 } else { POLICIES_MAX });
        let both = is_stated || rng.random_ratio(1, 3);
        // A few of the policies, so that each has traffic enough to run short.
        let chosen = policies.policies.choose_multiple(&mut rng, number);
        let chosen: Vec<Arc<Policy>> = chosen.cloned().collect();
        let keys: Vec<_> = chosen
            .iter()
            .flat_map(|policy| {
                let tenants: &[&str] = if both { &["acme", "zeta"] } else { &["acme"] };
                tenants
                    .iter()
                    .map(|tenant| {
                        let attributes =
                            Attributes::from([("tenant".to_owned(), (*tenant).to_owned())]);
                        (
                            Arc::clone(policy),
                            Key::of(policy, &attributes, &policies.subject_hash)
                                .expect("a plain subject"),
                        )
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        // A region remembers and compares all policies that it has.
        let of_chosen = |file: &Arc<PolicySet>| {
            let is_chosen = |policy: &&Arc<Policy>| chosen.iter().any(|c| c.id() == policy.id());
            Arc::new(PolicySet {
                policies: file.policies.iter().filter(is_chosen).cloned().collect(),
                ..(**file).clone()
            })
        };
        let files: Vec<_> = files.iter().map(of_chosen).collect();
        let policies = match is_stated {
            true => policies,
            false => of_chosen(&policies),
        };
        let mut plans = Plans::default();
        for (policy, key) in &keys {
            plans.draw(&mut rng, policy, key, setup.regions);
        }
        let spread = *[0, 50, 300].choose(&mut rng).expect("there are choices");
        let fond = *[0, 700, 1000].choose(&mut rng).expect("there are choices");
        let requests_per_s = setup.requests_per_s * rng.random_range(1..=3);
        let favourite = rng.random_range(0..keys.len());
        let term_ms = match setup.stated.as_ref() {
            Some(stated) => stated.term_ms,
            // A loan of a window that always ends within a span is never given back early, so shares don't follow.
            None if setup.one_sided => TERMS_MS[1],
            None => *TERMS_MS.choose(&mut rng).expect("there are choices"),
        };
        let is_counted = keys.iter().any(|(policy, _)| policy.usage_ms.is_some());
        let stated_flows = setup.stated.as_ref().map_or(0, |s| s.flows.len());
        let quiet_ms = if is_counted { QUIET_MS } else { 0 };
        let mut world = Self {
            setup,
            seed,
            rng,
            now: 0,
            events: Queue::default(),
            policies,
            files,
            nodes,
            cuts: BTreeMap::new(),
            admitting: BTreeSet::new(),
            keys,
            plans,
            audit: Audit::default(),
            knowing: Knowing::default(),
            outcome: Outcome {
                by_region: vec![(0, 0); shops.len()],
                ..Outcome::default()
            },
            shops,
            busy: Some(0),
            spread,
            requests_per_s,
            fond,
            favourite,
            waiting: BTreeMap::new(),
            next_token: 0,
            owed_us: vec![0; stated_flows],
            lull_until: 0,
            term_ms,
            quiet_ms,
            levels: BTreeMap::new(),
            tell: Tell::default(),
        };
        let (nodes, boots_ms) = (world.setup.nodes, world.setup.boots_ms);
        for shop in 0..world.setup.regions {
            let late = boots_ms > 0 && world.rng.random_ratio(1, 2);
            let begin = if late {
                world.rng.random_range(0..boots_ms)
            } else {
                0
            };
            for node in shop * nodes..(shop + 1) * nodes {
                let at = begin + world.rng.random_range(0..500);
                world.at(at, Event::Restart { node });
            }
        }
        world.plan_rollouts();
        world.at(1_000, Event::Weigh);
        if world.setup.stated.is_some() {
            world.begin_stated();
        } else {
            world.at(1_000, Event::Second);
            world.at(1_000, Event::Request);
        }
        world
    }

    /// Tells what happens, line by line.
    #[must_use]
    pub(crate) fn traced(mut self, tell: Teller) -> Self {
        self.tell = Tell(Some(tell));
        self
    }

    fn tell(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.tell.0.is_none() {
            return;
        }
        let line = format!("{:>7} {}", self.now, what(self));
        if let Some(tell) = &mut self.tell.0 {
            tell(&line);
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events.push(at, event);
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
        while let Some((at, event)) = self.events.pop() {
            if at > self.setup.duration_ms {
                break;
            }
            self.now = at;
            self.handle(event).map_err(|what| self.violation(what))?;
        }
        self.compare_usage().map_err(|what| self.violation(what))?;
        self.outcome.rolled_out = u64::from(self.is_rolled_out());
        self.outcome.overdrawn = self.knowing.overdrawn;
        self.outcome.known_used_up = self.knowing.refused;
        for (_, key) in &self.keys {
            let sums = self
                .outcome
                .by_key
                .entry(key.as_str().to_owned())
                .or_default();
            sums.1 = self.audit.admitted(key) - self.audit.refunded(key);
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
            Event::Wake { node, generation } => self.wake(node, generation),
            Event::Call {
                node,
                generation,
                job,
                ops,
            } => self.call(node, generation, job, ops),
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
            Event::Stop { node } => self.stop(node),
            Event::Request => self.request(),
            Event::Decided {
                node,
                decide,
                policy,
            } => return self.decide(node, *decide, &policy),
            Event::EndHold { node, hold } => self.end_hold(node, *hold),
            Event::NextFile { node, file } => self.next_file(node, file),
            Event::Off { shop } => self.turn_off(shop),
            Event::Second => self.second(),
            Event::Weigh => {
                self.at(self.now + WEIGH_MS, Event::Weigh);
                self.weigh_stated();
                return self.weigh();
            }
            Event::WeighOnce => return self.weigh(),
            Event::Flow { flow } => self.flow(flow),
            Event::Script { index, begins } => self.script(index, begins),
        }
        Ok(())
    }

    /// What a store is told of others' admissions is told to the audit, too.
    fn apply(&mut self, shop: usize, now: StoreMs, op: Op) -> Result<Reply, StoreError> {
        let told = match &op {
            Op::Hear { fence, heard, .. } => Some((*fence, heard.clone())),
            _ => None,
        };
        let reply = self.shops[shop].memory.apply(now, op);
        if let Some((fence, heard)) = told.filter(|_| reply.is_ok()) {
            let (record, inside) = (fence.record, fence.span.contains(now));
            for heard in &heard {
                let id = heard.id.key.policy_id();
                let policy = self.policies.policies.iter().find(|p| p.id() == id);
                if let Some(policy) = policy {
                    self.knowing
                        .hear(policy, heard, record, shop, self.now, inside);
                }
            }
        }
        reply
    }
}

/// The policies of a text, which most runs share with the one before.
fn parsed(text: &str) -> Arc<PolicySet> {
    thread_local! {
        static LAST: RefCell<BTreeMap<String, Arc<PolicySet>>> = const { RefCell::new(BTreeMap::new()) };
    }
    LAST.with_borrow_mut(|known| {
        if let Some(policies) = known.get(text) {
            return Arc::clone(policies);
        }
        let policies =
            PolicySet::parse(text, "simulated").expect("the simulated policies are valid");
        let policies = Arc::new(policies);
        known.insert(text.to_owned(), Arc::clone(&policies));
        policies
    })
}

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}
