//! What each policy comes to under the regime in force, worked out once and not for every request.

use apportion_core::fence::Fence;
use apportion_core::meter::Rule;
use apportion_core::{Limits, Policy, PolicySet, Regime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A regime with the rules that it makes of a policy set.
#[derive(Debug)]
pub(crate) struct Prepared {
    regime: Arc<Regime>,
    policies: Arc<PolicySet>,
    fence: Fence,
    rules: Arc<RuleSet>,
}

/// All rules of a policy set.
#[derive(Debug)]
pub(crate) struct RuleSet {
    /// No two sets in this process have the same.
    number: u64,
    /// A request may be charged in more than one partition.
    spans: bool,
    /// In the order of the policies.
    of: Vec<PolicyRules>,
}

/// A policy's rule for all limits that it has: its own, those of its plans and its overrides. Each is made when it is
/// first asked for.
#[derive(Debug)]
struct PolicyRules(Vec<(Limits, OnceLock<Arc<Rule>>)>);

impl Prepared {
    /// Takes over the rules of `before` where nothing that they follow from has changed: the anchor moves every
    /// second, and lives, epochs and policies hardly ever.
    pub(crate) fn new(
        regime: &Arc<Regime>,
        policies: &Arc<PolicySet>,
        before: Option<&Self>,
    ) -> Self {
        let same = before.filter(|b| Arc::ptr_eq(&b.policies, policies) && b.has_rules_of(regime));
        let rules = match same {
            Some(before) => {
                debug_assert!(
                    before.rules.are_of(regime, policies),
                    "has_rules_of knows all that a rule follows from"
                );
                before.rules.clone()
            }
            None => Arc::new(RuleSet::new(policies)),
        };
        Self {
            fence: regime.fence(),
            regime: regime.clone(),
            policies: policies.clone(),
            rules,
        }
    }

    pub(crate) fn is_of(&self, regime: &Arc<Regime>, policies: &Arc<PolicySet>) -> bool {
        Arc::ptr_eq(&self.regime, regime) && Arc::ptr_eq(&self.policies, policies)
    }

    pub(crate) fn regime(&self) -> &Arc<Regime> {
        &self.regime
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    /// The rule of the policy at `index` in the set, under limits that it has for somebody.
    pub(crate) fn rule(&self, index: usize, limits: Limits) -> Arc<Rule> {
        let make = || Arc::new(self.regime.rule(&self.policies.policies[index], limits));
        match self.rules.of[index].find(limits) {
            Some(made) => made.get_or_init(make).clone(),
            None => make(),
        }
    }

    /// Changes whenever any rule may have.
    pub(crate) fn number(&self) -> u64 {
        self.rules.number
    }

    pub(crate) fn spans(&self) -> bool {
        self.rules.spans
    }

    fn has_rules_of(&self, regime: &Regime) -> bool {
        let (ours, theirs) = (&self.regime.state, &regime.state);
        ours.region == theirs.region
            && ours.life == theirs.life
            && ours.began_at == theirs.began_at
            && ours.epoch == theirs.epoch
            && ours.epoch_began == theirs.epoch_began
            && ours.standing == theirs.standing
            && ours.rollout.deals_like(&theirs.rollout)
            && self.regime.timing == regime.timing
    }
}

// === impl RuleSet ===

impl RuleSet {
    fn new(policies: &PolicySet) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let policies = &policies.policies;
        let first = policies.first().and_then(|p| p.key.first());
        let in_one = |p: &Arc<Policy>| first.is_some() && p.key.first() == first;
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            spans: policies.len() > 1 && !policies.iter().all(in_one),
            of: policies.iter().map(|p| PolicyRules::new(p)).collect(),
        }
    }

    fn are_of(&self, regime: &Regime, policies: &PolicySet) -> bool {
        let mut of = self.of.iter().zip(&policies.policies);
        of.all(|(rules, policy)| {
            let mut made = rules
                .0
                .iter()
                .filter_map(|(l, rule)| Some((*l, rule.get()?)));
            made.all(|(limits, rule)| **rule == regime.rule(policy, limits))
        })
    }
}

// === impl PolicyRules ===

impl PolicyRules {
    fn new(policy: &Policy) -> Self {
        let mut limits = policy.tiers();
        limits.extend(policy.overrides.iter().map(|(_, limits)| limits));
        limits.sort_unstable();
        limits.dedup();
        Self(limits.into_iter().map(|l| (l, OnceLock::new())).collect())
    }

    fn find(&self, limits: Limits) -> Option<&OnceLock<Arc<Rule>>> {
        let found = self.0.binary_search_by_key(&limits, |(l, _)| *l).ok()?;
        Some(&self.0[found].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, regime_at};
    use apportion_core::StoreMs;
    use apportion_core::lives::Standing;

    fn changed(
        regime: &Regime,
        change: impl FnOnce(&mut apportion_core::lives::RegionState),
    ) -> Arc<Regime> {
        let mut state = (*regime.state).clone();
        change(&mut state);
        Arc::new(Regime {
            state: Arc::new(state),
            ..regime.clone()
        })
    }

    fn rules(prepared: &Prepared) -> Vec<Arc<Rule>> {
        let policies = prepared.policies.policies.iter().enumerate();
        policies.map(|(i, p)| prepared.rule(i, p.limits)).collect()
    }

    #[test]
    fn rules_outlive_an_anchor_and_no_more() {
        let two = testing::BUCKET_AND_POOL.replace("[\"us-east\"]", "[\"us-east\", \"eu-west\"]");
        let policies = testing::policies(&two);
        let regime = Arc::new(regime_at("us-east", StoreMs(1_000_000), policies.revision));
        let before = Prepared::new(&regime, &policies, None);
        let made = rules(&before);

        let anchored = changed(&regime, |state| state.anchor = StoreMs(1_001_000));
        let after = Prepared::new(&anchored, &policies, Some(&before));
        assert!(
            made.iter()
                .zip(rules(&after))
                .all(|(a, b)| Arc::ptr_eq(a, &b))
        );
        assert_eq!(before.number(), after.number());

        let epoch = changed(&regime, |state| {
            state.epoch.0 += 1;
            state.epoch_began = StoreMs(1_001_000);
        });
        let later = changed(&regime, |state| state.standing = Standing::Later);
        for regime in [&epoch, &later] {
            let after = Prepared::new(regime, &policies, Some(&before));
            assert_ne!(made, rules(&after));
            assert_ne!(before.number(), after.number());
        }
        let others = testing::policies(&two.replace("= 60", "= 61"));
        let after = Prepared::new(&regime, &others, Some(&before));
        assert_ne!(made, rules(&after));
        assert_ne!(before.number(), after.number());
    }

    #[test]
    fn a_rule_is_made_once_for_each_of_a_policys_limits() {
        let own = Limits::of(60);
        let (plan, subject) = (Limits::of(100), Limits::of(7));
        let policies = testing::changed(testing::BUCKET_AND_POOL, |policy| {
            let plans = [("pro".to_owned(), plan)].into();
            policy.plans = Some(apportion_core::policy::Plans {
                by: "plan".into(),
                plans,
            });
            policy.overrides = [(Vec::new(), subject)].into_iter().collect();
        });
        let regime = Arc::new(regime_at("us-east", StoreMs(1_000_000), policies.revision));
        let prepared = Prepared::new(&regime, &policies, None);
        for limits in [own, plan, subject] {
            let rule = prepared.rule(1, limits);
            assert_eq!(*rule, regime.rule(&policies.policies[1], limits));
            assert!(Arc::ptr_eq(&rule, &prepared.rule(1, limits)));
        }
        assert_eq!(prepared.rule(1, Limits::of(8)).limits, Limits::of(8));
    }

    #[test]
    fn requests_span_partitions_where_subjects_begin_differently() {
        let regime = Arc::new(regime_at("us-east", StoreMs(1_000_000), 1));
        let spans = |text: &str| Prepared::new(&regime, &testing::policies(text), None).spans();
        assert!(spans(testing::BUCKET_AND_POOL));
        let by_tenant = testing::BUCKET_AND_POOL.replace("key = []", "key = [\"tenant\", \"x\"]");
        assert!(!spans(&by_tenant));
        let without = testing::BUCKET_AND_POOL.replace("key = [\"tenant\"]", "key = []");
        assert!(spans(&without), "what has no subject is found by its name");
    }
}
