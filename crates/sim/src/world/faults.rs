//! What goes wrong, drawn once a simulated second.

use super::*;
use apportion_core::lives::RegionState;

/// A store's clock, and that of a machine that takes its place, is never farther than this from where it began, but for
/// leaps: what lives allow for (`SKEW_MS`) is twice that.
const SWAY_MS: i64 = 30_000;
const HOUR_MS: i64 = 3_600_000;

impl World {
    pub(super) fn faulty(&self) -> bool {
        self.now < self.setup.faults_until_ms
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_ratio(per_mille.min(1000), 1000)
    }

    pub(super) fn second(&mut self) {
        self.at(self.now + 1_000, Event::Second);
        if !self.faulty() {
            self.cuts.clear();
            self.lull_until = 0;
            return;
        }
        self.fail_network();
        self.fail_nodes();
        self.fail_stores();
        self.fail_clocks();
        if self.chance(self.setup.faults.lull) {
            let most = if self.rng.random_ratio(1, 2) {
                5_000
            } else {
                40_000
            };
            self.lull_until = self.now + self.rng.random_range(1_000..most);
            self.tell(|w| format!("nobody asks until {}", w.lull_until));
        }
    }

    fn fail_network(&mut self) {
        let (faults, regions) = (self.setup.faults, self.setup.regions);
        if self.chance(faults.cut) {
            let a = self.rng.random_range(0..regions);
            let b = self.rng.random_range(0..regions);
            let until = self.now + self.rng.random_range(1_000..20_000);
            self.cuts.insert((a, b), until);
            let both = self.rng.random_ratio(1, 2);
            if both {
                self.cuts.insert((b, a), until);
            }
            self.tell(|_| format!("cut from {a} to {b}, both ways: {both}, until {until}"));
        }
        if self.chance(faults.isolate) {
            let a = self.rng.random_range(0..regions);
            let until = self.now + self.rng.random_range(2_000..45_000);
            for b in 0..regions {
                self.cuts.insert((a, b), until);
                self.cuts.insert((b, a), until);
            }
            self.tell(|_| format!("region {a} is cut off until {until}"));
        }
    }

    fn fail_nodes(&mut self) {
        let faults = self.setup.faults;
        let node = self.rng.random_range(0..self.nodes.len());
        let is_up = self.nodes[node].machine.is_some();
        if is_up && self.chance(faults.crash) {
            self.stop(node);
            let at = self.now + self.rng.random_range(100..8_000);
            self.at(at, Event::Restart { node });
        }
        if self.chance(faults.pause) {
            let until = self.now + self.rng.random_range(100..12_000);
            self.nodes[node].paused_until = until;
            self.tell(|_| format!("node {node} stands still until {until}"));
        }
        if self.chance(faults.restart) {
            let shop = self.rng.random_range(0..self.setup.regions);
            let gap_ms = *[0, 500, 2_500].choose(&mut self.rng).expect("choices");
            let nodes = shop * self.setup.nodes..(shop + 1) * self.setup.nodes;
            for (i, node) in nodes.enumerate() {
                if self.nodes[node].machine.is_none() {
                    continue;
                }
                let stop = self.now + 1 + i as u64 * gap_ms;
                self.at(stop, Event::Stop { node });
                let start = stop + self.rng.random_range(100..2_000);
                self.at(start, Event::Restart { node });
            }
        }
    }

    fn fail_stores(&mut self) {
        let (faults, regions) = (self.setup.faults, self.setup.regions);
        let shop = self.rng.random_range(0..regions);
        if faults.roll_back > 0 && self.rng.random_ratio(1, 5) {
            self.shops[shop].snapshot = Some(self.shops[shop].memory.clone());
        }
        let is_cut_off = (0..regions).all(|other| other == shop || self.is_cut(shop, other));
        let lose = match is_cut_off {
            true => faults.lose_store.max(faults.lose_isolated),
            false => faults.lose_store,
        };
        let fingerprint = format!("{}-{}", self.shops[shop].region, self.outcome.losses + 1);
        if self.chance(lose) {
            self.replace(shop, Memory::new(&fingerprint), "empty");
        } else if self.chance(faults.roll_back) {
            // As it was when it stopped, or a while before.
            let kept = self.rng.random_ratio(1, 3);
            let before = self.shops[shop].snapshot.as_ref().filter(|_| !kept);
            let memory = before.unwrap_or(&self.shops[shop].memory);
            let memory = memory.restarted(&fingerprint);
            self.replace(shop, memory, if kept { "as it was" } else { "older" });
        }
    }

    /// Another store takes the place of one, unless all who know of a life that has admitted would be lost with it: that
    /// is outside of what is promised.
    fn replace(&mut self, shop: usize, memory: Memory, what: &str) {
        let mut known: BTreeSet<Actor> = BTreeSet::new();
        for other in 0..self.shops.len() {
            let memory = match other == shop {
                true => &memory,
                false => &self.shops[other].memory,
            };
            let lives = state_of(memory)
                .map(|state| state.known)
                .unwrap_or_default();
            for (region, lives) in lives {
                known.extend(lives.into_iter().map(|life| Actor {
                    region: region.clone(),
                    life,
                }));
            }
        }
        if !self.admitting.is_subset(&known) {
            return;
        }
        self.outcome.losses += 1;
        self.shops[shop].memory = memory;
        self.tell(|_| format!("the store of {shop} is another one, {what}"));
    }

    fn fail_clocks(&mut self) {
        let faults = self.setup.faults;
        let shop = self.rng.random_range(0..self.setup.regions);
        let span = SPAN_MS as i64;
        let (range, sways) = if self.chance(faults.slip) {
            (-span..span, true)
        } else if self.chance(faults.step) {
            (-SWAY_MS..SWAY_MS, true)
        } else if self.chance(faults.leap) {
            (-HOUR_MS..HOUR_MS, false)
        } else {
            return;
        };
        let step = self.rng.random_range(range);
        let first = self.shops[shop].first_offset;
        let mut to = self.shops[shop].offset + step;
        if sways {
            to = to.clamp(first - SWAY_MS, first + SWAY_MS);
        }
        self.shops[shop].offset = to;
        self.outcome.steps += 1;
        // Steps that nobody can see are covered by the audit's allowance; larger ones are caught.
        self.audit.step();
        // Before any node has seen it.
        self.at(self.now + 1, Event::WeighOnce);
        self.tell(|w| {
            format!(
                "the clock of {shop} steps by {step} ms, to {:?}",
                w.store_now(shop)
            )
        });
    }
}

/// What a store has on record of its region.
fn state_of(memory: &Memory) -> Option<RegionState> {
    let (_, bytes) = memory.state()?;
    RegionState::from_bytes(bytes).ok()
}
