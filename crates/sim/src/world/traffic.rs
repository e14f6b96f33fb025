//! Who asks for what, where and when, and what a node does about it.

use super::*;
use apportion_core::fence::HOLD_MAX_MS;
use apportion_core::policy::Tolerance;

impl World {
    pub(super) fn request(&mut self) {
        if self.now + self.quiet_ms > self.setup.duration_ms {
            return;
        }
        let gap = 1_000 / self.requests_per_s.max(1);
        let at = self.now + self.rng.random_range(0..=gap * 2);
        self.at(at, Event::Request);
        if self.now < self.lull_until {
            return;
        }
        if self.rng.random_ratio(1, 100) {
            let which = self.rng.random_range(0..=self.setup.regions);
            self.busy = (which < self.setup.regions).then_some(which);
        }
        let here = if self.setup.one_sided {
            usize::from(self.is_flipped())
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
        let units = if self.rng.random_ratio(1, 2) {
            self.rng.random_range(1..=6)
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
        let policy = self.as_known_to(node, &policy);
        let limits = self.plans.at(&policy, &key, here, self.now);
        let is_bucket = policy.algorithm.is_bucket();
        let mode = if self.rng.random_ratio(1, 10) {
            let ttl_ms = self.rng.random_range(500..HOLD_MAX_MS);
            Mode::Hold { ttl_ms }
        } else {
            Mode::Charge
        };
        let charge = Charge {
            key: key.clone(),
            rule: Arc::new(regime.rule(&policy, limits)),
            cost: if is_bucket { units * MICRO } else { units },
            units,
            reserve_ppm: 0,
            denied: 0,
            usage_ms: policy.usage_ms,
            shadow: false,
            newcomers_max: None,
            member: None,
        };
        let decide = Decide {
            fence: regime.fence(),
            partition: key.partition(),
            id: self.rng.random_range(0..1 << 53),
            mode,
            charges: vec![charge],
            remember: None,
        };
        // A node may stand still between its thought and its call.
        let at = self.now + self.rng.random_range(0..4) + self.lateness();
        self.at(
            at,
            Event::Decided {
                node,
                decide: Box::new(decide),
                policy,
            },
        );
    }

    fn is_flipped(&self) -> bool {
        self.setup.flip_at_ms.is_some_and(|at| self.now >= at)
    }

    pub(super) fn decide(
        &mut self,
        node: usize,
        decide: Decide,
        policy: &Arc<Policy>,
    ) -> Result<(), String> {
        let shop = self.shop_of(node);
        if self.shops[shop].off {
            self.outcome.undecided += 1;
            return Ok(());
        }
        self.note_decided(policy);
        let now = self.store_now(shop);
        let charge = decide.charges[0].clone();
        let (record, inside) = (decide.fence.record, decide.fence.span.contains(now));
        let hold_ms = match decide.mode {
            Mode::Hold { ttl_ms } => ttl_ms,
            Mode::Peek | Mode::Charge | Mode::Note => 0,
        };
        let (id, mode) = (decide.id, decide.mode);
        let generation = self.nodes[node].generation;
        let is_lost = self.times_out();
        if is_lost && self.rng.random_ratio(1, 2) {
            self.outcome.undecided += 1;
            return Ok(());
        }
        match self.shops[shop].memory.apply(now, Op::Decide(decide)) {
            Ok(Reply::Decided(decided)) => {
                let reading = decided.answers[0].reading;
                let label = match reading {
                    Reading::Window { label, .. } => Some(label),
                    Reading::Bucket { .. } | Reading::Units { .. } => None,
                };
                self.note_asked(shop, &charge, decided.admitted);
                let seen = Seen {
                    policy,
                    key: &charge.key,
                    label,
                    record,
                    shop,
                    units: charge.units,
                    at_ms: self.now,
                    inside,
                    hold_ms,
                };
                self.knowing.overdrawn += decided.answers[0].overdrawn / charge.rule.unit();
                if !decided.admitted && self.outcome.steps == 0 {
                    self.knowing.refuse(&seen)?;
                }
                if decided.admitted {
                    let scripted = self
                        .setup
                        .stated
                        .as_ref()
                        .is_some_and(|s| !s.faults.is_empty());
                    let well = self.setup.faults.is_none() && !scripted;
                    self.knowing.admit(&seen, well)?;
                    self.outcome.admitted += charge.units;
                    let flipped = self.is_flipped();
                    let sums = &mut self.outcome.by_region[shop];
                    *(if flipped { &mut sums.1 } else { &mut sums.0 }) += charge.units;
                    let clocks: Vec<StoreMs> = (0..self.shops.len())
                        .map(|shop| self.store_now(shop))
                        .collect();
                    let admission = Admission {
                        policy: Arc::clone(policy),
                        key: charge.key.clone(),
                        label,
                        units: charge.units,
                        at_ms: self.now,
                        shop,
                        clocks,
                    };
                    self.tell(|_| {
                        let (key, units) = (charge.key.as_str(), charge.units);
                        format!("region {shop} admits {units} of {key}, {mode:?}: {reading:?}")
                    });
                    self.audit.admit(&admission, &self.plans)?;
                    // What never-under knows from outside is of holds that run out.
                    let is_looked_at = policy.tolerance == Tolerance::NeverUnder;
                    if let Mode::Hold { .. } = mode
                        && !is_lost
                        && !is_looked_at
                    {
                        let hold = Held {
                            id,
                            laid_at: decided.now,
                            release: self.rng.random_ratio(1, 2),
                            charge,
                            admission,
                        };
                        let at = self.now + self.rng.random_range(0..HOLD_MAX_MS);
                        let hold = Box::new(hold);
                        self.at(at, Event::EndHold { node, hold });
                    }
                } else if !is_lost {
                    let pressure = Pressure {
                        policy: Arc::clone(policy),
                        key: charge.key,
                        label,
                        limits: charge.rule.limits,
                        refused: true,
                    };
                    self.step(node, generation, Input::Pressure(pressure));
                }
            }
            Err(StoreError::Fenced(_) | StoreError::LookAgain) => {
                self.note_asked(shop, &charge, false);
                self.outcome.undecided += 1;
                self.step(node, generation, Input::LookAgain);
            }
            _ => {
                self.note_asked(shop, &charge, false);
                self.outcome.undecided += 1;
            }
        }
        Ok(())
    }

    /// The node settles what it held, if it still can.
    pub(super) fn end_hold(&mut self, node: usize, hold: Held) {
        let shop = self.shop_of(node);
        if self.shops[shop].off {
            return;
        }
        let now = self.store_now(shop);
        let n = &self.nodes[node];
        let Some(regime) = n.regime.as_ref().filter(|_| n.paused_until <= self.now) else {
            return;
        };
        let end = EndHolds {
            fence: regime.fence(),
            partition: hold.charge.key.partition(),
            id: hold.id,
            laid_at: hold.laid_at,
            release: hold.release,
            charges: vec![hold.charge],
        };
        let ended = self.shops[shop].memory.apply(now, Op::EndHolds(end));
        if hold.release && ended == Ok(Reply::Ended(vec![true])) {
            self.audit.put_back(&hold.admission);
            // What comes back doesn't flow in.
            self.levels.retain(|(_, of), _| *of != shop);
            self.tell(|_| {
                let Admission { key, units, .. } = &hold.admission;
                format!("region {shop} puts back {units} of {}", key.as_str())
            });
        }
    }
}
