//! What a request is to be charged, and where: the policies that match it, by partition.

use crate::prepared::Prepared;
use crate::remember::content_of;
use crate::request::{CheckError, CheckRequest, MAX_REQUEST_ID_BYTES};
use apportion_core::key::check_attributes;
use apportion_core::meter::{Member, reserve};
use apportion_core::policy::Standing;
use apportion_core::schedule::{EXACT, MICRO};
use apportion_core::{Algorithm, Key, KeyError, Limits, Partition, Policy, PolicySet};
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
    /// How it is known again.
    pub(crate) name: Option<Name>,
    /// In the order of the file.
    pub(crate) matched: Vec<Matched>,
    /// No two of the same partition.
    pub(crate) groups: Vec<Group>,
    /// The group that is charged last, without a hold.
    pub(crate) last: usize,
}

/// What the caller calls a request, and a digest of all that is asked.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) id: String,
    pub(crate) content: u128,
}

/// What is charged in one partition.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) partition: Partition,
    /// Which of `matched`, in the order of the charges: what is cheapest to decide comes first.
    order: Vec<usize>,
}

/// A policy that matches the request.
#[derive(Debug)]
pub(crate) struct Matched {
    /// Where the policy stands in the set.
    pub(crate) index: usize,
    pub(crate) key: Key,
    /// Those that apply to the request.
    pub(crate) limits: Limits,
    pub(crate) standing: Standing,
    pub(crate) member: Option<Member>,
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
            let message = format!("{cost}; expected 1 to {MAX_COST}");
            return Err(CheckError::invalid("cost", message));
        }
        check_attributes(&request.attributes).map_err(bad_attributes)?;
        let mut plan = Self {
            cost,
            peek: request.peek,
            name: None,
            matched: Vec::new(),
            groups: Vec::new(),
            last: 0,
            policies: policies.clone(),
        };
        for (index, policy) in policies.policies.iter().enumerate() {
            if policy.matches(&request.attributes) {
                plan.add(index, policy, request)?;
            }
        }
        plan.put_in_order();
        plan.last = plan.widest();
        if let Some(id) = request.request_id.as_ref() {
            check_request_id(id)?;
            plan.name = (!request.peek).then(|| Name {
                id: id.clone(),
                content: content_of(request, plan.matched.iter().map(|m| m.key.policy_id())),
            });
        }
        Ok(plan)
    }

    pub(crate) fn policy(&self, matched: &Matched) -> &Arc<Policy> {
        &self.policies.policies[matched.index]
    }

    /// The policies of a group, in the order of its charges.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = &Matched> {
        self.groups[group].order.iter().map(|i| &self.matched[*i])
    }

    pub(crate) fn charges(&self, group: usize, prepared: &Prepared) -> Vec<Charge> {
        let charge = |matched: &Matched| {
            let policy = self.policy(matched);
            Charge {
                key: matched.key.clone(),
                rule: prepared.rule(matched.index, matched.limits),
                cost: self.cost_of(matched),
                units: self.units_of(matched),
                reserve_ppm: matched.reserve_ppm(),
                denied: 0,
                usage_ms: policy.usage_ms,
                shadow: policy.shadow,
                newcomers_max: policy.new_subjects_per_s,
                member: matched.member.clone(),
            }
        };
        self.members(group).map(charge).collect()
    }

    /// Whole units that the policy charges for the request.
    pub(crate) fn units_of(&self, matched: &Matched) -> u64 {
        match matched.standing {
            Standing::Leaves { .. } => self.cost,
            Standing::Exempt => 0,
        }
    }

    /// The same in the units of the policy's rule.
    pub(crate) fn cost_of(&self, matched: &Matched) -> u64 {
        match self.policy(matched).algorithm.is_bucket() {
            true => self.units_of(matched) * MICRO,
            false => self.units_of(matched),
        }
    }

    /// What has to be there of `of`, in the units of the rule: the cost, and what the request's class leaves.
    pub(crate) fn need_of(&self, matched: &Matched, of: u64) -> u64 {
        match self.cost_of(matched) {
            0 => 0,
            cost => cost + reserve(of, matched.reserve_ppm()),
        }
    }

    /// Whether the request takes slots of the policy if it is admitted.
    pub(crate) fn takes_slots(&self, matched: &Matched) -> bool {
        self.units_of(matched) > 0 && is_slots(self.policy(matched))
    }

    fn add(
        &mut self,
        index: usize,
        policy: &Policy,
        request: &CheckRequest,
    ) -> Result<(), CheckError> {
        let limits = policy.limits_of(&request.attributes);
        let standing = policy.standing_of(request.priority.as_deref());
        let capacity = limits.capacity(&policy.algorithm);
        let (most, of_class) = match standing {
            Standing::Exempt => (u64::MAX, ""),
            Standing::Leaves { ppm: 0 } => (capacity, ""),
            Standing::Leaves { ppm } => (capacity - reserve(capacity, ppm), " for this priority"),
        };
        if request.cost > most && !policy.shadow {
            let message = format!(
                "{} is above the capacity of policy {:?}{of_class}, which is {most}",
                request.cost, policy.name
            );
            return Err(CheckError::invalid("cost", message));
        }
        if self.matched.len() == MATCHES_MAX {
            let message = format!("more than {MATCHES_MAX} policies match");
            return Err(CheckError::invalid("attributes", message));
        }
        let key = Key::of(policy, &request.attributes, &self.policies.subject_hash)
            .map_err(bad_attributes)?;
        let partition = key.partition();
        let group = self.groups.iter().position(|g| g.partition == partition);
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group {
                partition,
                order: Vec::new(),
            });
            self.groups.len() - 1
        });
        self.groups[group].order.push(self.matched.len());
        self.matched.push(Matched {
            index,
            key,
            limits,
            standing,
            member: match standing {
                Standing::Leaves { .. } => {
                    policy.member_of(&request.attributes, &self.policies.subject_hash)
                }
                Standing::Exempt => None,
            },
            group,
            place: 0,
        });
        Ok(())
    }

    fn put_in_order(&mut self) {
        let policies = &self.policies.policies;
        for group in &mut self.groups {
            let matched = &mut self.matched;
            let effort = |i: &usize| effort(&policies[matched[*i].index].algorithm);
            group.order.sort_by_key(effort);
            for (place, i) in group.order.iter().enumerate() {
                matched[*i].place = place;
            }
        }
    }

    /// The group with the widest subject. It sees the most requests at a time, and a meter can have so many holds.
    fn widest(&self) -> usize {
        let widest = self.matched.iter().min_by_key(|m| self.policy(m).key.len());
        widest.map_or(0, |m| m.group)
    }
}

// === impl Matched ===

impl Matched {
    pub(crate) fn reserve_ppm(&self) -> u32 {
        match self.standing {
            Standing::Leaves { ppm } => ppm,
            Standing::Exempt => 0,
        }
    }
}

/// What a decision costs a store, by rank.
const fn effort(algorithm: &Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => 0,
        Algorithm::FixedWindow { .. } => 1,
        Algorithm::SlidingWindow { .. } => 2,
        Algorithm::Concurrency { .. } => 3,
        Algorithm::SlidingLog { .. } => 4,
    }
}

pub(crate) const fn is_slots(policy: &Policy) -> bool {
    matches!(policy.algorithm, Algorithm::Concurrency { .. })
}

fn check_request_id(id: &str) -> Result<(), CheckError> {
    let is_printable = |b: u8| b == b' ' || b.is_ascii_graphic();
    if !(1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) || !id.bytes().all(is_printable) {
        let message = format!(
            "{} bytes; expected 1 to {MAX_REQUEST_ID_BYTES} printable ASCII characters",
            id.len()
        );
        return Err(CheckError::invalid("request_id", message));
    }
    Ok(())
}

fn bad_attributes(error: KeyError) -> CheckError {
    CheckError::invalid("attributes", error.to_string())
}
