//! Digests by which two nodes tell whether they hold the same rules.

use super::{Algorithm, Mode, OnStoreFailure, Policy, PolicySet, Tolerance};
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
            canon.number("policy", policy.digest());
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
            mode,
            tolerance,
            on_store_failure,
            weights,
            usage_ms,
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
        match *algorithm {
            Algorithm::FixedWindow { limit, per_ms } => {
                canon.text("algorithm", "fixed-window");
                canon.number("limit", limit);
                canon.number("per_ms", per_ms);
            }
            Algorithm::TokenBucket {
                limit,
                per_ms,
                burst,
            } => {
                canon.text("algorithm", "token-bucket");
                canon.number("limit", limit);
                canon.number("per_ms", per_ms);
                canon.number("burst", burst);
            }
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

    fn digest(&self) -> u64 {
        xxh3_64(&self.0)
    }
}
