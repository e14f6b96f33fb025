//! Traffic and faults as they are stated: who asks for what, where and when, and what fails when. What happened is kept,
//! so that it can be measured against what a perfect limiter would have done.

use super::*;
use apportion_core::Algorithm;
use apportion_proto::sync::v1 as proto;
use prost::Message as _;

/// A stated run: one key of one policy, in demand here and there.
#[derive(Debug, Clone)]
pub struct Stated {
    pub policy: String,
    pub flows: Vec<Flow>,
    pub faults: Vec<Scripted>,
    pub interval_ms: u64,
    pub term_ms: u64,
    /// So many keys there are. Only what is asked of the first is recorded.
    pub keys: usize,
}

/// Requests that come independently of each other (a Poisson process).
#[derive(Debug, Clone)]
pub struct Flow {
    pub region: usize,
    /// Requests a second, on average.
    pub per_second: f64,
    pub from_ms: u64,
    pub until_ms: u64,
    /// Units of one request.
    pub cost: u64,
    /// Any of the first so many keys is asked for.
    pub keys: usize,
}

/// A fault with its time.
#[derive(Debug, Clone)]
pub struct Scripted {
    pub at_ms: u64,
    /// When it is over; of no meaning for what happens in a moment.
    pub until_ms: u64,
    pub fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing gets from the first region to the second.
    CutLink(usize, usize),
    /// Nothing gets to or from a region.
    CutOff(usize),
    /// Every message is lost with this chance in a thousand.
    Lose(u32),
    /// The store restarts empty.
    LoseStore(usize),
    /// The store goes back to what it was so many milliseconds ago.
    RollBack(usize, u64),
    /// The store's clock steps by so many milliseconds.
    Step(usize, i64),
    /// All nodes of a region are down, or stand still.
    Crash(usize),
    Pause(usize),
}

/// What happened in a stated run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// In the order of time.
    pub asked: Vec<Asked>,
    pub weighed: Vec<Weighed>,
    pub messages: u64,
    /// Of all messages, as they go over the wire.
    pub bytes: u64,
    /// Usage slots in them.
    pub slots: u64,
}

/// One request that a store was asked to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Since the start.
    pub at_ms: u64,
    pub region: usize,
    pub units: u64,
    pub admitted: bool,
}

/// The shares in force at a moment, by region, in parts per billion of the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    pub at_ms: u64,
    pub shares_ppb: Vec<u64>,
}

impl World {
    pub(super) fn interval_ms(&self) -> u64 {
        self.setup.stated.as_ref().map_or(2_000, |s| s.interval_ms)
    }

    /// All stores have the same time, so that windows end for all at once, as for the perfect limiter.
    pub(super) fn begin_stated(&mut self) {
        let Some(stated) = self.setup.stated.clone() else {
            return;
        };
        let policy = self.policies.policy(&stated.policy);
        let policy = Arc::clone(policy.expect("the policy is among those that are simulated"));
        let subject = |i: usize| {
            let tenant = ("tenant".to_owned(), format!("tenant-{i:05}"));
            let attributes = Attributes::from([tenant]);
            Key::of(&policy, &attributes, &self.policies.subject_hash).expect("a plain subject")
        };
        self.keys = (0..stated.keys.max(1))
            .map(|i| (Arc::clone(&policy), subject(i)))
            .collect();
        for shop in &mut self.shops {
            shop.offset = 0;
            shop.drift_ppm = 0;
        }
        for (flow, of) in stated.flows.iter().enumerate() {
            self.at(of.from_ms, Event::Flow { flow });
        }
        for (index, scripted) in stated.faults.iter().enumerate() {
            let begins = true;
            self.at(scripted.at_ms, Event::Script { index, begins });
            if let Fault::RollBack(_, back_ms) = scripted.fault {
                let at = scripted.at_ms.saturating_sub(back_ms);
                let begins = false;
                self.at(at, Event::Script { index, begins });
            }
        }
    }

    pub(super) fn flow(&mut self, index: usize) {
        let Some(stated) = &self.setup.stated else {
            return;
        };
        let flow = stated.flows[index].clone();
        // The first of a flow comes after a gap like any other.
        if self.now > flow.from_ms {
            let node = self.rng.random_range(0..self.setup.nodes);
            let node = flow.region * self.setup.nodes + node;
            let which = self
                .rng
                .random_range(0..flow.keys.clamp(1, self.keys.len()));
            self.ask_stated(node, which, flow.cost);
        }
        let drawn: f64 = self.rng.random();
        let gap = -(1.0 - drawn).ln() * 1_000_000.0 / flow.per_second;
        self.owed_us[index] += gap as u64;
        let at = flow.from_ms + 1 + self.owed_us[index] / 1_000;
        if at < flow.until_ms {
            self.at(at, Event::Flow { flow: index });
        }
    }

    fn ask_stated(&mut self, node: usize, which: usize, units: u64) {
        let (policy, key) = self.keys[which].clone();
        let shop = self.shop_of(node);
        let n = &self.nodes[node];
        let is_up = n.machine.is_some() && n.paused_until <= self.now;
        let Some(regime) = n.regime.as_ref().filter(|_| is_up) else {
            self.note(shop, &key, units, false);
            return;
        };
        let is_bucket = policy.algorithm.is_bucket();
        let charge = Charge {
            key: key.clone(),
            rule: Arc::new(regime.rule(&policy, policy.limits)),
            cost: if is_bucket { units * MICRO } else { units },
            units,
            reserve_ppm: 0,
            denied: 0,
            usage_ms: policy.usage_ms,
            shadow: false,
            newcomers_max: None,
            member: None,
        };
        let decide = Box::new(Decide {
            fence: regime.fence(),
            partition: key.partition(),
            id: self.rng.random_range(0..1 << 53),
            mode: Mode::Charge,
            charges: vec![charge],
            remember: None,
        });
        let event = Event::Decided {
            node,
            decide,
            policy,
        };
        self.at(self.now, event);
    }

    pub(super) fn note_asked(&mut self, shop: usize, charge: &Charge, admitted: bool) {
        if self.setup.stated.is_some() {
            let key = charge.key.clone();
            self.note(shop, &key, charge.units, admitted);
        }
    }

    fn note(&mut self, region: usize, key: &Key, units: u64, admitted: bool) {
        if *key != self.keys[0].1 {
            return;
        }
        self.outcome.record.asked.push(Asked {
            at_ms: self.now,
            region,
            units,
            admitted,
        });
    }

    /// A message as it goes over the wire, with what gRPC and HTTP/2 put around it left out.
    pub(super) fn note_message(&mut self, message: &Message) {
        if self.setup.stated.is_some() {
            let wire: proto::Message = apportion_sync::wire::to_wire(message);
            self.outcome.record.messages += 1;
            self.outcome.record.bytes += wire.encoded_len() as u64;
            self.outcome.record.slots += wire.usage.len() as u64;
        }
    }

    pub(super) fn weigh_stated(&mut self) {
        if self.setup.stated.is_none() {
            return;
        }
        let policy = Arc::clone(&self.keys[0].0);
        let whole = match policy.algorithm {
            Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. } => return,
            algorithm if algorithm.is_bucket() => policy.limits.burst * MICRO,
            _ => policy.limits.limit,
        };
        let share = |world: &mut Self, shop: usize| {
            let of = world.has(shop, 0, None).map_or(0, |has| has.in_force);
            (u128::from(of) * 1_000_000_000 / u128::from(whole)) as u64
        };
        let shares_ppb = (0..self.shops.len()).map(|shop| share(self, shop));
        let shares_ppb = shares_ppb.collect();
        self.outcome.record.weighed.push(Weighed {
            at_ms: self.now,
            shares_ppb,
        });
    }

    pub(super) fn script(&mut self, index: usize, begins: bool) {
        let Some(stated) = &self.setup.stated else {
            return;
        };
        let Scripted {
            until_ms, fault, ..
        } = stated.faults[index].clone();
        let regions = self.setup.regions;
        match fault {
            Fault::CutLink(from, to) => {
                self.cuts.insert((from, to), until_ms);
            }
            Fault::CutOff(region) => {
                for other in (0..regions).filter(|other| *other != region) {
                    self.cuts.insert((region, other), until_ms);
                    self.cuts.insert((other, region), until_ms);
                }
            }
            Fault::Lose(per_mille) => {
                self.setup.faults.lose = per_mille;
                self.setup.faults_until_ms = until_ms;
            }
            Fault::LoseStore(shop) => {
                let fingerprint = self.another_process(shop);
                self.shops[shop].memory = Memory::new(&fingerprint);
            }
            Fault::RollBack(shop, _) if !begins => {
                self.shops[shop].snapshot = Some(self.shops[shop].memory.clone());
            }
            Fault::RollBack(shop, _) => {
                let fingerprint = self.another_process(shop);
                if let Some(memory) = self.shops[shop].snapshot.take() {
                    self.shops[shop].memory = memory.restarted(&fingerprint);
                }
            }
            Fault::Step(shop, ms) => {
                self.outcome.steps += 1;
                self.audit.step();
                self.shops[shop].offset += ms;
            }
            Fault::Crash(region) => {
                for node in region * self.setup.nodes..(region + 1) * self.setup.nodes {
                    self.stop(node);
                    self.at(until_ms, Event::Restart { node });
                }
            }
            Fault::Pause(region) => {
                for node in region * self.setup.nodes..(region + 1) * self.setup.nodes {
                    self.nodes[node].paused_until = until_ms;
                }
            }
        }
    }

    fn another_process(&mut self, shop: usize) -> String {
        self.outcome.losses += 1;
        format!("{}-{}", self.shops[shop].region, self.outcome.losses)
    }
}
