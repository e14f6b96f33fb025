//! Digests by which two nodes tell whether they hold the same rules.

use super::{Algorithm, Limits, Mode, OnStoreFailure, Policy, PolicySet, Standing, Tolerance};
use crate::period::Period;
use xxhash_rust::xxh3::xxh3_64;

/// A canonical rendering: tagged fields, each with its length, so that no two sets of rules share one.
#[derive(Default)]
struct Canon(Vec<u8>);

impl PolicySet {
    /// Changes with everything that affects a decision, and with nothing else: not with the order of keys, policies
    /// or regions in the file, nor with comments. `revision` isn't in it: it names a digest, and the two are compared.
    pub fn digest(&self) -> u64 {
        let mut canon = Canon::default();
        let mut regions: Vec<_> = self.regions.iter().collect();
        regions.sort();
        for region in regions {
            canon.text("region", region.as_str());
        }
        let mut policies: Vec<_> = self.policies.iter().collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        for policy in policies {
            canon.number("policy", self.policy_digest(policy));
        }
        // Any value may be one that isn't safe to show. Regions that hash one subject to two keys would each borrow all
        // of its budget, so they mustn't trade.
        if self.policies.iter().any(|policy| !policy.key.is_empty()) {
            canon.number("hash", self.subject_hash.fingerprint());
        }
        canon.digest()
    }

    /// The digest of one of these policies, and of the key that its sensitive values are hashed under.
    pub fn policy_digest(&self, policy: &Policy) -> u64 {
        if policy.sensitive.is_empty() {
            return policy.digest();
        }
        let mut canon = Canon::default();
        canon.number("policy", policy.digest());
        canon.number("hash", self.subject_hash.fingerprint());
        canon.digest()
    }
}

impl PolicySet {
    /// What a revision's number stands for: changes with every policy and region, and not with the secret that subjects
    /// are hashed under, but where a policy says that it hashes some.
    pub fn revision_digest(&self) -> u64 {
        let mut canon = Canon::default();
        let regions: std::collections::BTreeSet<_> = self.regions.iter().collect();
        for region in regions {
            canon.text("region", region.as_str());
        }
        let mut digests: Vec<u64> = self
            .policies
            .iter()
            .map(|p| self.policy_digest(p))
            .collect();
        digests.sort_unstable();
        for digest in digests {
            canon.number("policy", digest);
        }
        canon.digest()
    }

    /// Changes with what a version of this policy can't change without starting afresh: what its state is kept by, and
    /// in which form.
    pub fn state_digest(&self, policy: &Policy) -> u64 {
        let mut canon = Canon::default();
        for attribute in &policy.key {
            canon.text("key", attribute);
        }
        canon.algorithm(&policy.algorithm);
        for attribute in &policy.sensitive {
            canon.text("sensitive", attribute);
        }
        if !policy.sensitive.is_empty() {
            canon.number("hash", self.subject_hash.fingerprint());
        }
        if let Some(pool) = &policy.pool {
            canon.text("pool by", &pool.by);
        }
        canon.text(
            "mode",
            match policy.mode {
                Mode::Region => "region",
                Mode::Shares | Mode::Home { .. } => "shared",
            },
        );
        if let Some(usage_ms) = policy.usage_ms {
            canon.number("usage_ms", usage_ms);
        }
        canon.digest()
    }
}

impl Policy {
    /// Changes with everything that affects a decision or what is counted, and with nothing else.
    pub fn digest(&self) -> u64 {
        // Taken apart, so that a field that is added can't be forgotten here.
        let Self {
            name,
            version,
            attributes,
            key,
            algorithm,
            limits,
            plans,
            overrides,
            // Follows from the limits.
            fill_ms: _,
            classes,
            pool,
            mode,
            tolerance,
            on_store_failure,
            weights,
            usage_ms,
            sensitive,
            new_subjects_per_s,
            shadow,
        } = self;
        let mut canon = Canon::default();
        canon.text("name", name);
        canon.number("version", u64::from(*version));
        for (attribute, pattern) in attributes {
            canon.text("match", attribute);
            canon.text("as", pattern.as_str());
        }
        for attribute in key {
            canon.text("key", attribute);
        }
        canon.algorithm(algorithm);
        canon.limits(limits);
        if let Some(plans) = plans {
            canon.text("plans by", &plans.by);
            for (name, limits) in &plans.plans {
                canon.text("plan", name);
                canon.limits(limits);
            }
        }
        for (subject, limits) in overrides.iter() {
            for value in subject {
                canon.text("override", value);
            }
            canon.limits(&limits);
        }
        for class in classes {
            canon.text("class", &class.name);
            match class.standing {
                Standing::Leaves { ppm } => canon.number("leaves_ppm", u64::from(ppm)),
                Standing::Exempt => canon.text("leaves", "exempt"),
            }
        }
        if let Some(pool) = pool {
            canon.text("pool by", &pool.by);
            canon.number("default_weight", u64::from(pool.default_weight));
            for (member, weight) in &pool.weights {
                canon.text("member", member);
                canon.number("weight", u64::from(*weight));
            }
        }
        for attribute in sensitive {
            canon.text("sensitive", attribute);
        }
        if let Some(most) = new_subjects_per_s {
            canon.number("new_subjects_per_s", u64::from(*most));
        }
        match mode {
            Mode::Shares => canon.text("mode", "shares"),
            Mode::Region => canon.text("mode", "region"),
            Mode::Home { home, standby } => {
                canon.text("mode", "home");
                canon.text("home", home.as_str());
                if let Some(standby) = standby {
                    canon.text("standby", standby.as_str());
                }
            }
        }
        match *tolerance {
            Tolerance::NeverOver => canon.text("tolerance", "never-over"),
            Tolerance::NeverUnder => canon.text("tolerance", "never-under"),
            Tolerance::Over { ppm } => canon.number("over_ppm", u64::from(ppm)),
        }
        canon.text(
            "on_store_failure",
            match on_store_failure {
                OnStoreFailure::Closed => "closed",
                OnStoreFailure::Open => "open",
                OnStoreFailure::Local => "local",
            },
        );
        for (region, weight) in weights {
            canon.text("region", region.as_str());
            canon.number("weight", *weight);
        }
        if let Some(usage_ms) = usage_ms {
            canon.number("usage_ms", *usage_ms);
        }
        canon.number("shadow", u64::from(*shadow));
        canon.digest()
    }
}

// === impl Canon ===

impl Canon {
    fn text(&mut self, tag: &str, value: &str) {
        for part in [tag, value] {
            self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    fn number(&mut self, tag: &str, value: u64) {
        self.text(tag, &value.to_string());
    }

    fn algorithm(&mut self, algorithm: &Algorithm) {
        self.text("algorithm", algorithm.name());
        match *algorithm {
            Algorithm::FixedWindow {
                period: Period::Every { per_ms, offset_ms },
            } => {
                self.number("per_ms", per_ms);
                self.number("offset_ms", offset_ms);
            }
            Algorithm::FixedWindow {
                period: Period::Month,
            } => self.text("per", "month"),
            Algorithm::SlidingLog { per_ms }
            | Algorithm::TokenBucket { per_ms }
            | Algorithm::Gcra { per_ms } => self.number("per_ms", per_ms),
            Algorithm::SlidingWindow { per_ms, buckets } => {
                self.number("per_ms", per_ms);
                self.number("buckets", u64::from(buckets));
            }
            Algorithm::Concurrency { slot_ttl_ms } => self.number("slot_ttl_ms", slot_ttl_ms),
        }
    }

    fn limits(&mut self, limits: &Limits) {
        self.number("limit", limits.limit);
        self.number("burst", limits.burst);
    }

    fn digest(&self) -> u64 {
        xxh3_64(&self.0)
    }
}
