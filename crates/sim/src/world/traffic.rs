//! Who asks for what, where and when, and what a node does about it.

use super::*;

impl World {
    pub(super) fn request(&mut self) {
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
        let file = &self.files[self.nodes[node].file];
        let Some(policy) = file
            .policies
            .iter()
            .find(|p| p.id() == policy.id())
            .cloned()
        else {
            return;
        };
        let limits = self.plans.at(&policy, &key, here, self.now);
        let is_bucket = policy.algorithm.is_bucket();
        let mode = if self.rng.random_ratio(1, 10) {
            Mode::Hold { ttl_ms: 2_000 }
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
            return Ok(());
        }
        let now = self.store_now(shop);
        let charge = decide.charges[0].clone();
        let generation = self.nodes[node].generation;
        match self.shops[shop].memory.apply(now, Op::Decide(decide)) {
            Ok(Reply::Decided(decided)) => {
                let reading = decided.answers[0].reading;
                let label = match reading {
                    Reading::Window { label, .. } => Some(label),
                    Reading::Bucket { .. } | Reading::Units { .. } => None,
                };
                if decided.admitted {
                    self.outcome.admitted += charge.units;
                    let flipped = self.is_flipped();
                    let sums = &mut self.outcome.by_region[shop];
                    *(if flipped { &mut sums.1 } else { &mut sums.0 }) += charge.units;
                    let clocks: Vec<StoreMs> = (0..self.shops.len())
                        .map(|shop| self.store_now(shop))
                        .collect();
                    // Its node may be gone by now.
                    if self.setup.rollouts.files > 0 {
                        self.plans.decided_under(policy, self.now);
                    }
                    let admission = Admission {
                        policy,
                        key: &charge.key,
                        label,
                        units: charge.units,
                        at_ms: self.now,
                        shop,
                        clocks: &clocks,
                    };
                    self.audit.admit(&admission, &self.plans)?;
                } else {
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
                self.outcome.undecided += 1;
                self.step(node, generation, Input::LookAgain);
            }
            _ => self.outcome.undecided += 1,
        }
        Ok(())
    }
}
