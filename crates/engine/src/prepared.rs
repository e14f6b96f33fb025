//! What each policy comes to under the regime in force, worked out once and not for every request.

use apportion_core::fence::Fence;
use apportion_core::meter::Rule;
use apportion_core::{PolicySet, Regime};
use std::sync::Arc;

/// A regime with the rules that it makes of a policy set.
#[derive(Debug)]
pub(crate) struct Prepared {
    regime: Arc<Regime>,
    policies: Arc<PolicySet>,
    fence: Fence,
    /// In the order of `policies`.
    rules: Arc<[Rule]>,
}

impl Prepared {
    /// Takes over the rules of `before` where nothing that they follow from has changed: the anchor moves every
    /// second, and lives, epochs and policies hardly ever.
    pub(crate) fn new(
        regime: &Arc<Regime>,
        policies: &Arc<PolicySet>,
        before: Option<&Self>,
    ) -> Self {
        let work_out = || policies.policies.iter().map(|policy| regime.rule(policy));
        let same = before.filter(|b| Arc::ptr_eq(&b.policies, policies) && b.has_rules_of(regime));
        let rules = match same {
            Some(before) => {
                debug_assert!(
                    before.rules.iter().cloned().eq(work_out()),
                    "has_rules_of knows all that a rule follows from"
                );
                before.rules.clone()
            }
            None => work_out().collect(),
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

    /// The rule of the policy at `index` in the set.
    pub(crate) fn rule(&self, index: usize) -> &Rule {
        &self.rules[index]
    }

    fn has_rules_of(&self, regime: &Regime) -> bool {
        let (ours, theirs) = (&self.regime.state, &regime.state);
        ours.region == theirs.region
            && ours.life == theirs.life
            && ours.began_at == theirs.began_at
            && ours.epoch == theirs.epoch
            && ours.epoch_began == theirs.epoch_began
            && ours.standing == theirs.standing
            && self.regime.timing == regime.timing
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

    #[test]
    fn rules_outlive_an_anchor_and_no_more() {
        let two = testing::BUCKET_AND_POOL.replace("[\"us-east\"]", "[\"us-east\", \"eu-west\"]");
        let policies = testing::policies(&two);
        let regime = Arc::new(regime_at("us-east", StoreMs(1_000_000), policies.revision));
        let before = Prepared::new(&regime, &policies, None);

        let anchored = changed(&regime, |state| state.anchor = StoreMs(1_001_000));
        let after = Prepared::new(&anchored, &policies, Some(&before));
        assert!(Arc::ptr_eq(&before.rules, &after.rules));

        let epoch = changed(&regime, |state| {
            state.epoch.0 += 1;
            state.epoch_began = StoreMs(1_001_000);
        });
        let later = changed(&regime, |state| state.standing = Standing::Later);
        for regime in [&epoch, &later] {
            let after = Prepared::new(regime, &policies, Some(&before));
            assert_ne!(before.rules, after.rules);
        }
        let others = testing::policies(&two.replace("= 60", "= 61"));
        let after = Prepared::new(&regime, &others, Some(&before));
        assert_ne!(before.rules, after.rules);
    }
}
