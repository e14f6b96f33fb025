//! Operations on one partition, drawn at the edges of what was answered before.

use super::*;

impl World {
    pub(super) fn step(&mut self) {
        if self.chance(35) {
            self.pass_time();
        }
        match self.below(100) {
            0..29 => self.decide(),
            29..37 => self.batch(),
            37..47 => self.end_holds(),
            47..52 => self.hear(),
            52..63 => self.swap(),
            63..68 => self.read(),
            68..71 => self.feed(),
            71 => self.sweep(),
            72..75 => self.ack(),
            75..82 => self.merge(),
            82..85 => self.usage(),
            85..87 => self.traded(),
            87..93 => self.region(),
            93 => self.new_rule(),
            94 => self.fill(),
            95 if self.chance(50) => self.fill_with_members(),
            95 => self.fill_with_holds(),
            96 => self.new_epoch(),
            97 => self.begin_if(30),
            98 => self.attach(),
            _ => self.look_at_everything(),
        }
    }

    fn pass_time(&mut self) {
        let forward = match self.below(12) {
            0 | 1 => self.below(3),
            2 | 3 => self.below(100),
            4 | 5 => self.below(2_000),
            6 => self.below(10_000),
            7 => self.below(200_000),
            8 => match self.below(8) {
                0 => self.below(YEAR_MS),
                1 => self.below(2 * 86_400_000),
                _ => self.below(3_600_000),
            },
            9 | 10 => match self.tick.take() {
                Some(tick) if tick < 2 * YEAR_MS => (tick + self.below(3)).saturating_sub(1),
                _ => 1,
            },
            _ => {
                let back = match self.below(4) {
                    0 => self.below(100_000),
                    _ => self.below(3_000),
                };
                self.now = self.now.minus(back);
                return;
            }
        };
        self.now = self.now.plus(forward);
    }

    fn charges(&mut self, keys: &[Key], fence: Fence) -> Vec<Charge> {
        let mut charges: Vec<Charge> = Vec::new();
        for _ in 0..1 + self.below(4) {
            let key = keys.choose(&mut self.rng).unwrap().clone();
            if charges.iter().any(|c| c.key == key) {
                continue;
            }
            let rule = self.rule_of(&key);
            let member = rule.algorithm.is_bucket() && self.chance(25);
            charges.push(Charge {
                rule,
                key,
                cost: 0,
                units: match self.chance(90) {
                    true => self.below(1_000),
                    false => 0,
                },
                reserve_ppm: self.pick(&RESERVES_PPM),
                denied: match self.chance(15) {
                    true => self.below(1_000),
                    false => 0,
                },
                usage_ms: match self.chance(60) {
                    true => Some(self.pick(&USAGE_MS)),
                    false => None,
                },
                shadow: self.chance(10),
                newcomers_max: match self.chance(15) {
                    true => Some(self.below(4) as u32),
                    false => None,
                },
                member: member.then(|| self.member()),
            });
        }
        let peeked = self.apply(Op::Decide(Decide {
            fence,
            partition: keys[0].partition(),
            id: 0,
            mode: Mode::Peek,
            charges: charges.clone(),
            remember: None,
        }));
        if let Ok(Reply::Decided(decided)) = peeked {
            for (charge, answer) in charges.iter_mut().zip(decided.answers) {
                charge.cost = self.cost(&answer.reading, charge.reserve_ppm);
            }
        }
        charges
    }

    fn member(&mut self) -> Member {
        Member {
            name: self
                .pick(&["a", "b", "c%20", "a longer name than others have"])
                .into(),
            weight: self.pick(&[1, 1, 2, 3, 1_000_000]),
        }
    }

    fn mode(&mut self) -> Mode {
        match self.below(12) {
            0 => Mode::Peek,
            1 => Mode::Note,
            2..7 => Mode::Charge,
            _ => Mode::Hold {
                ttl_ms: match self.below(4) {
                    0 => self.below(3),
                    _ => self.below(5_001),
                },
            },
        }
    }

    /// Names one request, as the draw of 53 bits does; but several where no slot is among the charges, which Redis keeps
    /// by their ids.
    fn id(&mut self, charges: &[Charge]) -> u64 {
        let slots = |c: &Charge| matches!(c.rule.algorithm, Algorithm::Concurrency { .. });
        if self.chance(15) && !charges.iter().any(slots) {
            return self.below(6);
        }
        self.next_id += 1;
        match self.chance(70) {
            true => (1 << 53) - self.next_id,
            false => 1_000_000 + self.next_id,
        }
    }

    fn remember(&mut self) -> Option<Remember> {
        if self.chance(70) {
            return None;
        }
        Some(Remember {
            id: self.pick(&["r", "request 2", "\u{e9}{}\n", "x"]).into(),
            content: match self.chance(85) {
                true => 1,
                false => u128::MAX - u128::from(self.below(2)),
            },
            others: (0..self.below(20)).map(|_| self.rng.random()).collect(),
        })
    }

    fn decide(&mut self) {
        let fence = self.fence();
        self.decide_under(fence);
    }

    fn decide_under(&mut self, fence: Fence) {
        if self.chance(35) {
            return self.decide_plainly(fence);
        }
        let keys = self.subject();
        let charges = self.charges(&keys, fence);
        let decide = Decide {
            fence,
            partition: keys[0].partition(),
            id: self.id(&charges),
            mode: self.mode(),
            charges,
            remember: self.remember(),
        };
        self.run_decide(decide);
    }

    /// What most requests are: charges of buckets, and nothing beside.
    fn decide_plainly(&mut self, fence: Fence) {
        let keys = self.subject();
        let mut charges = self.charges(&keys, fence);
        charges.retain(|c| c.rule.algorithm.is_bucket());
        for charge in &mut charges {
            charge.member = None;
            charge.newcomers_max = None;
            charge.shadow = false;
            charge.denied = 0;
        }
        self.run_decide(Decide {
            fence,
            partition: keys[0].partition(),
            id: 0,
            mode: Mode::Charge,
            charges,
            remember: None,
        });
    }

    /// Much traffic on one meter: a log of more entries than are looked at together, many slots, a bucket in small steps.
    fn fill(&mut self) {
        let mut key = self.key();
        let logs = |(_, rule): &(&Key, &Arc<Rule>)| {
            matches!(rule.algorithm, Algorithm::SlidingLog { per_ms } if per_ms >= 1_000)
                && rule.limits.limit > 100
        };
        if self.chance(40)
            && let Some((log, _)) = self.rules.iter().find(logs)
        {
            key = log.clone();
        }
        let slots = |(_, rule): &(&Key, &Arc<Rule>)| {
            matches!(rule.algorithm, Algorithm::Concurrency { slot_ttl_ms } if slot_ttl_ms >= 100)
                && rule.limits.limit > 5
        };
        if self.chance(30)
            && let Some((slots, _)) = self.rules.iter().find(slots)
        {
            key = slots.clone();
        }
        let rule = Arc::clone(&self.rules[&key]);
        let unit = if rule.algorithm.is_bucket() { MICRO } else { 1 };
        let limit = rule.limits.limit.min(1 << 32) * unit;
        let hold = self.chance(40);
        // Nothing but traffic, so that a log gets long.
        let calm = self.chance(50);
        let least = match rule.algorithm {
            Algorithm::SlidingLog { .. } => 150,
            _ => 60,
        };
        for n in 0..least + self.below(100) {
            match self.tick.take() {
                _ if calm => self.now = self.now.plus(1),
                Some(tick) if tick < 5_000 && self.chance(40) => {
                    self.now = self.now.plus((tick + self.below(3)).saturating_sub(1));
                }
                _ if self.chance(8) => self.now = self.now.minus(self.below(20)),
                _ => self.now = self.now.plus(self.below(4)),
            }
            if !calm && self.chance(1) {
                self.new_epoch();
            }
            let mut fence = self.fence();
            fence.record = self.record;
            let cost = match self.below(12) {
                // At first it would take all that there is.
                0 if n > 40 => limit,
                1 if n > 80 => limit / 2,
                2 if unit > 1 => self.below(MICRO),
                _ => unit * (1 + self.below(3)),
            };
            let mode = match hold && self.chance(40) {
                true => Mode::Hold {
                    ttl_ms: self.below(60),
                },
                false => Mode::Charge,
            };
            let id = self.next_id;
            self.next_id += 1;
            self.run_decide(Decide {
                fence,
                partition: key.partition(),
                id,
                mode,
                charges: vec![Charge {
                    key: key.clone(),
                    rule: Arc::clone(&rule),
                    cost,
                    units: 1,
                    reserve_ppm: 0,
                    denied: 0,
                    usage_ms: None,
                    shadow: false,
                    newcomers_max: None,
                    member: None,
                }],
                remember: None,
            });
            if !calm && self.chance(20) {
                self.end_holds();
            }
        }
        self.read();
    }

    /// Requests of several subjects, which go in one call.
    fn batch(&mut self) {
        let mut fence = self.fence();
        for _ in 0..2 + self.below(12) {
            if self.chance(2) {
                fence = self.fence();
            }
            self.decide_under(fence);
        }
    }

    fn run_decide(&mut self, decide: Decide) {
        for charge in &decide.charges {
            let label = charge.rule.label(self.now);
            let key = charge.key.clone();
            self.ids.insert(MeterId { key, label });
            if let Some(period_ms) = charge.usage_ms {
                let start = period_start(self.now, period_ms);
                self.periods.insert((charge.key.clone(), start));
            }
        }
        let reply = self.apply(Op::Decide(decide.clone()));
        let Ok(Reply::Decided(decided)) = reply else {
            return;
        };
        for (charge, answer) in decide.charges.iter().zip(&decided.answers) {
            match answer.reading {
                Reading::Bucket {
                    spendable, flow, ..
                } if !answer.fits => {
                    self.tick = flow.time_for(charge.cost - spendable.min(charge.cost));
                }
                Reading::Units {
                    retry_ms: Some(ms), ..
                } if !answer.fits || self.chance(20) => self.tick = Some(ms),
                Reading::Units { reset_ms, .. } if self.chance(20) => self.tick = Some(reset_ms),
                _ => {}
            }
        }
        let slots = |c: &Charge| matches!(c.rule.algorithm, Algorithm::Concurrency { .. });
        let held = match decide.mode {
            Mode::Hold { .. } => true,
            Mode::Charge => decide.charges.iter().any(slots),
            Mode::Peek | Mode::Note => false,
        };
        if held && decided.admitted && decided.replayed.is_none() {
            self.holds.push(EndHolds {
                fence: decide.fence,
                partition: decide.partition,
                id: decide.id,
                laid_at: self.now,
                release: false,
                charges: decide.charges,
            });
        }
    }

    fn fill_with_holds(&mut self) {
        let keys = self.subject();
        let fence = self.fence();
        let mut charges = self.charges(&keys, fence);
        for charge in &mut charges {
            charge.cost = charge.cost.min(2);
        }
        for _ in 0..70 {
            self.next_id += 1;
            self.run_decide(Decide {
                fence,
                partition: keys[0].partition(),
                id: self.next_id,
                mode: Mode::Hold { ttl_ms: 5_000 },
                charges: charges.clone(),
                remember: None,
            });
        }
    }

    fn fill_with_members(&mut self) {
        let keys = self.subject();
        let fence = self.fence();
        let mut charges = self.charges(&keys, fence);
        charges.retain(|c| c.rule.algorithm.is_bucket());
        charges.truncate(1);
        let few = self.chance(70);
        for n in 0..70 {
            if few {
                self.now = self.now.plus(match self.chance(5) {
                    true => MEMBER_IDLE_MS,
                    false => self.below(40),
                });
                if self.chance(5) {
                    self.now = self.now.minus(self.below(1_000));
                }
            }
            let number = if few { self.below(5) as u32 } else { n };
            for charge in &mut charges {
                charge.cost = match few {
                    true => self.below(3 * MICRO),
                    false => charge.cost.min(MICRO),
                };
                charge.member = Some(Member {
                    name: format!("member {number}"),
                    weight: 1 + number % 3,
                });
            }
            let fence = match few {
                true => Fence {
                    record: self.record,
                    ..self.fence()
                },
                false => fence,
            };
            self.run_decide(Decide {
                fence,
                partition: keys[0].partition(),
                id: 0,
                mode: Mode::Charge,
                charges: charges.clone(),
                remember: None,
            });
        }
    }

    fn end_holds(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.holds.len());
        let mut end = match self.chance(70) {
            true => self.holds.swap_remove(at),
            false => self.holds[at].clone(),
        };
        end.fence = self.fence();
        end.release = self.chance(70);
        if self.chance(5) {
            end.laid_at = self.moment();
        }
        if self.chance(5) {
            end.id = self.below(6);
        }
        for charge in &mut end.charges {
            if self.chance(30) {
                charge.rule = self.rule_of(&charge.key);
            }
        }
        for charge in &end.charges {
            if let Some(period_ms) = charge.usage_ms {
                let start = period_start(end.laid_at, period_ms);
                self.periods.insert((charge.key.clone(), start));
            }
        }
        let _ = self.apply(Op::EndHolds(end));
    }

    fn swap(&mut self) {
        let key = self.key();
        let rule = self.rule_of(&key);
        let label = match (rule.label(self.now), self.below(20)) {
            (Some(label), n) => match n {
                0 => None,
                1 => Some(label.saturating_sub(1)),
                // Later than what is told or asked for, and early enough for Lua to count.
                2 if self.chance(20) => Some(label + 1_000_000 + self.below(2)),
                2..6 => Some(label + 1),
                _ => Some(label),
            },
            (None, 0) => Some(self.below(3)),
            (None, _) => None,
        };
        let id = MeterId { key, label };
        self.ids.insert(id.clone());
        let fence = self.fence();
        let read = self.apply(Op::Read {
            fence,
            partition: id.key.partition(),
            ids: vec![id.clone()],
        });
        let Ok(Reply::Snapshots { snapshots, .. }) = read else {
            return;
        };
        let traded = snapshots[0].traded.as_ref();
        let mut expect = traded.map_or(0, |t| t.version);
        let used = match &snapshots[0].meter {
            Some(meter) => match meter.state {
                State::Window { used } => used,
                _ => 0,
            },
            None => 0,
        };
        if self.chance(10) {
            expect = self.below(4);
        }
        let of_window = rule.label(self.now).is_some() != self.chance(2);
        let terms = match of_window {
            true => Terms::Window {
                delta: {
                    let base = label.map_or(0, |label| rule.window_base(label));
                    let exactly = used as i64 - base as i64;
                    match self.below(5) {
                        0 => exactly,
                        1 => exactly - 1,
                        2 => -(base as i64) - 1,
                        _ => exactly + self.below(20) as i64,
                    }
                },
            },
            false => {
                let steps = 1 + self.below(8);
                let shares = self.shares(steps);
                let least = shares.least();
                Terms::Loans {
                    epoch: match self.chance(90) {
                        true => self.record.epoch,
                        false => Epoch(self.below(4) as u32),
                    },
                    own_ppb: match self.chance(50) {
                        true => least,
                        false => self.below(least + 1),
                    },
                    shares,
                }
            }
        };
        let allotment = (0..self.below(40)).map(|_| self.rng.random()).collect();
        let keep_until = match self.below(10) {
            0 => self.now.minus(self.below(10_000)),
            1 | 2 => self.now.plus(self.below(1_000)),
            _ => self.now.plus(self.below(100_000_000)),
        };
        let _ = self.apply(Op::Swap(Swap {
            fence,
            id,
            rule,
            expect,
            terms,
            allotment,
            keep_until,
        }));
    }

    fn read(&mut self) {
        let partition = self.partition();
        let fence = self.fence();
        let of = |id: &&MeterId| id.key.partition() == partition;
        let ids = self.ids.iter().filter(of).cloned().collect();
        let _ = self.apply(Op::Read {
            fence,
            partition,
            ids,
        });
    }

    fn reader(&mut self) -> String {
        self.pick(&["eu", "us"]).into()
    }

    fn feed(&mut self) {
        let op = Op::Feed {
            fence: self.fence(),
            partition: self.partition(),
            reader: self.reader(),
            limit: self.pick(&[0, 1, 2, 5, 300]),
        };
        if let Ok(Reply::Feed(page)) = self.apply(op) {
            self.feed_seq = page.seq;
        }
    }

    fn sweep(&mut self) {
        let op = Op::Sweep {
            fence: self.fence(),
            readers: vec![self.reader(), "nobody".into()],
            traded_max: self.pick(&[0, 1, 5, 300]),
            feed_max: self.pick(&[0, 1, 5, 300]),
        };
        let _ = self.apply(op);
    }

    fn ack(&mut self) {
        let op = Op::Ack {
            fence: self.fence(),
            partition: self.partition(),
            reader: self.reader(),
            seq: match self.chance(80) {
                true => self.feed_seq,
                false => self.below(self.feed_seq + 3),
            },
        };
        let _ = self.apply(op);
    }

    fn merge(&mut self) {
        let fence = self.fence();
        let keys = self.subject();
        let mut slots = vec![];
        for _ in 0..1 + self.below(4) {
            let key = keys.choose(&mut self.rng).unwrap().clone();
            let period_ms = self.pick(&USAGE_MS);
            let period = period_start(self.moment(), period_ms);
            self.periods.insert((key.clone(), period));
            let nothing = self.chance(20);
            let mut count = || match self.below(10) {
                _ if nothing => 0,
                0 | 1 => 0,
                2 => 1 << 53,
                _ => self.below(10_000),
            };
            let counts = Counts {
                admitted: count(),
                refunded: count(),
                refused: count(),
            };
            let (mut key, mut period, mut actor) = (key, period, self.actor());
            if self.chance(30)
                && let Some(earlier) = self.merged.choose(&mut self.rng)
                && earlier.key.partition() == keys[0].partition()
            {
                (key, period) = (earlier.key.clone(), earlier.period);
                actor = earlier.slot.actor.clone();
            }
            let keep_until = match self.below(8) {
                0 => self.now.minus(self.below(100)),
                1..4 => self.now.plus(self.below(5_000)),
                _ => self.now.plus(self.below(5_000_000)),
            };
            let slot = Slot { actor, counts };
            slots.push(UsageSlot {
                key,
                period,
                keep_until,
                slot,
            });
            self.merged.extend(slots.last().cloned());
        }
        let partition = keys[0].partition();
        let _ = self.apply(Op::Merge {
            fence,
            partition,
            slots,
        });
    }

    /// Peers say what they admitted of keys that are decided here.
    fn hear(&mut self) {
        let fence = self.fence();
        let keys = self.subject();
        let partition = keys[0].partition();
        let told_keys: Vec<Key> = keys
            .iter()
            .filter(|key| {
                let rule = &self.rules[*key];
                rule.is_told() || !matches!(rule.algorithm, Algorithm::Concurrency { .. })
            })
            .cloned()
            .collect();
        let mut heard = vec![];
        for key in told_keys {
            for _ in 0..self.below(3) {
                let rule = self.rule_of(&key);
                let label = rule.label(self.now).map(|label| match self.below(8) {
                    0 => label.saturating_sub(1),
                    1 => label + 1,
                    _ => label,
                });
                let id = MeterId {
                    key: key.clone(),
                    label,
                };
                self.ids.insert(id.clone());
                let units = match self.below(12) {
                    0 => 0,
                    1 => 1 << 53,
                    2 => self.below(1 << 40),
                    _ => self.below(60),
                };
                let recent = match self.chance(70) {
                    true => units,
                    false => self.below(units + 1),
                };
                let began = match self.below(4) {
                    0 => StoreMs(1_000 + self.below(3)),
                    _ => StoreMs(1_000),
                };
                heard.push(Heard {
                    id,
                    rule,
                    actor: self.actor(),
                    told: Told {
                        began,
                        units,
                        recent,
                    },
                });
            }
        }
        let _ = self.apply(Op::Hear {
            fence,
            partition,
            heard,
        });
    }

    pub(super) fn actor(&mut self) -> Actor {
        Actor {
            region: Region::new(self.pick(&["us-east", "us"])),
            // As text, the second comes before the first.
            life: Life::from_random(self.pick(&[3, 61])),
        }
    }

    fn usage(&mut self) {
        let fence = self.fence();
        let key = self.key();
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

    fn traded(&mut self) {
        let op = Op::Traded {
            fence: self.fence(),
            partition: self.partition(),
            limit: self.pick(&[0, 1, 2, 5, 300]),
        };
        let _ = self.apply(op);
    }
}
