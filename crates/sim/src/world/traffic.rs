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

    pub(super) fn decide(
        &mut self,
        node: usize,
        decide: Decide,
        policy: &Arc<Policy>,
    ) -> Result<(), String> {
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
}
