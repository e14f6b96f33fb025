//! The embedded store: exact, in process, forgotten when the process ends.
//!
//! [`Memory`] is the store as a value that is told the time, for the simulator; [`MemoryStore`] shares one with a
//! clock.

mod data;
mod expiring;
mod told;

use crate::Store;
use crate::op::*;
use apportion_core::fence::{Fence, SPAN_MS};
use apportion_core::meter::{
    Beside, Keep, Meter, Part, Pool, Reading, Rule, Settled, Terms, reserve,
};
use apportion_core::planted::{self, Bug};
use apportion_core::usage::{Counts, RETENTION_MS, period_start};
use apportion_core::{Actor, Life, Partition, Record, StoreMs};
use data::Data;
use expiring::Expiring;
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
    /// Written to all partitions at once, so that it stands here once.
    record: Option<Record>,
    /// Those that anything was asked of.
    partitions: BTreeMap<Partition, Data>,
    rest: Rest,
}

/// What a life has beside its partitions.
#[derive(Clone, Debug, Default)]
struct Rest {
    /// Requests that were admitted, by their names.
    requests: Expiring<String, (u128, Decided)>,
    /// New keys by policy and second.
    newcomers: Expiring<(String, u64), u32>,
}

/// A [`Memory`] with a clock, shared by the nodes of a region in one process.
#[derive(Clone)]
pub struct MemoryStore {
    memory: Arc<Mutex<Memory>>,
    clock: Arc<dyn Fn() -> StoreMs + Send + Sync>,
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
            record: None,
            partitions: BTreeMap::new(),
            rest: Rest::default(),
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

    /// The region's state, with its version.
    pub fn state(&self) -> Option<(u64, &[u8])> {
        let (version, bytes) = self.state.as_ref()?;
        Some((*version, bytes))
    }

    /// For tests: until when a meter is kept, as long as its partition isn't looked at.
    #[doc(hidden)]
    pub fn deadline(&self, id: &MeterId) -> Option<StoreMs> {
        self.partitions.get(&id.key.partition())?.deadline(id)
    }

    /// For the simulator: a meter and its terms as a call under `fence` would find them; `None` where it isn't let in.
    #[doc(hidden)]
    pub fn found(
        &mut self,
        fence: &Fence,
        id: &MeterId,
        now: StoreMs,
    ) -> Option<(Option<&Meter>, Option<Terms>)> {
        let (data, _) = self.fenced(id.key.partition(), fence, now).ok()?;
        Some((data.meter(id), data.terms(id)))
    }

    pub fn apply(&mut self, now: StoreMs, op: Op) -> Result<Reply, StoreError> {
        match op {
            Op::Look => Ok(Reply::Looked(Looked {
                now,
                fingerprint: self.fingerprint.clone(),
                replication: Replication::none(),
                overlap_ms: 0,
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
                let ends = now.plus(ttl_ms);
                // One that ends later than any that is taken now was taken by a clock that has stepped back since.
                let free = self
                    .lease
                    .is_none_or(|(by, until)| by == holder || until <= now || until > ends);
                if free {
                    self.lease = Some((holder, ends));
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
                let (data, rest) = self.fenced(decide.partition, &decide.fence, now)?;
                run_decide(data, rest, &decide, now).map(Reply::Decided)
            }
            Op::EndHolds(end) => {
                let (data, _) = self.fenced(end.partition, &end.fence, now)?;
                Ok(Reply::Ended(run_end_holds(data, &end, now)))
            }
            Op::Read {
                fence,
                partition,
                ids,
            } => {
                let (data, _) = self.fenced(partition, &fence, now)?;
                let snapshots = ids.iter().map(|id| data.snapshot(id)).collect();
                Ok(Reply::Snapshots { now, snapshots })
            }
            Op::Swap(swap) => {
                let (data, _) = self.fenced(swap.id.key.partition(), &swap.fence, now)?;
                run_swap(data, &swap, now).map(Reply::Swapped)
            }
            Op::Traded {
                fence,
                partition,
                limit,
            } => Ok(Reply::Traded(
                self.fenced(partition, &fence, now)?.0.traded_ids(limit),
            )),
            Op::Feed {
                fence,
                partition,
                reader,
                limit,
            } => Ok(Reply::Feed(
                self.fenced(partition, &fence, now)?
                    .0
                    .feed(now, &reader, limit),
            )),
            Op::Sweep {
                fence,
                readers,
                traded_max,
                feed_max,
            } => {
                let mut traded = Vec::new();
                let mut pages = vec![Vec::new(); readers.len()];
                self.let_in(&fence)?;
                for (&partition, data) in &mut self.partitions {
                    data.expire(now);
                    if data.is_quiet() {
                        continue;
                    }
                    traded.extend(data.traded_ids(traded_max));
                    for (reader, pages) in readers.iter().zip(&mut pages) {
                        let page = data.feed(now, reader, feed_max);
                        if planted::is_on(Bug::AckedUnread) {
                            data.ack(reader.clone(), page.seq);
                        }
                        if !page.is_idle() {
                            pages.push((partition, page));
                        }
                    }
                }
                Ok(Reply::Swept(Swept { now, traded, pages }))
            }
            Op::Ack {
                fence,
                partition,
                reader,
                seq,
            } => {
                self.fenced(partition, &fence, now)?.0.ack(reader, seq);
                Ok(Reply::Done)
            }
            Op::Merge {
                fence,
                partition,
                slots,
            } => {
                let (data, _) = self.fenced(partition, &fence, now)?;
                for slot in slots {
                    data.merge(slot);
                }
                Ok(Reply::Done)
            }
            Op::Hear {
                fence,
                partition,
                heard,
            } => {
                let (data, _) = self.fenced(partition, &fence, now)?;
                let beyond = heard.iter().map(|h| told::hear(data, h, &fence, now));
                Ok(Reply::Heard(beyond.collect()))
            }
            Op::Usage {
                fence,
                partition,
                key,
                starts,
            } => {
                let (data, _) = self.fenced(partition, &fence, now)?;
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
        // Keys are named by their life, so those of another one are out of sight.
        if self.record.is_none_or(|held| held.life != record.life) {
            self.partitions.clear();
            self.rest = Rest::default();
        }
        self.record = Some(record);
        Ok(Reply::Done)
    }

    /// The data of a partition, without what has expired, if its record is the one that the caller believes.
    fn fenced(
        &mut self,
        partition: Partition,
        fence: &Fence,
        now: StoreMs,
    ) -> Result<(&mut Data, &mut Rest), StoreError> {
        self.let_in(fence)?;
        let data = self.partitions.entry(partition).or_default();
        data.expire(now);
        Ok((data, &mut self.rest))
    }

    /// Whether the record is the one that the caller believes.
    fn let_in(&self, fence: &Fence) -> Result<(), StoreError> {
        if self.attached != Some(fence.record.life) {
            return Err(StoreError::LookAgain);
        }
        let believed = match self.record {
            Some(held) if planted::is_on(Bug::EpochNotFenced) => Record {
                epoch: held.epoch,
                ..fence.record
            },
            _ => fence.record,
        };
        match self.record == Some(believed) {
            true => Ok(()),
            false => Err(StoreError::Fenced(self.record)),
        }
    }
}

fn meter_id(charge: &Charge, at: StoreMs) -> MeterId {
    MeterId {
        key: charge.key.clone(),
        label: charge.rule.label(at),
    }
}

/// A charge's meter settled to now, and what it says to the charge.
struct Asked<'a> {
    id: MeterId,
    charge: &'a Charge,
    settled: Settled<'a>,
    /// Where the policy may go over.
    beside: Option<Beside<Settled<'a>>>,
    /// Where it is of a member of a pool.
    pool: Option<Pool>,
    is_new: bool,
    crowded: bool,
    fits: bool,
    /// What of the charge was drawn on the overdraft.
    overdrawn: u64,
}

fn run_decide(
    data: &mut Data,
    rest: &mut Rest,
    decide: &Decide,
    now: StoreMs,
) -> Result<Decided, StoreError> {
    if decide.fence.replicated && !decide.fence.span.contains(now) {
        return Err(StoreError::OutOfSpan);
    }
    rest.requests.expire(now);
    rest.newcomers.expire(now);
    let remember = decide
        .remember
        .as_ref()
        .filter(|_| decide.mode == Mode::Charge);
    if let Some(Remember { id, content, .. }) = remember
        && let Some((known, decided)) = rest.requests.get(id)
    {
        return match known == content {
            true => Ok(decided.clone()),
            false => Err(StoreError::RequestIdReused),
        };
    }
    let ids: Vec<MeterId> = decide.charges.iter().map(|c| meter_id(c, now)).collect();
    let terms: Vec<Option<Terms>> = ids.iter().map(|id| data.terms(id)).collect();
    let beside: Vec<_> = decide.charges.iter().map(|c| c.rule.beside()).collect();
    let mut asked: Vec<Asked<'_>> = Vec::with_capacity(ids.len());
    for (i, id) in ids.into_iter().enumerate() {
        let met = Met {
            charge: &decide.charges[i],
            id,
            terms: terms[i].as_ref(),
            beside: beside[i].as_ref(),
        };
        asked.push(ask(data, rest, decide, met, now));
    }
    let admitted = asked.iter().all(|a| a.fits || a.charge.shadow);
    let hold_ms = match decide.mode {
        Mode::Hold { ttl_ms } => Some(ttl_ms),
        Mode::Peek | Mode::Charge | Mode::Note => None,
    };
    let charges = admitted && matches!(decide.mode, Mode::Charge | Mode::Hold { .. });
    let mut answers = Vec::with_capacity(asked.len());
    for mut a in asked {
        let charged = charges && a.fits && a.charge.cost > 0;
        if charged {
            a.take(decide.id, hold_ms);
        }
        answers.push(a.answer());
        if decide.mode != Mode::Peek {
            count(data, &a, decide.mode, charged, now);
        }
        if charged {
            if a.is_new && a.charge.newcomers_max.is_some() {
                rest.count_newcomer(a.charge, now);
            }
            // What is held is told once it is kept.
            if decide.mode == Mode::Charge {
                told::count(data, &a.id, a.charge, now);
            }
            put_settled(data, &a.id, a.settled, now);
            if let Some(Beside { overdraft, known }) = a.beside {
                if a.overdrawn > 0 {
                    let keep = overdraft.keep();
                    data.put_overdraft(a.id.clone(), overdraft.meter, now, keep);
                }
                told::put_known(data, &a.id, known, now);
            }
        }
        if let Some(pool) = a.pool
            && matches!(decide.mode, Mode::Charge | Mode::Hold { .. })
        {
            data.put_pool(a.id, pool, now);
        }
    }
    let decided = Decided {
        now,
        admitted,
        answers,
        replayed: None,
    };
    if let Some(Remember {
        id,
        content,
        others,
    }) = remember.filter(|_| admitted)
    {
        let replayed = Some(others.clone());
        let again = Decided {
            replayed,
            ..decided.clone()
        };
        let until = now.plus(REQUEST_TTL_MS);
        rest.requests.put(id.clone(), (*content, again), until);
    }
    Ok(decided)
}

/// What a charge has to do with.
struct Met<'a> {
    charge: &'a Charge,
    id: MeterId,
    terms: Option<&'a Terms>,
    beside: Option<&'a Beside<Rule>>,
}

/// Stores a meter, if it is one that is kept.
fn put_settled(data: &mut Data, id: &MeterId, settled: Settled<'_>, now: StoreMs) {
    if settled.is_kept() {
        let keep = settled.keep();
        data.put_meter(id.clone(), settled.meter, now, keep);
    }
}

fn ask<'a>(data: &Data, rest: &Rest, decide: &Decide, met: Met<'a>, now: StoreMs) -> Asked<'a> {
    let Met {
        charge, id, terms, ..
    } = met;
    let stored = data.meter(&id);
    let settled = Settled::new(stored, id.label, &charge.rule, terms, &decide.fence, now);
    let beside = met.beside.map(|rules| {
        Beside::<Settled<'_>>::settle(rules, data.beside(&id), id.label, &decide.fence, now)
    });
    let pool = charge.member.as_ref().map(|member| {
        let pool = data.pool(&id);
        pool.settle(member, settled.available(), settled.of, now)
    });
    // Who was here in the window before isn't new in this one.
    let before = id.label.filter(|_| charge.newcomers_max.is_some());
    let before = before.and_then(|label| label.checked_sub(1));
    let was_there = before.is_some_and(|label| {
        data.meter(&MeterId {
            key: id.key.clone(),
            label: Some(label),
        })
        .is_some()
    });
    let is_new = stored.is_none() && !was_there;
    let crowded = charge.cost > 0
        && is_new
        && charge
            .newcomers_max
            .is_some_and(|most| rest.newcomers_of(charge, now) >= most);
    let mut asked = Asked {
        id,
        charge,
        settled,
        beside,
        pool,
        is_new,
        crowded,
        fits: false,
        overdrawn: 0,
    };
    let can_hold = !matches!(decide.mode, Mode::Hold { .. }) || asked.can_hold();
    asked.fits = charge.cost == 0
        || (can_hold
            && !crowded
            && asked.need() <= asked.with_overdraft(asked.settled.available())
            && charge.cost <= asked.available());
    asked
}

/// Counts what was asked for, and what came of it.
fn count(data: &mut Data, a: &Asked<'_>, mode: Mode, charged: bool, now: StoreMs) {
    let charge = a.charge;
    // Of a key that there is no room for nothing is kept.
    let units = match mode {
        Mode::Charge | Mode::Hold { .. } if !a.crowded => charge.units,
        _ => 0,
    };
    let now_refused = if a.fits { 0 } else { units };
    let attempts = charge.denied + units;
    let refused = now_refused + charge.denied;
    if attempts > 0 && !matches!(charge.rule.part, Part::Whole | Part::Nothing) {
        let is_short = refused > 0 || a.overdrawn > 0;
        data.count_attempts(&a.id, attempts, is_short, now);
    }
    let counts = Counts {
        admitted: if charged { charge.units } else { 0 },
        refunded: 0,
        refused,
    };
    if let Some(period_ms) = charge.usage_ms
        && counts != Counts::default()
    {
        let start = period_start(now, period_ms);
        let until = start.plus(period_ms + RETENTION_MS);
        data.count_usage(&charge.key, start, until, counts);
    }
}

fn run_end_holds(data: &mut Data, end: &EndHolds, now: StoreMs) -> Vec<bool> {
    let mut ended = Vec::with_capacity(end.charges.len());
    for charge in &end.charges {
        let id = meter_id(charge, end.laid_at);
        let stored = data.meter(&id);
        if stored.is_none() {
            ended.push(false);
            continue;
        }
        let terms = data.terms(&id);
        let mut s = Settled::new(
            stored,
            id.label,
            &charge.rule,
            terms.as_ref(),
            &end.fence,
            now,
        );
        // It was charged under these limits, whatever this node makes of the plan now.
        s.meter.limits = stored.and_then(|m| m.limits);
        let mut found = s.end_hold(end.id, end.release);
        found |= told::end_beside(data, &id, end, charge, now);
        if found {
            if !end.release {
                told::count(data, &id, charge, now);
            }
            put_settled(data, &id, s, now);
            if let Some(period_ms) = charge.usage_ms.filter(|_| end.release && charge.units > 0) {
                let start = period_start(end.laid_at, period_ms);
                let until = start.plus(period_ms + RETENTION_MS);
                let counts = Counts {
                    refunded: charge.units,
                    ..Counts::default()
                };
                data.count_usage(&charge.key, start, until, counts);
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
    if data.version(&swap.id) != swap.expect && !planted::is_on(Bug::SwapWithoutCompare) {
        return Err(StoreError::Conflict);
    }
    let of_windows = matches!(swap.rule.part, Part::Base { .. });
    let of_rates = matches!(swap.rule.part, Part::Shares(_));
    match swap.terms {
        Terms::Window { .. } if of_windows => {}
        Terms::Loans { .. } if of_rates => {}
        _ => {
            return Err(StoreError::Rejected(
                "the terms aren't of the rule's algorithm".into(),
            ));
        }
    }
    let old = data.terms(&swap.id);
    let stored = data.meter(&swap.id);
    let noted = stored.and_then(|m| m.limits);
    if swap.rule.by_plan && noted.is_some_and(|limits| limits != swap.rule.limits) {
        return Err(StoreError::Conflict);
    }
    let (label, terms) = (swap.id.label, old.as_ref());
    let mut s = Settled::new(stored, label, &swap.rule, terms, &swap.fence, now);
    let write = s.put_under(&swap.terms).ok_or(StoreError::Guard)?;
    if let Some(ttl_ms) = write {
        data.put_meter(swap.id.clone(), s.meter, now, Keep::For(ttl_ms));
    }
    let keep_until = match planted::is_on(Bug::ShortMemory) {
        true => now,
        false => swap.keep_until,
    };
    Ok(data.put_traded(swap, keep_until.plus(SPAN_MS)))
}

// === impl Asked ===

impl Asked<'_> {
    /// The cost, and what the request's class has to leave.
    fn need(&self) -> u64 {
        let charge = self.charge;
        match charge.cost {
            0 => 0,
            cost => cost + reserve(self.of(), charge.reserve_ppm),
        }
    }

    fn of(&self) -> u64 {
        let beside = self.beside.as_ref();
        beside.map_or(self.settled.of, |b| b.of(&self.settled))
    }

    fn can_hold(&self) -> bool {
        let beside = self.beside.as_ref();
        self.settled.can_hold() && beside.is_none_or(Beside::can_hold)
    }

    /// What its own rights have for this request.
    fn rights(&self) -> u64 {
        let available = self.settled.available();
        match self.pool.as_ref().zip(self.charge.member.as_ref()) {
            Some((pool, member)) => available.min(pool.available(member)),
            None => available,
        }
    }

    fn with_overdraft(&self, rights: u64) -> u64 {
        let beside = self.beside.as_ref();
        beside.map_or(rights, |b| b.available(rights))
    }

    fn available(&self) -> u64 {
        self.with_overdraft(self.rights())
    }

    /// Takes the charge: of its rights what is there, and the rest of the overdraft.
    fn take(&mut self, id: u64, hold_ms: Option<u64>) {
        let cost = self.charge.cost;
        let within = cost.min(self.rights());
        if within > 0 {
            self.settled.charge(within, id, hold_ms);
        }
        if let Some((pool, member)) = self.pool.as_mut().zip(self.charge.member.as_ref()) {
            pool.charge(member, within);
        }
        self.overdrawn = cost - within;
        if let Some(beside) = &mut self.beside {
            beside.charge(cost, self.overdrawn, id, hold_ms);
        }
    }

    fn answer(&self) -> Answer {
        let (need, available) = (self.need(), self.available());
        let mut reading = self.settled.reading(need);
        match &self.beside {
            Some(beside) => beside.put_in(&mut reading, &self.settled, need, available),
            None => {
                if let Reading::Bucket { spendable, .. } = &mut reading {
                    *spendable = available;
                }
            }
        }
        Answer {
            fits: self.fits,
            crowded: self.crowded,
            reading,
            overdrawn: self.overdrawn,
        }
    }
}

// === impl Rest ===

impl Rest {
    fn newcomers_of(&self, charge: &Charge, now: StoreMs) -> u32 {
        let found = self.newcomers.get(&Self::newcomers_at(charge, now));
        found.copied().unwrap_or(0)
    }

    fn count_newcomer(&mut self, charge: &Charge, now: StoreMs) {
        let count = self.newcomers_of(charge, now) + 1;
        let until = now.plus(2 * NEWCOMERS_MS);
        self.newcomers
            .put(Self::newcomers_at(charge, now), count, until);
    }

    fn newcomers_at(charge: &Charge, now: StoreMs) -> (String, u64) {
        (charge.key.policy_id().to_owned(), now.0 / NEWCOMERS_MS)
    }
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
