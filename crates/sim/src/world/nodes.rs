//! Nodes: each runs a machine, whose effects are carried out late, and never where the node is gone.

use super::*;

/// The longest that a call of the store is on its way: late ones are up to one of these.
const LATE_CALLS_MS: [u64; 3] = [300, 3_000, 15_000];

impl World {
    pub(super) fn restart(&mut self, node: usize) {
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
            interval_ms: self.interval_ms(),
            timing: Timing {
                term_ms: self.term_ms,
            },
            on_empty: self.setup.on_empty,
            seed: self.rng.random(),
        };
        let n = &mut self.nodes[node];
        n.generation += 1;
        n.started = self.now;
        n.woken_at = u64::MAX;
        n.regime = None;
        n.machine = Some(Machine::new(config, 0));
        let generation = n.generation;
        self.tell(|_| format!("node {node} starts"));
        self.step(node, generation, Input::Wake);
    }

    pub(super) fn stop(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.machine = None;
        n.regime = None;
        n.generation += 1;
        self.tell(|_| format!("node {node} stops"));
    }

    pub(super) fn wake(&mut self, node: usize, generation: u32) {
        let n = &mut self.nodes[node];
        if n.generation == generation && n.woken_at <= self.now {
            n.woken_at = u64::MAX;
        }
        if n.wake_at <= self.now {
            self.step(node, generation, Input::Wake);
        } else {
            self.wake_up(node);
        }
    }

    /// Sees to it that the node is woken when its machine wants to be.
    fn wake_up(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        if n.wake_at < n.woken_at {
            n.woken_at = n.wake_at;
            let (at, generation) = (n.wake_at, n.generation);
            self.at(at, Event::Wake { node, generation });
        }
    }

    pub(super) fn step(&mut self, node: usize, generation: u32, input: Input) {
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
        let mono = n.mono(self.now);
        let Some(machine) = &mut n.machine else {
            return;
        };
        let effects = machine.step(mono, input);
        let wake = machine.wake_at();
        n.wake_at = n.moment(wake).max(self.now + 1);
        self.wake_up(node);
        for effect in effects {
            self.carry_out(node, generation, effect);
        }
    }

    fn carry_out(&mut self, node: usize, generation: u32, effect: Effect) {
        match effect {
            Effect::Store { job, ops } => {
                let at = self.now + self.rng.random_range(0..4) + self.lateness();
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
            Effect::Answer { token, message } => self.answer(node, token, message),
            Effect::Regime(regime) => {
                let regime = regime.map(|r| *r);
                let state = regime.as_ref().map(|r| Arc::clone(&r.state));
                if let Some(state) = state {
                    if state.may_admit() {
                        self.admitting.insert(state.actor());
                    }
                    self.tell(|_| {
                        let (life, epoch) = (state.life, state.epoch);
                        let standing = &state.standing;
                        format!("node {node} goes by life {life} {epoch:?} {standing:?}")
                    });
                }
                self.nodes[node].regime = regime;
            }
            Effect::Refuse { token } => {
                self.waiting.remove(&token);
            }
            Effect::UsedUp { .. } | Effect::StoreOk(_) => {}
        }
    }

    /// How much longer than usual a call is on its way.
    pub(super) fn lateness(&mut self) -> u64 {
        let late = self.setup.faults.late_call;
        if self.faulty() && late > 0 && self.rng.random_ratio(late, 1000) {
            let most = *LATE_CALLS_MS.choose(&mut self.rng).expect("choices");
            let Faults {
                slip, step, leap, ..
            } = self.setup.faults;
            // A call that is late by more than its span, when a clock steps back into that, is outside of what is promised.
            let steps = slip + step + leap > 0;
            self.rng
                .random_range(0..if steps { most.min(SPAN_MS) } else { most })
        } else {
            0
        }
    }

    /// A call that is on its way when its node dies is still executed. One that has no answer was executed, or its first
    /// operations, or nothing of it.
    pub(super) fn call(&mut self, node: usize, generation: u32, job: u64, ops: Vec<Op>) {
        let shop = self.shop_of(node);
        let now = self.store_now(shop);
        let number = ops.len();
        let executed = match self.times_out() {
            true => self.rng.random_range(0..=number),
            false => number + 1,
        };
        let told = self.tell.0.is_some().then(|| describe(&ops)).flatten();
        let executing = ops.into_iter().take(executed);
        let mut replies: Vec<_> = executing.map(|op| self.apply(shop, now, op)).collect();
        if executed <= number {
            let unknown = || Err(StoreError::Unknown("no answer in time".into()));
            replies = (0..number).map(|_| unknown()).collect();
        }
        if let Some(told) = told {
            let outcomes: Vec<&str> = replies.iter().map(outcome).collect();
            self.tell(|_| format!("node {node} {told}: {}", outcomes.join(", ")));
        }
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

    pub(super) fn times_out(&mut self) -> bool {
        let chance = self.setup.faults.time_out;
        self.faulty() && chance > 0 && self.rng.random_ratio(chance, 1000)
    }
}

/// What is worth telling of a call: what changes terms, lives or epochs.
fn describe(ops: &[Op]) -> Option<String> {
    let told = ops.iter().filter_map(|op| match op {
        Op::Swap(swap) => Some(format!("swaps {:?} to {:?}", swap.id, swap.terms)),
        Op::Adopt { record, .. } => Some(format!("adopts {record:?}")),
        _ => None,
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn outcome(reply: &Result<Reply, StoreError>) -> &'static str {
    match reply {
        Ok(_) => "done",
        Err(StoreError::Conflict) => "conflict",
        Err(StoreError::Guard) => "guarded",
        Err(StoreError::OutOfSpan) => "outside the span",
        Err(StoreError::Fenced(_)) => "fenced",
        Err(StoreError::Unknown(_)) => "no answer",
        Err(_) => "refused",
    }
}

// === impl Node ===

impl Node {
    /// What its own clock says.
    fn mono(&self, now: u64) -> u64 {
        let elapsed = (now - self.started) as i64;
        (elapsed + elapsed * self.drift_ppm / 1_000_000) as u64
    }

    /// The first moment of true time at which its own clock says `mono`.
    fn moment(&self, mono: u64) -> u64 {
        if mono == u64::MAX {
            return u64::MAX;
        }
        let rate = (1_000_000 + self.drift_ppm) as u64;
        self.started + (mono * 1_000_000).div_ceil(rate)
    }
}
