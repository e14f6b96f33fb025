//! The request path: match, charge, answer.

use crate::charge::{Round, Said, wants_a_look};
use crate::denied::DeniedCache;
use crate::outlook::Outlook;
use crate::plan::{Matched, Plan};
use crate::prepared::Prepared;
use crate::release::Reservation;
use crate::report::{Told, unmetered};
use crate::request::{CheckError, CheckRequest, Decision, LimitReport, Outcome};
use apportion_core::policy::OnStoreFailure;
use apportion_core::{Key, Limits, Policy, PolicySet, Regime, Region, StoreMs};
use apportion_store::{Store, StoreError};
use arc_swap::{ArcSwap, ArcSwapOption};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// How long a request waits for the sync side to look at the store again.
const PATIENCE: Duration = Duration::from_millis(50);
const GLANCE: Duration = Duration::from_millis(2);

/// Decides requests for one region, by its store.
pub struct Engine<S> {
    region: Region,
    pub(crate) store: Arc<S>,
    /// Between rounds of the sync side: peers may lend by the next one.
    interval_ms: u64,
    pub(crate) shared: Shared,
    prepared: ArcSwapOption<Prepared>,
}

/// What an engine and the sync side of its node tell each other.
#[derive(Clone, Debug)]
pub struct Shared {
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// `None` before the first contact with the store, and while it is looked at. After every look there is a new value
    /// here, even if it is equal to the last: requests that were turned away wait for it.
    pub regime: Arc<ArcSwapOption<Regime>>,
    pub outlook: Arc<Outlook>,
    /// To be told of every key whose share or rights were raised here.
    pub denied: Arc<DeniedCache>,
    /// Notified when the store doesn't know this node's regime any more, or may be another store.
    pub look_again: Arc<Notify>,
    /// Hints: where the channel is full they are dropped.
    pub pressure: mpsc::Sender<Pressure>,
}

/// A key that ran out of rights, or has little left.
#[derive(Clone, Debug)]
pub struct Pressure {
    pub policy: Arc<Policy>,
    /// Those that applied to the request.
    pub limits: Limits,
    pub key: Key,
    /// The window, where it is one.
    pub label: Option<u64>,
    /// A request was refused, or would have been.
    pub refused: bool,
}

// === impl Engine ===

impl<S> Engine<S> {
    pub fn new(region: Region, store: Arc<S>, interval_ms: u64, shared: Shared) -> Self {
        Self {
            region,
            store,
            interval_ms,
            shared,
            prepared: ArcSwapOption::empty(),
        }
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The policies that requests are matched against now.
    pub fn policies(&self) -> Arc<PolicySet> {
        self.shared.policies.load_full()
    }

    pub(crate) fn interval_ms(&self) -> u64 {
        self.interval_ms
    }

    pub(crate) fn is_exhausted(&self, key: &Key, label: u64) -> bool {
        self.shared.outlook.is_exhausted(key, label)
    }

    pub(crate) fn press(&self, pressure: Pressure) {
        // Full, or nobody listens: the sync side sees the key's attempts at its next round anyway.
        let _ = self.shared.pressure.try_send(pressure);
    }

    /// What a policy answers while its store is out of reach: the one place for failure modes.
    fn on_failure(
        &self,
        plan: &Plan,
        matched: &Matched,
        error: &StoreError,
    ) -> Result<LimitReport, CheckError> {
        let policy = plan.policy(matched);
        if policy.shadow {
            let report = unmetered(plan, matched, Outcome::ShadowRefused);
            return Ok(LimitReport {
                retry_after_ms: self.interval_ms,
                ..report
            });
        }
        match policy.on_store_failure {
            // No policy can ask for the other two yet, and closed is the side that keeps every promise.
            OnStoreFailure::Closed | OnStoreFailure::Open | OnStoreFailure::Local => {
                Err(self.unavailable(error))
            }
        }
    }

    pub(crate) fn unavailable(&self, error: &StoreError) -> CheckError {
        CheckError::StoreUnavailable {
            region: self.region.clone(),
            reason: error.to_string(),
            outcome_unknown: error.outcome_unknown(),
        }
    }

    pub(crate) fn prepared(&self, policies: &Arc<PolicySet>) -> Result<Arc<Prepared>, StoreError> {
        let regime = self.shared.regime.load();
        let Some(regime) = regime.as_ref() else {
            return Err(StoreError::NotSent("not in contact with the store".into()));
        };
        if regime.revision != policies.revision {
            let message = format!(
                "revision {} of the policies isn't in force here yet",
                policies.revision
            );
            return Err(StoreError::NotSent(message));
        }
        let before = self.prepared.load_full();
        if let Some(prepared) = &before
            && prepared.is_of(regime, policies)
        {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::new(regime, policies, before.as_deref()));
        self.prepared.store(Some(prepared.clone()));
        Ok(prepared)
    }

    /// Whether the group lets the request pass.
    pub(crate) fn passes(&self, plan: &Plan, group: usize, said: &Said) -> bool {
        match said {
            Said::Decided { decided, .. } => decided.admitted,
            Said::Unread => false,
            Said::Failed(error) => plan
                .members(group)
                .all(|m| self.on_failure(plan, m, error).is_ok()),
        }
    }

    /// The decision on a request that no policy matches.
    fn unlimited(&self) -> Decision {
        Decision {
            allowed: true,
            region: self.region.clone(),
            decided_at: self.anchor(),
            limits: Vec::new(),
            reservation: None,
            replayed: false,
        }
    }

    fn conclude(
        &self,
        plan: &Plan,
        prepared: &Prepared,
        round: &Round,
    ) -> Result<Decision, CheckError> {
        if round.is_reused() {
            return Err(CheckError::RequestIdReused);
        }
        self.remember_refusals(plan, prepared, round);
        let said = &round.said;
        let allowed = said
            .iter()
            .enumerate()
            .all(|(g, s)| self.passes(plan, g, s));
        let unknown = round.in_doubt
            || said
                .iter()
                .any(|s| matches!(s, Said::Failed(error) if error.outcome_unknown()));
        let mut limits = Vec::with_capacity(plan.matched.len());
        let mut slots = Vec::new();
        for matched in &plan.matched {
            limits.push(match &said[matched.group] {
                Said::Decided { decided, returned } => {
                    let told = Told::new(plan, matched, decided, returned);
                    if !plan.peek && !round.replayed {
                        self.note_pressure(plan, matched, &told);
                    }
                    if told.fits && plan.takes_slots(matched) {
                        slots.push(&matched.key);
                    }
                    self.report(plan, matched, &told, allowed)
                }
                Said::Failed(error) => self
                    .on_failure(plan, matched, error)
                    .map_err(|error| error.or_unknown(unknown))?,
                Said::Unread => unmetered(plan, matched, Outcome::NotCharged),
            });
        }
        let decided_at = said.iter().filter_map(|s| match s {
            Said::Decided { decided, .. } => Some(decided.now),
            Said::Failed(_) | Said::Unread => None,
        });
        let holds_slots = allowed && !plan.peek && !slots.is_empty();
        let life = prepared.regime().state.life;
        Ok(Decision {
            allowed,
            region: self.region.clone(),
            decided_at: decided_at.max().unwrap_or_else(|| self.anchor()),
            limits,
            reservation: holds_slots.then(|| Reservation::new(life, round.id, slots).to_token()),
            replayed: round.replayed,
        })
    }

    /// What is answered where the store can't be asked at all.
    fn without_store(&self, plan: &Plan, error: &StoreError) -> Result<Decision, CheckError> {
        let limits = plan.matched.iter().map(|m| self.on_failure(plan, m, error));
        Ok(Decision {
            limits: limits.collect::<Result<_, _>>()?,
            ..self.unlimited()
        })
    }

    /// The store's clock as last vouched for.
    fn anchor(&self) -> StoreMs {
        let regime = self.shared.regime.load();
        regime.as_ref().map_or(StoreMs(0), |r| r.span.from)
    }

    /// Waits a little for another regime than `seen`.
    pub(crate) async fn regime_changes(&self, seen: &Arc<Regime>) -> bool {
        let change = async {
            loop {
                let regime = self.shared.regime.load_full();
                if regime.is_some_and(|regime| !Arc::ptr_eq(&regime, seen)) {
                    return;
                }
                tokio::time::sleep(GLANCE).await;
            }
        };
        tokio::time::timeout(PATIENCE, change).await.is_ok()
    }

    pub(crate) fn note_look_again(&self, error: &StoreError) {
        if wants_a_look(error) {
            self.shared.look_again.notify_one();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Decides `request`.
    ///
    /// If the returned future is dropped before it is ready, what was charged stays charged.
    ///
    /// # Errors
    /// Where the request is wrong, or a policy that fails closed can't be asked.
    pub async fn check(&self, request: CheckRequest) -> Result<Decision, CheckError> {
        let mut held = Vec::new();
        let mut may_ask_again = true;
        let mut in_doubt = false;
        loop {
            let plan = Plan::new(self.policies(), &request)?;
            if plan.matched.is_empty() {
                return Ok(self.unlimited());
            }
            let prepared = match self.prepared(&plan.policies) {
                Ok(prepared) => prepared,
                Err(error) => return self.without_store(&plan, &error),
            };
            in_doubt |= !self.let_go(&plan, &prepared, &held).await;
            if let Some(refusal) = self.refuse(&plan, &prepared) {
                return Ok(refusal);
            }
            let mut round = self.decide(&plan, &prepared).await;
            if may_ask_again
                && round.turned_away().is_some()
                && self.regime_changes(prepared.regime()).await
            {
                may_ask_again = false;
                held = round.held;
                continue;
            }
            in_doubt |= !self.let_go(&plan, &prepared, &round.held).await;
            round.in_doubt |= in_doubt;
            return self.conclude(&plan, &prepared, &round);
        }
    }
}

impl<S> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}
