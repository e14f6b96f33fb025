//! What a request is to be charged, and where: the policies that match it, by partition.

use crate::prepared::Prepared;
use crate::request::{CheckError, CheckRequest};
use apportion_core::key::check_attributes;
use apportion_core::meter::Rule;
use apportion_core::schedule::{EXACT, MICRO};
use apportion_core::{Key, KeyError, Partition, Policy, PolicySet};
use apportion_store::Charge;
use std::sync::Arc;

/// Units that one request can cost: in micro-units Lua still counts them exactly.
pub const MAX_COST: u64 = EXACT / MICRO;
/// Policies that can match one request.
pub const MATCHES_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) policies: Arc<PolicySet>,
    /// In units.
    pub(crate) cost: u64,
    pub(crate) peek: bool,
    /// In the order of the file.
    pub(crate) matched: Vec<Matched>,
    /// No two the same.
    pub(crate) groups: Vec<Partition>,
    /// The group that is charged last, without a hold.
    pub(crate) last: usize,
}

/// A policy that matches the request.
#[derive(Debug)]
pub(crate) struct Matched {
    /// Where the policy stands in the set.
    pub(crate) index: usize,
    pub(crate) key: Key,
    pub(crate) group: usize,
    /// Which of its group's charges is this one's.
    pub(crate) place: usize,
}

impl Plan {
    pub(crate) fn new(
        policies: Arc<PolicySet>,
        request: &CheckRequest,
    ) -> Result<Self, CheckError> {
        let cost = request.cost;
        if !(1..=MAX_COST).contains(&cost) {
            return Err(invalid("cost", format!("{cost}; expected 1 to {MAX_COST}")));
        }
        check_attributes(&request.attributes).map_err(bad_attributes)?;
        let mut plan = Self {
            cost,
            peek: request.peek,
            matched: Vec::new(),
            groups: Vec::new(),
            last: 0,
            policies: policies.clone(),
        };
        for (index, policy) in policies.policies.iter().enumerate() {
            if !policy.matches(&request.attributes) {
                continue;
            }
            let capacity = policy.capacity();
            if cost > capacity && !policy.shadow {
                return Err(invalid(
                    "cost",
                    format!(
                        "{cost} is above the capacity of policy {:?}, which is {capacity}",
                        policy.name
                    ),
                ));
            }
            if plan.matched.len() == MATCHES_MAX {
                return Err(invalid(
                    "attributes",
                    format!("more than {MATCHES_MAX} policies match"),
                ));
            }
            let key = Key::of(policy, &request.attributes).map_err(bad_attributes)?;
            plan.add(index, key);
        }
        plan.last = plan.widest();
        Ok(plan)
    }

    pub(crate) fn policy(&self, matched: &Matched) -> &Arc<Policy> {
        &self.policies.policies[matched.index]
    }

    /// The policies of a group, in the order of its charges.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = &Matched> {
        self.matched.iter().filter(move |m| m.group == group)
    }

    pub(crate) fn charges(&self, group: usize, prepared: &Prepared) -> Vec<Charge> {
        let charge = |matched: &Matched| {
            let policy = self.policy(matched);
            let rule = prepared.rule(matched.index).clone();
            Charge {
                key: matched.key.clone(),
                cost: match rule {
                    Rule::Bucket { .. } => self.cost * MICRO,
                    Rule::Window { .. } => self.cost,
                },
                rule,
                units: self.cost,
                usage_ms: policy.usage_ms,
                shadow: policy.shadow,
            }
        };
        self.members(group).map(charge).collect()
    }

    fn add(&mut self, index: usize, key: Key) {
        let partition = key.partition();
        let group = self.groups.iter().position(|p| *p == partition);
        let group = group.unwrap_or_else(|| {
            self.groups.push(partition);
            self.groups.len() - 1
        });
        let place = self.members(group).count();
        self.matched.push(Matched {
            index,
            key,
            group,
            place,
        });
    }

    /// The group with the widest subject. It sees the most requests at a time, and a meter can have so many holds.
    fn widest(&self) -> usize {
        let widest = self.matched.iter().min_by_key(|m| self.policy(m).key.len());
        widest.map_or(0, |m| m.group)
    }
}

fn invalid(field: &'static str, message: String) -> CheckError {
    CheckError::Invalid { field, message }
}

fn bad_attributes(error: KeyError) -> CheckError {
    invalid("attributes", error.to_string())
}
