//! The kinds of runs that are looked at by default.

use crate::files::Rollouts;
use crate::{Faults, Setup};
use apportion_core::lives::OnEmpty;

const POLICIES: &str = r#"
regions = ["a", "b", "c"]

[[policy]]
name = "day"
key = ["tenant"]
algorithm = "fixed-window"
limit = 100
per = "day"
usage = "1h"

[[policy]]
name = "short"
key = ["tenant"]
algorithm = "fixed-window"
limit = 60
per = "10s"
weights = { a = 2, b = 1, c = 1 }

[[policy]]
name = "rate"
key = ["tenant"]
algorithm = "token-bucket"
limit = 240
per = "1m"
burst = 60
usage = "1h"

[[policy]]
name = "gcra"
key = ["tenant"]
algorithm = "gcra"
limit = 180
per = "1m"
burst = 40

# Longer than the margins of a loan: what is reclaimed too early shows.
[[policy]]
name = "log"
key = ["tenant"]
algorithm = "sliding-log"
limit = 60
per = "45s"
usage = "1h"

[[policy]]
name = "cells"
key = ["tenant"]
algorithm = "sliding-window"
limit = 60
per = "45s"
weights = { a = 2, b = 1, c = 1 }

[[policy]]
name = "classic"
key = ["tenant"]
algorithm = "sliding-window"
buckets = 1
limit = 50
per = "40s"

[[policy]]
name = "tiers"
key = ["tenant"]
algorithm = "fixed-window"
limit = 300
per = "20s"
plans = { by = "plan", small = { limit = 30 }, large = { limit = 90 } }

[[policy]]
name = "tierlog"
key = ["tenant"]
algorithm = "sliding-log"
limit = 300
per = "45s"
plans = { by = "plan", small = { limit = 40 }, large = { limit = 120 } }
"#;

impl Setup {
    /// Each kind by its name.
    pub fn kinds() -> Vec<(&'static str, Self)> {
        let calm = Self {
            policies: POLICIES.into(),
            regions: 3,
            nodes: 2,
            duration_ms: 110_000,
            delay_ms: (1, 80),
            faults: Faults::default(),
            faults_until_ms: 70_000,
            requests_per_s: 25,
            one_sided: false,
            flip_at_ms: None,
            on_empty: OnEmpty::Ask,
            rollouts: Rollouts::default(),
        };
        let with = |faults: Faults| Self {
            faults,
            ..calm.clone()
        };
        let network = Faults {
            lose: 100,
            double: 100,
            cut: 150,
            ..Faults::default()
        };
        let crashes = Faults {
            crash: 60,
            pause: 60,
            ..network
        };
        let losses = Faults {
            lose_store: 15,
            roll_back: 15,
            ..crashes
        };
        let clocks = Faults {
            step: 40,
            ..crashes
        };
        let everything = Faults { step: 30, ..losses };
        let few_losses = Faults {
            lose_store: 4,
            roll_back: 4,
            ..crashes
        };
        vec![
            ("calm", calm.clone()),
            ("network", with(network)),
            ("crashes", with(crashes)),
            ("losses", with(losses)),
            ("clocks", with(clocks)),
            ("everything", with(everything)),
            (
                "rollouts",
                Self {
                    rollouts: Rollouts {
                        files: 3,
                        regions_move: false,
                    },
                    duration_ms: 250_000,
                    faults_until_ms: 110_000,
                    ..with(few_losses)
                },
            ),
            (
                "regions",
                Self {
                    regions: 4,
                    rollouts: Rollouts {
                        files: 2,
                        regions_move: true,
                    },
                    duration_ms: 250_000,
                    faults_until_ms: 110_000,
                    ..with(crashes)
                },
            ),
        ]
    }
}
