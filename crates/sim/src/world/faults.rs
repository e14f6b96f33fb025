//! What goes wrong, drawn once a simulated second.

use super::*;

impl World {
    pub(super) fn faulty(&self) -> bool {
        self.now < self.setup.faults_until_ms
    }

    pub(super) fn second(&mut self) {
        self.at(self.now + 1_000, Event::Second);
        if self.setup.rollouts.files > 0 {
            self.note_files();
        }
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
}
