//! The embedded store: exact, in process, forgotten when the process ends.
//!
//! [`Memory`] is the store as a value that is told the time, for the simulator; [`MemoryStore`] shares one with a
//! clock.

mod data;

use crate::Store;
use crate::op::*;
use apportion_core::fence::{Fence, SPAN_MS};
use apportion_core::meter::{self, Bucket, Hold, Meter, Reading, Rule, Terms, Window};
use apportion_core::usage::{Counts, RETENTION_MS, period_start};
use apportion_core::{Actor, Life, Partition, Record, StoreMs};
use data::Data;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// The store as a value. It keeps no clock: each operation is told the time.
#[derive(Clone, Debug)]
pub struct Memory {
    fingerprint: String,
    state: Option<(u64, Vec<u8>)>,
    attached: Option<Life>,
    lease: Option<(u64, StoreMs)>,
    marks: BTreeMap<(Life, Actor), StoreMs>,
    partitions: Vec<(Option<Record>, Data)>,
}

/// A [`Memory`] with a clock, shared by the nodes of a region in one process.
#[derive(Clone)]
pub struct MemoryStore {
    memory: Arc<Mutex<Memory>>,
    clock: Arc<dyn Fn() -> StoreMs + Send + Sync>,
}

/// A meter settled to now, with what a decision needs of it.
enum Settled<'a> {
    Bucket(meter::BucketSettled<'a>),
    Window(meter::WindowSettled),
}

// === impl Memory ===

impl Memory {
    /// An empty store that says `fingerprint` of itself.
    pub fn new(fingerprint: &str) -> Self {
        Self {
            fingerprint: fingerprint.into(),
            state: None,
            attached: None,
            lease: None,
            marks: BTreeMap::new(),
            partitions: vec![(None, Data::default()); 256],
        }
    }

    /// The same data under another fingerprint: a restart from what was saved.
    #[must_use]
    pub fn restarted(&self, fingerprint: &str) -> Self {
        Self {
            fingerprint: fingerprint.into(),
            attached: None,
            lease: None,
            ..self.clone()
        }
    }

    pub fn apply(&mut self, now: StoreMs, op: Op) -> Result<Reply, StoreError> {
        match op {
            Op::Look => Ok(Reply::Looked(Looked {
                now,
                fingerprint: self.fingerprint.clone(),
                state: self.state.clone(),
            })),
            Op::PutState { expect, value } => {
                let version = self.state.as_ref().map_or(0, |(version, _)| *version);
                if version != expect {
                    return Err(StoreError::Conflict);
                }
                self.state = Some((version + 1, value));
                Ok(Reply::Put(version + 1))
            }
            Op::Attach { life, fingerprint } => {
                if fingerprint != self.fingerprint {
                    self.attached = None;
                    return Err(StoreError::LookAgain);
                }
                self.attached = Some(life);
                Ok(Reply::Done)
            }
            Op::Adopt {
                state_version,
                record,
            } => self.adopt(state_version, record),
            Op::Lease { holder, ttl_ms } => {
                let free = self
                    .lease
                    .is_none_or(|(by, until)| by == holder || until <= now);
                if free {
                    self.lease = Some((holder, now.plus(ttl_ms)));
                }
                Ok(Reply::Held(free))
            }
            Op::Mark {
                life,
                actor,
                through,
            } => {
                let mark = self.marks.entry((life, actor)).or_default();
                *mark = (*mark).max(through);
                Ok(Reply::Done)
            }
            Op::Marks { life } => {
                let marks = self.marks.iter().filter(|((l, _), _)| *l == life);
                Ok(Reply::Marks(
                    marks
                        .map(|((_, actor), through)| (actor.clone(), *through))
                        .collect(),
                ))
            }
            Op::Decide(decide) => {
                let data = self.fenced(decide.partition, &decide.fence, now)?;
                Ok(Reply::Decided(run_decide(data, &decide, now)))
            }
            Op::EndHolds(end) => {
                let data = self.fenced(end.partition, &end.fence, now)?;
                Ok(Reply::Ended(run_end_holds(data, &end, now)))
            }
            Op::Read {
                fence,
                partition,
                ids,
            } => {
                let data = self.fenced(partition, &fence, now)?;
                let snapshots = ids.iter().map(|id| data.snapshot(id)).collect();
                Ok(Reply::Snapshots { now, snapshots })
            }
            Op::Swap(swap) => {
                let data = self.fenced(swap.id.key.partition(), &swap.fence, now)?;
                run_swap(data, &swap, now).map(Reply::Swapped)
            }
            Op::Traded {
                fence,
                partition,
                limit,
            } => Ok(Reply::Traded(
                self.fenced(partition, &fence, now)?.traded_ids(limit),
            )),
            Op::Feed {
                fence,
                partition,
                reader,
                limit,
            } => Ok(Reply::Feed(
                self.fenced(partition, &fence, now)?
                    .feed(now, &reader, limit),
            )),
            Op::Ack {
                fence,
                partition,
                reader,
                seq,
            } => {
                self.fenced(partition, &fence, now)?.ack(reader, seq);
                Ok(Reply::Done)
            }
            Op::Merge {
                fence,
                partition,
                slots,
            } => {
                let data = self.fenced(partition, &fence, now)?;
                for slot in slots {
                    data.merge(slot);
                }
                Ok(Reply::Done)
            }
            Op::Usage {
                fence,
                partition,
                key,
                starts,
            } => {
                let data = self.fenced(partition, &fence, now)?;
                let periods = starts
                    .iter()
                    .map(|start| data.usage(&key, *start))
                    .collect();
                Ok(Reply::Usage { now, periods })
            }
        }
    }

    fn adopt(&mut self, state_version: u64, record: Record) -> Result<Reply, StoreError> {
        if self.state.as_ref().map(|(version, _)| *version) != Some(state_version) {
            return Err(StoreError::Conflict);
        }
        for (held, data) in &mut self.partitions {
            // Keys are named by their life, so those of another one are out of sight.
            if held.is_none_or(|h| h.life != record.life) {
                *data = Data::default();
            }
            *held = Some(record);
        }
        Ok(Reply::Done)
    }

    /// The data of a partition, without what has expired, if its record is the one that the caller believes.
    fn fenced(
        &mut self,
        partition: Partition,
        fence: &Fence,
        now: StoreMs,
    ) -> Result<&mut Data, StoreError> {
        if self.attached != Some(fence.record.life) {
            return Err(StoreError::LookAgain);
        }
        let (record, data) = &mut self.partitions[usize::from(partition.0)];
        if *record != Some(fence.record) {
            return Err(StoreError::Fenced(*record));
        }
        data.expire(now);
        Ok(data)
    }
}

fn settle<'a>(
    rule: &'a Rule,
    stored: Option<&Meter>,
    terms: Option<&'a Terms>,
    label: Option<u64>,
    fence: &Fence,
    now: StoreMs,
) -> Settled<'a> {
    match rule {
        Rule::Bucket { .. } => {
            let stored = match stored {
                Some(Meter::Bucket(bucket)) => Some(bucket),
                _ => None,
            };
            Settled::Bucket(Bucket::settle(stored, rule, terms, fence, now))
        }
        Rule::Window { per_ms, .. } => {
            let stored = match stored {
                Some(Meter::Window(window)) => Some(window),
                _ => None,
            };
            let label = label.unwrap_or_else(|| meter::label_at(now, *per_ms));
            Settled::Window(Window::settle(stored, label, rule, terms, fence, now))
        }
    }
}

impl Settled<'_> {
    fn reading(&self) -> Reading {
        match self {
            Self::Bucket(s) => s.reading,
            Self::Window(s) => s.reading,
        }
    }

    fn can_hold(&self) -> bool {
        match self {
            Self::Bucket(s) => s.can_hold(),
            Self::Window(s) => s.can_hold(),
        }
    }

    /// How long to keep the meter; `None`: as long as it was to be kept before.
    fn ttl_ms(&self, now: StoreMs) -> Option<u64> {
        match self {
            Self::Bucket(s) => s.inside.then(|| s.ttl_ms(now)),
            Self::Window(s) => s.inside.then(|| s.ttl_ms(now)),
        }
    }

    fn charge(&mut self, cost: u64, hold: Option<Hold>) {
        match self {
            Self::Bucket(s) => s.charge(cost, hold),
            Self::Window(s) => s.charge(cost, hold),
        }
    }

    fn end_hold(&mut self, id: u64, release: bool) -> bool {
        match self {
            Self::Bucket(s) => s.end_hold(id, release),
            Self::Window(s) => s.end_hold(id, release),
        }
    }

    fn into_meter(self) -> Meter {
        match self {
            Self::Bucket(s) => Meter::Bucket(s.bucket),
            Self::Window(s) => Meter::Window(s.window),
        }
    }
}

fn meter_id(charge: &Charge, at: StoreMs) -> MeterId {
    let label = match &charge.rule {
        Rule::Window { per_ms, .. } => Some(meter::label_at(at, *per_ms)),
        Rule::Bucket { .. } => None,
    };
    MeterId {
        key: charge.key.clone(),
        label,
    }
}

fn run_decide(data: &mut Data, decide: &Decide, now: StoreMs) -> Decided {
    let ids: Vec<MeterId> = decide.charges.iter().map(|c| meter_id(c, now)).collect();
    let terms: Vec<Option<Terms>> = ids.iter().map(|id| data.terms(id)).collect();
    let mut settled: Vec<Settled<'_>> = Vec::with_capacity(ids.len());
    let mut admitted = true;
    let mut fits = Vec::with_capacity(ids.len());
    for ((charge, id), terms) in decide.charges.iter().zip(&ids).zip(&terms) {
        let s = settle(
            &charge.rule,
            data.meter(id),
            terms.as_ref(),
            id.label,
            &decide.fence,
            now,
        );
        let fit = s.reading().admits(charge.cost)
            && (!matches!(decide.mode, Mode::Hold { .. }) || s.can_hold());
        admitted &= fit || charge.shadow;
        fits.push(fit);
        settled.push(s);
    }
    let peek = decide.mode == Mode::Peek;
    let hold = match decide.mode {
        Mode::Hold { id, ttl_ms } => Some((id, now.plus(ttl_ms))),
        Mode::Peek | Mode::Charge => None,
    };
    let mut answers = Vec::with_capacity(ids.len());
    for (((charge, id), mut s), fit) in decide.charges.iter().zip(ids).zip(settled).zip(fits) {
        let charged = admitted && fit && !peek;
        if charged {
            let hold = hold.map(|(id, until)| Hold {
                id,
                units: charge.cost,
                until,
            });
            s.charge(charge.cost, hold);
        }
        answers.push(Answer {
            fits: fit,
            reading: s.reading(),
        });
        if charged {
            let ttl_ms = s.ttl_ms(now);
            data.put_meter(id.clone(), s.into_meter(), now, ttl_ms);
        }
        if !peek {
            data.count_attempts(&id, charge.units, !fit, now);
        }
        if let Some(period_ms) = charge.usage_ms.filter(|_| charged || (!fit && !peek)) {
            let counts = match charged {
                true => Counts {
                    admitted: charge.units,
                    ..Counts::default()
                },
                false => Counts {
                    refused: charge.units,
                    ..Counts::default()
                },
            };
            let start = period_start(now, period_ms);
            data.count_usage(
                &charge.key,
                start,
                start.plus(period_ms + RETENTION_MS),
                counts,
            );
        }
    }
    Decided {
        now,
        admitted,
        answers,
    }
}

fn run_end_holds(data: &mut Data, end: &EndHolds, now: StoreMs) -> Vec<bool> {
    let mut ended = Vec::with_capacity(end.charges.len());
    for charge in &end.charges {
        let id = meter_id(charge, end.laid_at);
        if data.meter(&id).is_none() {
            ended.push(false);
            continue;
        }
        let terms = data.terms(&id);
        let mut s = settle(
            &charge.rule,
            data.meter(&id),
            terms.as_ref(),
            id.label,
            &end.fence,
            now,
        );
        let found = s.end_hold(end.id, end.release);
        if found {
            let ttl_ms = s.ttl_ms(now);
            data.put_meter(id, s.into_meter(), now, ttl_ms);
            if let Some(period_ms) = charge.usage_ms.filter(|_| end.release) {
                let start = period_start(end.laid_at, period_ms);
                let counts = Counts {
                    refunded: charge.units,
                    ..Counts::default()
                };
                data.count_usage(
                    &charge.key,
                    start,
                    start.plus(period_ms + RETENTION_MS),
                    counts,
                );
            }
        }
        ended.push(found);
    }
    ended
}

fn run_swap(data: &mut Data, swap: &Swap, now: StoreMs) -> Result<u64, StoreError> {
    if !swap.fence.span.contains(now) {
        return Err(StoreError::OutOfSpan);
    }
    if data.version(&swap.id) != swap.expect {
        return Err(StoreError::Conflict);
    }
    let old = data.terms(&swap.id);
    let s = settle(
        &swap.rule,
        data.meter(&swap.id),
        old.as_ref(),
        swap.id.label,
        &swap.fence,
        now,
    );
    match (s, &swap.terms) {
        (Settled::Bucket(s), Terms::Bucket { schedule, .. }) => {
            let cap = schedule.at(now).cap;
            let Reading::Bucket { held, .. } = s.reading else {
                return Err(StoreError::Guard);
            };
            if held > cap {
                return Err(StoreError::Guard);
            }
            let mut bucket = s.bucket;
            bucket.tokens = bucket.tokens.min(cap - held);
            let ttl_ms = bucket.ttl_ms(schedule, now);
            data.put_meter(swap.id.clone(), Meter::Bucket(bucket), now, Some(ttl_ms));
        }
        (Settled::Window(s), Terms::Window { delta }) => {
            let base = i64::try_from(swap.rule.window_base(s.label)).unwrap_or(i64::MAX);
            let rights = base.saturating_add(*delta);
            let closed = s.closed;
            if closed
                || u64::try_from(rights).is_ok_and(|rights| s.window.used > rights)
                || rights < 0
            {
                return Err(StoreError::Guard);
            }
        }
        _ => {
            return Err(StoreError::Rejected(
                "the terms aren't of the rule's algorithm".into(),
            ));
        }
    }
    Ok(data.put_traded(swap, swap.keep_until.plus(SPAN_MS)))
}

// === impl MemoryStore ===

impl MemoryStore {
    pub fn new(memory: Memory, clock: impl Fn() -> StoreMs + Send + Sync + 'static) -> Self {
        Self {
            memory: Arc::new(Mutex::new(memory)),
            clock: Arc::new(clock),
        }
    }
}

impl Store for MemoryStore {
    async fn call(&self, ops: Vec<Op>) -> Vec<Result<Reply, StoreError>> {
        let mut memory = self
            .memory
            .lock()
            .expect("no operation panics while it holds the store");
        let now = (self.clock)();
        ops.into_iter().map(|op| memory.apply(now, op)).collect()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

#[cfg(test)]
mod tests;
