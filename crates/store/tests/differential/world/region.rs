//! Operations on a region's own state: lives, epochs, the lease, marks. And a look at everything.

use super::*;

impl World {
    /// What isn't of a partition.
    pub(super) fn region(&mut self) {
        let op = match self.below(6) {
            0 => Op::Look,
            1 => Op::PutState {
                expect: match self.chance(70) {
                    true => self.state_version,
                    false => self.below(4),
                },
                value: (0..self.below(50)).map(|_| self.rng.random()).collect(),
            },
            2 | 3 => Op::Lease {
                holder: match self.chance(80) {
                    true => self.below(3),
                    false => u64::MAX,
                },
                ttl_ms: self.below(3_000),
            },
            4 => Op::Mark {
                life: self.record.life,
                actor: self.actor(),
                through: self.moment(),
            },
            _ => Op::Marks {
                life: self.record.life,
            },
        };
        if let Ok(Reply::Put(version)) = self.apply(op) {
            self.state_version = version;
        }
    }

    pub(super) fn new_rule(&mut self) {
        let key = self.key();
        let of = |policy: &str| POLICIES.iter().find(|(p, _)| *p == policy);
        let mut kind = of(key.policy_id()).unwrap().1;
        if self.chance(5) {
            kind = self.pick(&[Kind::Bucket, Kind::Log, Kind::Counter, Kind::Slots]);
        }
        let rule = self.rule(kind);
        self.put_rule(key, rule);
    }

    /// The cells of a counter are counted from the Unix epoch on: another length of them needs another version.
    pub(super) fn put_rule(&mut self, key: Key, mut rule: Rule) {
        if let Algorithm::SlidingWindow { .. } = rule.algorithm {
            rule.algorithm = *self.cells.entry(key.clone()).or_insert(rule.algorithm);
        }
        if let Algorithm::SlidingWindow { per_ms, buckets: 1 } = rule.algorithm {
            rule.limits.limit = rule.limits.limit.min(EXACT / per_ms);
        }
        self.rules.insert(key, Arc::new(rule));
    }

    pub(super) fn attach(&mut self) {
        let fingerprint = match self.chance(70) {
            true => self.fingerprint.clone(),
            false => "another".into(),
        };
        let life = self.record.life;
        let _ = self.apply(Op::Attach { life, fingerprint });
        if self.chance(80) {
            let fingerprint = self.fingerprint.clone();
            let _ = self.apply(Op::Attach { life, fingerprint });
        }
    }

    fn adopt(&mut self, record: Record) -> bool {
        let op = Op::PutState {
            expect: self.state_version,
            value: b"state".to_vec(),
        };
        if let Ok(Reply::Put(version)) = self.apply(op) {
            self.state_version = version;
        }
        let state_version = match self.chance(95) {
            true => self.state_version,
            false => self.below(3),
        };
        let op = Op::Adopt {
            state_version,
            record,
        };
        let adopted = self.apply(op) == Ok(Reply::Done);
        if adopted {
            self.record = record;
            self.epoch_began = self.now;
        }
        adopted
    }

    pub(super) fn new_epoch(&mut self) {
        let record = Record {
            epoch: Epoch(self.record.epoch.0 + 1),
            ..self.record
        };
        self.adopt(record);
    }

    pub(super) fn begin_if(&mut self, percent: u32) {
        if self.chance(percent) {
            self.record.life = Life::from_random(self.rng.random());
            self.begin();
        }
    }

    pub(super) fn begin(&mut self) {
        let life = self.record.life;
        let fingerprint = self.fingerprint.clone();
        let _ = self.apply(Op::Attach { life, fingerprint });
        while !self.adopt(self.record) {}
    }

    pub(super) fn look_at_everything(&mut self) {
        let mut fence = self.fence();
        fence.record = self.record;
        let partitions: BTreeSet<Partition> = self.rules.keys().map(Key::partition).collect();
        for partition in partitions {
            let of = |id: &&MeterId| id.key.partition() == partition;
            let ids = self.ids.iter().filter(of).cloned().collect();
            let reader = "nobody".to_string();
            let ops = [
                Op::Read {
                    fence,
                    partition,
                    ids,
                },
                Op::Feed {
                    fence,
                    partition,
                    reader,
                    limit: 10_000,
                },
                Op::Traded {
                    fence,
                    partition,
                    limit: 10_000,
                },
            ];
            for op in ops {
                let _ = self.apply(op);
            }
        }
        let keys: Vec<Key> = self.rules.keys().cloned().collect();
        for key in keys {
            let of = |(k, _): &&(Key, StoreMs)| *k == key;
            let starts = self.periods.iter().filter(of).map(|(_, s)| *s).collect();
            let partition = key.partition();
            let _ = self.apply(Op::Usage {
                fence,
                partition,
                key,
                starts,
            });
        }
        let life = self.record.life;
        let _ = self.apply(Op::Marks { life });
        let _ = self.apply(Op::Look);
    }
}
