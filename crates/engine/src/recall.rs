//! Refusing without a call what the store would surely refuse: which refusals are remembered, for how long, and what
//! is answered by them.

use crate::charge::{Round, Said};
use crate::denied::{DENIED_MAX, Hit, Need, Refusal, TELL_AFTER_MS, Unsent};
use crate::engine::Engine;
use crate::plan::{MATCHES_MAX, Matched, Plan, is_slots};
use crate::prepared::Prepared;
use crate::report::{Told, time_left, unmetered};
use crate::request::{DecidedBy, Decision, LimitReport, Outcome};
use apportion_core::fence::{DRIFT_PPM, Fence, Missing};
use apportion_core::meter::Reading;
use apportion_core::policy::{PPM, Tolerance};
use apportion_core::{Algorithm, Key, Partition, Policy, PolicySet};
use apportion_store::{Charge, Decide, Mode, Op, Reply, Store};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// For so long a refusal is used where the answer may change sooner than the meter says: another region may lend,
/// another node may give something back.
pub const UNSURE_MS: u64 = 100;
/// The longest that a refusal is used.
pub const SURE_MAX_MS: u64 = 60_000;
/// At most so many keys are told to the store at a time.
pub const FLUSH_MAX: usize = 1_000;

/// Units that this node refused by itself, on their way to the store.
pub(crate) struct Carried {
    /// Which of the calls.
    at: usize,
    unsent: Unsent,
}

impl<S> Engine<S> {
    /// The refusal of a request that the store would surely refuse.
    pub(crate) fn refuse(&self, plan: &Plan, prepared: &Prepared) -> Option<Decision> {
        let denied = &self.shared.denied;
        if plan.peek || plan.name.is_some() || denied.is_empty() {
            return None;
        }
        let mut hits: [Option<Hit>; MATCHES_MAX] = Default::default();
        for (hit, matched) in hits.iter_mut().zip(&plan.matched) {
            if is_remembered(plan.policy(matched)) {
                *hit = denied.refuses(&Need {
                    key: &matched.key,
                    limits: matched.limits,
                    rules: prepared.number(),
                    cost: plan.cost_of(matched),
                    reserve_ppm: matched.reserve_ppm(),
                    units: plan.units_of(matched),
                });
            }
        }
        let first = hits.iter().flatten().next()?;
        let decided_at = first.told.now;
        let report = |(matched, hit): (&Matched, &Option<Hit>)| match hit {
            Some(hit) => {
                let report = self.report(plan, matched, &hit.told, false);
                LimitReport {
                    decided_by: DecidedBy::DeniedCache,
                    ..report
                }
            }
            None => self.beside(plan, matched, first),
        };
        Some(Decision {
            allowed: false,
            region: self.region().clone(),
            decided_at,
            limits: plan.matched.iter().zip(&hits).map(report).collect(),
            reservation: None,
            replayed: false,
        })
    }

    /// What is told of a policy that didn't refuse: what it said when the other refused first.
    fn beside(&self, plan: &Plan, matched: &Matched, hit: &Hit) -> LimitReport {
        let mut report = LimitReport {
            decided_by: DecidedBy::DeniedCache,
            ..unmetered(plan, matched, Outcome::NotCharged)
        };
        let told = hit.beside.iter().find(|(key, _)| *key == matched.key);
        if let Some((_, told)) = told {
            let told = told.after(hit.since_ms);
            let LimitReport {
                remaining,
                reset_ms,
                ..
            } = self.report(plan, matched, &told, false);
            (report.remaining, report.reset_ms) = (remaining, reset_ms);
        }
        report
    }

    /// Remembers what the store refused in this round.
    pub(crate) fn remember_refusals(&self, plan: &Plan, prepared: &Prepared, round: &Round) {
        if plan.peek || round.replayed {
            return;
        }
        let mut beside: Option<Arc<[(Key, Told)]>> = None;
        for matched in &plan.matched {
            let policy = plan.policy(matched);
            let Some(told) = told_of(plan, matched, round) else {
                continue;
            };
            if told.fits && policy.plans.is_some() {
                self.shared.denied.admitted(&matched.key, matched.limits);
            }
            if told.fits || !is_remembered(policy) {
                continue;
            }
            let need = plan.need_of(matched, told.reading.of());
            let Some(sure_ms) = sure_ms(policy, &told, need, &prepared.fence()) else {
                continue;
            };
            // Another region may lend; a slot, or what another node holds, may be given back; another request of the
            // key may come under another plan; an overdraft may fill sooner than the meter.
            let unsure = plan.policies.regions.len() > 1
                || prepared.spans()
                || is_slots(policy)
                || policy.plans.is_some()
                || matches!(policy.tolerance, Tolerance::Over { .. });
            let longest_ms = if unsure { UNSURE_MS } else { SURE_MAX_MS };
            let beside = beside.get_or_insert_with(|| {
                let all = plan.matched.iter();
                let all = all.filter_map(|m| Some((m.key.clone(), told_of(plan, m, round)?)));
                all.collect()
            });
            self.shared.denied.remember(Refusal {
                key: matched.key.clone(),
                policy: policy.clone(),
                limits: matched.limits,
                rules: prepared.number(),
                need,
                told,
                asked: round.asked,
                sure_ms: sure_ms.min(longest_ms),
                beside: beside.clone(),
            });
        }
    }
}

// === telling the store ===

impl<S> Engine<S> {
    /// Takes along what this node refused of the keys that the store is asked about.
    pub(crate) fn carry(&self, decides: &mut [Decide]) -> Vec<Carried> {
        let mut carried = Vec::new();
        if self.shared.denied.is_empty() {
            return carried;
        }
        for (at, decide) in decides.iter_mut().enumerate() {
            if decide.mode == Mode::Peek {
                continue;
            }
            for charge in &mut decide.charges {
                if let Some(unsent) = self.shared.denied.take(&charge.key) {
                    charge.denied = unsent.units;
                    carried.push(Carried { at, unsent });
                }
            }
        }
        carried
    }

    /// Takes back what the store surely wasn't told.
    pub(crate) fn bring_back(&self, carried: Vec<Carried>, said: &[Said]) {
        for Carried { at, unsent } in carried {
            let untold = match &said[at] {
                // What was answered before was only looked up.
                Said::Decided { decided, .. } => decided.replayed.is_some(),
                Said::Failed(error) => !error.outcome_unknown(),
                Said::Unread => false,
            };
            if untold {
                self.shared.denied.put_back(unsent);
            }
        }
    }

    fn put_back(&self, unsent: Vec<Unsent>) {
        let denied = &self.shared.denied;
        unsent
            .into_iter()
            .for_each(|unsent| denied.put_back(unsent));
    }
}

impl<S: Store> Engine<S> {
    /// Tells the store what this node refused by itself of keys that it hasn't asked about since. A node calls it every
    /// second.
    pub async fn flush_denied(&self) {
        self.tell(self.shared.denied.overdue(FLUSH_MAX, TELL_AFTER_MS))
            .await;
    }

    /// The same without waiting for a second to pass. A node calls it when it ends.
    pub async fn drain_denied(&self) {
        for _ in 0..=2 * DENIED_MAX / FLUSH_MAX {
            let unsent = self.shared.denied.overdue(FLUSH_MAX, 0);
            if unsent.is_empty() || !self.tell(unsent).await {
                return;
            }
        }
    }

    /// Whether the store was reached.
    async fn tell(&self, unsent: Vec<Unsent>) -> bool {
        if unsent.is_empty() {
            return true;
        }
        let policies = self.policies();
        let Ok(prepared) = self.prepared(&policies) else {
            self.put_back(unsent);
            return false;
        };
        let (mut ops, mut sent) = (Vec::new(), Vec::new());
        for (partition, keys) in by_partition(unsent) {
            // No more charges at a time than a request has.
            for keys in keys.chunks(MATCHES_MAX) {
                let charges: Vec<Charge> = keys
                    .iter()
                    .filter_map(|unsent| note(&policies, &prepared, unsent))
                    .collect();
                if !charges.is_empty() {
                    ops.push(Op::Decide(Decide {
                        fence: prepared.fence(),
                        partition,
                        id: 0,
                        mode: Mode::Note,
                        charges,
                        remember: None,
                    }));
                    sent.push(keys.to_vec());
                }
            }
        }
        if ops.is_empty() {
            return true;
        }
        let replies = self.store.call(ops).await;
        let mut reached = true;
        for (unsent, reply) in sent.into_iter().zip(replies) {
            match reply {
                Ok(Reply::Decided(_)) => {}
                Err(error) if !error.outcome_unknown() => {
                    self.note_look_again(&error);
                    self.put_back(unsent);
                    reached = false;
                }
                _ => {
                    tracing::debug!("whether refusals were counted isn't known");
                    reached = false;
                }
            }
        }
        reached
    }
}

/// Each key once.
fn by_partition(unsent: Vec<Unsent>) -> BTreeMap<Partition, Vec<Unsent>> {
    let mut all: BTreeMap<Key, Unsent> = BTreeMap::new();
    for unsent in unsent {
        match all.entry(unsent.key.clone()) {
            Entry::Occupied(mut same) => same.get_mut().units += unsent.units,
            Entry::Vacant(new) => {
                new.insert(unsent);
            }
        }
    }
    let mut by_partition: BTreeMap<Partition, Vec<Unsent>> = BTreeMap::new();
    for (key, unsent) in all {
        by_partition
            .entry(key.partition())
            .or_default()
            .push(unsent);
    }
    by_partition
}

/// A charge that counts what was refused, and nothing else. `None`: nobody asks about a policy that is gone.
fn note(policies: &PolicySet, prepared: &Prepared, unsent: &Unsent) -> Option<Charge> {
    let (name, version) = (&unsent.policy.name, unsent.policy.version);
    let mut all = policies.policies.iter().enumerate();
    let (index, policy) = all.find(|(_, p)| p.name == *name && p.version == version)?;
    Some(Charge {
        key: unsent.key.clone(),
        rule: prepared.rule(index, unsent.limits),
        cost: 0,
        units: 0,
        reserve_ppm: 0,
        denied: unsent.units,
        usage_ms: policy.usage_ms,
        shadow: policy.shadow,
        newcomers_max: None,
        member: None,
    })
}

fn told_of(plan: &Plan, matched: &Matched, round: &Round) -> Option<Told> {
    match &round.said[matched.group] {
        Said::Decided { decided, returned } => Some(Told::new(plan, matched, decided, returned)),
        Said::Failed(_) | Said::Unread => None,
    }
}

/// Whether a refusal by this policy says anything about the next request. A member of a pool is refused or not by
/// what others ask for.
fn is_remembered(policy: &Policy) -> bool {
    !policy.shadow && policy.pool.is_none()
}

/// For how long `need` is surely refused, if nothing but time changes the meter. `None`: that can't be told.
fn sure_ms(policy: &Policy, told: &Told, need: u64, fence: &Fence) -> Option<u64> {
    // Too many holds, or too many new subjects; a clock that nobody vouches for.
    if need <= told.reading.available() || !fence.span.contains(told.now) {
        return None;
    }
    let ms = match told.reading {
        Reading::Bucket {
            spendable, flow, ..
        } if need <= flow.cap => {
            // The bucket may be almost a micro-unit fuller than it says.
            flow.time_for(need - spendable - 1).unwrap_or(u64::MAX)
        }
        Reading::Bucket { .. } => u64::MAX,
        Reading::Window { label, .. } => time_left(policy, label, told.now),
        Reading::Units { retry_ms, .. } => {
            let counts_ms = match policy.algorithm {
                Algorithm::Concurrency { slot_ttl_ms } => slot_ttl_ms,
                algorithm => algorithm.counts_ms(),
            };
            // A meter that may have been lost says more than it knows.
            if let Missing::EmptyAt(moment) = fence.missing
                && told.now < moment.plus(counts_ms)
            {
                return None;
            }
            retry_ms.unwrap_or(u64::MAX)
        }
    };
    // The store's clock may run fast, and its millisecond may have been almost over.
    let drift_ms = ms.saturating_mul(DRIFT_PPM).div_ceil(PPM);
    Some(ms.saturating_sub(drift_ms).saturating_sub(1)).filter(|ms| *ms > 0)
}
