//! Nodes that are restarted with the next file, and regions that join and go.

use super::*;

/// The last file is out by then.
const OUT_BY_MS: u64 = 16_000;
/// All regions follow within this, but for one that may be late.
const SPREAD_MS: u64 = 5_000;
const LATE_MS: u64 = 14_000;

impl World {
    /// Draws when each node is restarted with each of the files.
    pub(super) fn plan_rollouts(&mut self) {
        for file in 1..self.files.len() {
            let at = OUT_BY_MS * file as u64 / self.files.len() as u64;
            let at = at + self.rng.random_range(0..SPREAD_MS);
            let late = self.rng.random_range(0..self.setup.regions * 3);
            for shop in 0..self.setup.regions {
                let mut at = at + self.rng.random_range(0..SPREAD_MS);
                if shop == late {
                    at += self.rng.random_range(0..LATE_MS);
                }
                // A region that goes isn't forgotten.
                let goes = !self.files[file].regions.contains(&self.shops[shop].region);
                if !goes && file + 1 < self.files.len() && self.rng.random_ratio(1, 6) {
                    continue;
                }
                for node in shop * self.setup.nodes..(shop + 1) * self.setup.nodes {
                    let at = at + self.rng.random_range(0..4_000);
                    self.at(at, Event::NextFile { node, file });
                }
                if goes {
                    let off = at + self.rng.random_range(4_000..12_000);
                    self.at(off, Event::Off { shop });
                }
            }
        }
    }

    pub(super) fn next_file(&mut self, node: usize, file: usize) {
        if self.nodes[node].file >= file {
            return;
        }
        self.nodes[node].file = file;
        self.stop(node);
        self.tell(|_| format!("node {node} gets file {file}"));
        let at = self.now + self.rng.random_range(100..2_000);
        self.at(at, Event::Restart { node });
    }

    /// A region's store is off for good, and all others are told so by somebody.
    pub(super) fn turn_off(&mut self, shop: usize) {
        if !self.shops[shop].off {
            self.shops[shop].off = true;
            self.outcome.losses += 1;
        }
        let region = self.shops[shop].region.clone();
        self.tell(|_| format!("the store of {shop} is off"));
        let node = self.rng.random_range(0..self.nodes.len());
        let generation = self.nodes[node].generation;
        let is_up = self.nodes[node].regime.is_some() && self.nodes[node].paused_until <= self.now;
        if is_up && self.shop_of(node) != shop {
            self.outcome.retired += 1;
            self.tell(|_| format!("node {node} is told that {region} is off for good"));
            self.step(node, generation, Input::Retire(region));
        }
        // Until it is done: whoever was told may have died.
        let done = (0..self.setup.regions)
            .filter(|s| !self.shops[*s].off)
            .all(|s| {
                let regime = self.nodes[s * self.setup.nodes].regime.as_ref();
                regime.is_some_and(|r| {
                    r.state
                        .rollout
                        .retired
                        .contains_key(&self.shops[shop].region)
                })
            });
        if !done {
            self.at(self.now + 2_000, Event::Off { shop });
        }
    }

    /// Whether every region that is left goes by the last file alone.
    pub(super) fn is_rolled_out(&self) -> bool {
        let Some(last) = self.files.last().map(|file| file.revision) else {
            return false;
        };
        self.files.len() > 1
            && (0..self.setup.regions)
                .filter(|shop| !self.shops[*shop].off)
                .all(|shop| {
                    let regime = self.nodes[shop * self.setup.nodes].regime.as_ref();
                    regime.is_some_and(|r| {
                        let rollout = &r.state.rollout;
                        let told = rollout.told(StoreMs(0), StoreMs(0));
                        let newest = rollout.newest().map(|newest| newest.number);
                        // No day ends within a run.
                        let begun = rollout.begun.len() + 1 >= self.files[0].policies.len();
                        (!rollout.unsure || begun) && newest == Some(last) && told.behind.len() <= 1
                    })
                })
    }

    /// The policies that a node is started with.
    pub(super) fn file_of(&self, node: usize) -> &Arc<PolicySet> {
        self.files
            .get(self.nodes[node].file)
            .unwrap_or(&self.policies)
    }

    /// A policy as it is in a node's file.
    pub(super) fn as_known_to(&self, node: usize, policy: &Arc<Policy>) -> Arc<Policy> {
        known_in(&self.files, self.nodes[node].file, policy)
    }

    pub(super) fn note_file(&mut self, node: usize) {
        if let Some(file) = self.files.get(self.nodes[node].file) {
            self.plans.in_use(file, self.now);
        }
    }

    /// Which files' limits are gone by now.
    pub(super) fn note_files(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].machine.is_some() {
                self.note_file(node);
            }
        }
    }

    pub(super) fn note_decided(&mut self, policy: &Policy) {
        if !self.files.is_empty() {
            self.plans.decided_under(policy, self.now);
        }
    }
}

pub(super) fn known_in(files: &[Arc<PolicySet>], file: usize, policy: &Arc<Policy>) -> Arc<Policy> {
    let known = files.get(file).and_then(|file| file.policy(&policy.name));
    Arc::clone(known.unwrap_or(policy))
}
