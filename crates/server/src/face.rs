//! What the faces need of a node, and the state that they share.
//!
//! HTTP and gRPC are generic over [`Limiter`], so that tests put scripted answers behind them. They translate and
//! count; what is answered is the limiter's alone.

use crate::errors::Failure;
use crate::metrics::{FaceMetrics, Protocol};
use crate::node::{Node, PeriodUsage, ReadError, RegionShare, Status};
use crate::retire::RetireError;
use apportion_core::{Key, Policy, PolicySet, Region, StoreMs};
use apportion_engine::{CheckError, CheckRequest, DecidedBy, Decision, Outcome};
use apportion_sync::{CloseError, OpenError, Opened, Progress};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A node as its faces see it. Cheap to clone.
pub trait Limiter: Clone + Send + Sync + 'static {
    fn region(&self) -> &Region;

    /// The policies in force now.
    fn policies(&self) -> Arc<PolicySet>;

    fn check(
        &self,
        request: CheckRequest,
    ) -> impl Future<Output = Result<Decision, CheckError>> + Send;

    /// Ends the slots that a check took; false where there was nothing (any more) to release.
    fn release(&self, reservation: &str) -> impl Future<Output = Result<bool, CheckError>> + Send;

    /// The periods of `key` that begin in `[from, to)`, oldest first; empty where none was counted.
    fn usage(
        &self,
        policy: &Policy,
        key: &Key,
        from: Option<StoreMs>,
        to: Option<StoreMs>,
    ) -> impl Future<Output = Result<Vec<PeriodUsage>, ReadError>> + Send;

    /// Every key of `policy` with usage on record here, in no particular order, at most `limit` keys.
    fn usage_keys(
        &self,
        policy: &Policy,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Key>, ReadError>> + Send;

    /// Every region's part of `key`; a region that can't be reached is reported by base alone.
    fn shares(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> impl Future<Output = Result<BTreeMap<Region, RegionShare>, ReadError>> + Send;

    /// The limit that `key` goes by: its subject's, or the policy's own where it depends on a request's plan.
    fn limit_of(&self, policy: &Policy, key: &Key) -> u64;

    fn status(&self) -> Status;

    /// The operator's word that another region's store is off for good.
    fn retire(
        &self,
        region: &str,
        force: bool,
    ) -> impl Future<Output = Result<Region, RetireError>> + Send;

    /// True from the first contact with the store until draining, but for when the region is closed.
    fn ready(&self) -> bool;

    /// Stops the whole region, so that its store can be restarted without loss.
    fn close(&self) -> impl Future<Output = Result<(), CloseError>> + Send;

    /// Lets a closed region go on; `as_lost`: in a new life.
    fn open(&self, as_lost: bool) -> impl Future<Output = Result<Opened, OpenError>> + Send;
}

/// A limiter with what its faces keep beside it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Face<L> {
    pub(crate) limiter: L,
    metrics: Arc<FaceMetrics>,
    draining: Arc<AtomicBool>,
}

/// The wire name of an outcome.
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allowed => "allowed",
        Outcome::Refused => "refused",
        Outcome::ShadowRefused => "shadow-refused",
        Outcome::NotCharged => "not-charged",
    }
}

/// The wire name of the ground for a decision.
pub fn decided_by_name(decided_by: DecidedBy) -> &'static str {
    match decided_by {
        DecidedBy::Store => "store",
        DecidedBy::DeniedCache => "denied-cache",
        DecidedBy::FailureMode => "failure-mode",
    }
}

// === impl Face ===

impl<L: Limiter> Face<L> {
    pub(crate) fn new(limiter: L) -> Self {
        let metrics = FaceMetrics::new(limiter.region(), &limiter.policies());
        Self {
            limiter,
            metrics: Arc::new(metrics),
            draining: Arc::default(),
        }
    }

    /// Asks the limiter, and counts what it said.
    pub(crate) async fn check(
        &self,
        request: CheckRequest,
        protocol: Protocol,
    ) -> Result<Decision, Failure> {
        let peek = request.peek;
        let start = Instant::now();
        let answer = self.limiter.check(request).await;
        self.metrics.took(protocol, start.elapsed());
        match answer {
            Ok(decision) => {
                if !peek {
                    self.metrics.decided(&decision);
                }
                Ok(decision)
            }
            Err(error) => Err(self.failed(self.explained(error.into()))),
        }
    }

    pub(crate) async fn release(&self, reservation: &str) -> Result<bool, Failure> {
        let released = self.limiter.release(reservation).await;
        released.map_err(|error| self.failed(self.explained(error.into())))
    }

    /// A store that isn't asked since the region is closed is said to be so.
    pub(crate) fn explained(&self, failure: Failure) -> Failure {
        match (failure, self.limiter.status().closed) {
            (
                Failure::StoreUnavailable {
                    region,
                    outcome_unknown: false,
                },
                Some(closing),
            ) => Failure::RegionClosed {
                region,
                waits_for: match closing.progress {
                    Progress::Opening => closing.unconfirmed,
                    _ => Vec::new(),
                },
            },
            (failure, _) => failure,
        }
    }

    /// Counts a request that never got as far as the limiter.
    pub(crate) fn failed(&self, failure: Failure) -> Failure {
        self.metrics.failed(&failure);
        failure
    }

    pub(crate) fn metrics(&self) -> &FaceMetrics {
        &self.metrics
    }

    pub(crate) fn ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && self.limiter.ready()
    }

    /// From here on this face says that it isn't ready; it still answers.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

// === impl Node ===

impl Limiter for Node {
    fn region(&self) -> &Region {
        Node::region(self)
    }

    fn policies(&self) -> Arc<PolicySet> {
        Arc::clone(Node::policies(self))
    }

    async fn check(&self, request: CheckRequest) -> Result<Decision, CheckError> {
        Node::check(self, request).await
    }

    async fn release(&self, reservation: &str) -> Result<bool, CheckError> {
        Node::release(self, reservation).await
    }

    async fn usage(
        &self,
        policy: &Policy,
        key: &Key,
        from: Option<StoreMs>,
        to: Option<StoreMs>,
    ) -> Result<Vec<PeriodUsage>, ReadError> {
        Node::usage(self, policy, key, from, to).await
    }

    async fn usage_keys(&self, policy: &Policy, limit: usize) -> Result<Vec<Key>, ReadError> {
        Node::usage_keys(self, policy, limit).await
    }

    async fn shares(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<BTreeMap<Region, RegionShare>, ReadError> {
        Node::shares(self, policy, key).await
    }

    fn limit_of(&self, policy: &Policy, key: &Key) -> u64 {
        Node::limits_of(self, policy, key).limit
    }

    fn status(&self) -> Status {
        Node::status(self)
    }

    async fn retire(&self, region: &str, force: bool) -> Result<Region, RetireError> {
        Node::retire(self, region, force).await
    }

    fn ready(&self) -> bool {
        Node::ready(self)
    }

    async fn close(&self) -> Result<(), CloseError> {
        Node::close(self).await
    }

    async fn open(&self, as_lost: bool) -> Result<Opened, OpenError> {
        Node::open(self, as_lost).await
    }
}

#[cfg(test)]
pub(crate) mod fake;
