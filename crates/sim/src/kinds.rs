//! The kinds of runs that are looked at by default.

use crate::files::Rollouts;
use crate::{Faults, Setup};
use apportion_core::lives::OnEmpty;

const REGIONS: &str = r#"regions = ["a", "b", "c"]
"#;

const WINDOWS: &str = r#"
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
"#;

const BUCKETS: &str = r#"
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
"#;

// More than what flows in while a lender waits for its margin: what is refilled for that time shows.
const DEEP: &str = r#"
[[policy]]
name = "deep"
key = ["tenant"]
algorithm = "token-bucket"
limit = 240
per = "1m"
burst = 160
"#;

// Most of the budget is one region's: what another has borrowed of it is more than its own, which counts as lent in a new
// epoch and would make up for it.
const UNEVEN: &str = r#"
[[policy]]
name = "uneven"
key = ["tenant"]
algorithm = "token-bucket"
limit = 240
per = "1m"
burst = 60
weights = { a = 6, b = 1, c = 1 }

[[policy]]
name = "level"
key = ["tenant"]
algorithm = "gcra"
limit = 180
per = "1m"
burst = 40
weights = { a = 1, b = 4, c = 1 }
"#;

// Longer than the margins of a loan: what is reclaimed too early shows.
const SLIDING: &str = r#"
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
"#;

const PLANS: &str = r#"
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

/// Every algorithm under every tolerance but never-over.
const TOLERANT: &str = r#"
regions = ["a", "b", "c"]

[[policy]]
name = "day-over"
key = ["tenant"]
algorithm = "fixed-window"
limit = 200
per = "day"
usage = "1h"
tolerance = { over = "10%" }

[[policy]]
name = "short-over"
key = ["tenant"]
algorithm = "fixed-window"
limit = 60
per = "10s"
weights = { a = 2, b = 1, c = 1 }
tolerance = { over = "25%" }

[[policy]]
name = "rate-over"
key = ["tenant"]
algorithm = "token-bucket"
limit = 240
per = "1m"
burst = 60
tolerance = { over = "20%" }

[[policy]]
name = "log-over"
key = ["tenant"]
algorithm = "sliding-log"
limit = 60
per = "45s"
tolerance = { over = "10%" }

[[policy]]
name = "cells-over"
key = ["tenant"]
algorithm = "sliding-window"
limit = 60
per = "45s"
tolerance = { over = "100%" }

[[policy]]
name = "classic-over"
key = ["tenant"]
algorithm = "sliding-window"
buckets = 1
limit = 50
per = "40s"
tolerance = { over = "10%" }

[[policy]]
name = "day-under"
key = ["tenant"]
algorithm = "fixed-window"
limit = 600
per = "day"
usage = "1h"
tolerance = "never-under"

[[policy]]
name = "short-under"
key = ["tenant"]
algorithm = "fixed-window"
limit = 60
per = "20s"
tolerance = "never-under"

[[policy]]
name = "rate-under"
key = ["tenant"]
algorithm = "gcra"
limit = 240
per = "1m"
burst = 60
tolerance = "never-under"

[[policy]]
name = "log-under"
key = ["tenant"]
algorithm = "sliding-log"
limit = 60
per = "45s"
tolerance = "never-under"

[[policy]]
name = "cells-under"
key = ["tenant"]
algorithm = "sliding-window"
limit = 60
per = "45s"
tolerance = "never-under"

[[policy]]
name = "classic-under"
key = ["tenant"]
algorithm = "sliding-window"
buckets = 1
limit = 50
per = "40s"
tolerance = "never-under"
"#;

const SHORT: &str = r#"
[[policy]]
name = "second"
key = ["tenant"]
algorithm = "fixed-window"
limit = 12
per = "1s"

[[policy]]
name = "five"
key = ["tenant"]
algorithm = "fixed-window"
limit = 30
per = "5s"
weights = { a = 2, b = 1, c = 1 }
usage = "1h"

[[policy]]
name = "log3"
key = ["tenant"]
algorithm = "sliding-log"
limit = 18
per = "3s"

[[policy]]
name = "cells5"
key = ["tenant"]
algorithm = "sliding-window"
limit = 30
per = "5s"

[[policy]]
name = "classic2"
key = ["tenant"]
algorithm = "sliding-window"
buckets = 1
limit = 12
per = "2s"

[[policy]]
name = "quick"
key = ["tenant"]
algorithm = "token-bucket"
limit = 10
per = "1s"
burst = 20
"#;

fn policies(parts: &[&str]) -> String {
    [&[REGIONS], parts].concat().concat()
}

fn without_the_third(policies: &str) -> String {
    policies.replace(", \"c\"", "").replace(", c = 1", "")
}

impl Setup {
    /// Each kind by its name.
    pub fn kinds() -> Vec<(&'static str, Self)> {
        let all = policies(&[WINDOWS, BUCKETS, SLIDING, PLANS]);
        let calm = Self {
            policies: all.clone(),
            pair: Some(without_the_third(&all)),
            regions: 3,
            nodes: 1,
            duration_ms: 50_000,
            delay_ms: (1, 80),
            faults: Faults::default(),
            faults_until_ms: 29_000,
            boots_ms: 0,
            requests_per_s: 7,
            one_sided: false,
            flip_at_ms: None,
            on_empty: OnEmpty::Ask,
            rollouts: Rollouts::default(),
            stated: None,
        };
        let with = |faults: Faults| Self {
            faults,
            ..calm.clone()
        };
        let two = |faults: Faults| Self {
            nodes: 2,
            ..with(faults)
        };
        let of = |parts: &[&str], setup: Self| {
            let policies = policies(parts);
            Self {
                pair: Some(without_the_third(&policies)),
                policies,
                ..setup
            }
        };
        let none = Faults::default();
        let network = Faults {
            lose: 100,
            double: 100,
            late: 10,
            cut: 100,
            late_call: 5,
            ..none
        };
        let crashes = Faults {
            crash: 60,
            pause: 60,
            ..network
        };
        let losses = Faults {
            lose_store: 25,
            roll_back: 15,
            ..network
        };
        let few_losses = Faults {
            lose_store: 4,
            roll_back: 4,
            ..crashes
        };
        let slips = Faults {
            slip: 60,
            late_call: 20,
            double: 50,
            cut: 200,
            ..none
        };
        let steps = Faults {
            step: 50,
            slip: 20,
            ..network
        };
        let most = Faults {
            crash: 40,
            pause: 40,
            restart: 15,
            step: 20,
            slip: 20,
            isolate: 15,
            time_out: 10,
            ..losses
        };
        let everything = Faults { lull: 10, ..most };
        let tolerant = |faults: Faults| Self {
            policies: TOLERANT.into(),
            pair: Some(without_the_third(TOLERANT)),
            ..two(faults)
        };
        vec![
            ("calm", calm.clone()),
            (
                "network",
                Self {
                    pair: None,
                    ..with(network)
                },
            ),
            (
                "reordered",
                Self {
                    delay_ms: (1, 4_000),
                    ..with(Faults {
                        late: 50,
                        double: 200,
                        ..none
                    })
                },
            ),
            ("cuts", with(Faults { cut: 300, ..none })),
            (
                "partitions",
                with(Faults {
                    isolate: 80,
                    late: 150,
                    ..none
                }),
            ),
            ("crashes", two(crashes)),
            (
                "restarts",
                two(Faults {
                    restart: 80,
                    crash: 20,
                    ..network
                }),
            ),
            (
                "lapses",
                with(Faults {
                    pause: 200,
                    crash: 60,
                    late_call: 20,
                    cut: 50,
                    ..none
                }),
            ),
            (
                "timeouts",
                two(Faults {
                    time_out: 100,
                    late_call: 50,
                    ..network
                }),
            ),
            ("losses", with(losses)),
            (
                "rollbacks",
                with(Faults {
                    roll_back: 50,
                    lose_store: 0,
                    ..losses
                }),
            ),
            (
                "split losses",
                with(Faults {
                    isolate: 60,
                    lose_isolated: 60,
                    ..network
                }),
            ),
            (
                "boots",
                Self {
                    boots_ms: 30_000,
                    ..with(Faults {
                        lose_store: 40,
                        cut: 60,
                        lose: 100,
                        late: 10,
                        ..none
                    })
                },
            ),
            (
                "forgetful",
                Self {
                    requests_per_s: 11,
                    ..of(
                        &[WINDOWS, SHORT, BUCKETS],
                        with(Faults {
                            lose_store: 80,
                            roll_back: 30,
                            lose: 50,
                            late: 30,
                            ..none
                        }),
                    )
                },
            ),
            ("slips", two(slips)),
            ("clocks", two(Faults { crash: 30, ..steps })),
            (
                "leaps",
                with(Faults {
                    leap: 50,
                    cut: 100,
                    late_call: 20,
                    ..none
                }),
            ),
            (
                "idle",
                with(Faults {
                    lull: 60,
                    lose_store: 15,
                    ..steps
                }),
            ),
            (
                "short",
                of(
                    &[SHORT],
                    with(Faults {
                        step: 40,
                        slip: 20,
                        ..losses
                    }),
                ),
            ),
            (
                "stalls",
                of(
                    &[SHORT, WINDOWS],
                    two(Faults {
                        slip: 100,
                        late_call: 150,
                        ..none
                    }),
                ),
            ),
            (
                "deep",
                Self {
                    requests_per_s: 11,
                    ..of(
                        &[DEEP],
                        with(Faults {
                            cut: 300,
                            isolate: 30,
                            ..none
                        }),
                    )
                },
            ),
            (
                "pulses",
                of(
                    &[BUCKETS, SHORT],
                    with(Faults {
                        lull: 250,
                        cut: 100,
                        ..none
                    }),
                ),
            ),
            ("windows", of(&[WINDOWS, SHORT], with(most))),
            ("sliding", of(&[SLIDING], with(most))),
            ("buckets", of(&[BUCKETS], with(most))),
            ("plans", of(&[PLANS], two(most))),
            (
                "echoes",
                Self {
                    delay_ms: (1, 4_000),
                    ..of(
                        &[UNEVEN],
                        with(Faults {
                            slip: 150,
                            double: 200,
                            ..none
                        }),
                    )
                },
            ),
            (
                "pair",
                Self {
                    policies: without_the_third(&policies(&[WINDOWS, BUCKETS, SLIDING])),
                    pair: None,
                    regions: 2,
                    ..two(most)
                },
            ),
            (
                "rollouts",
                Self {
                    pair: None,
                    rollouts: Rollouts {
                        files: 3,
                        regions_move: false,
                    },
                    duration_ms: 80_000,
                    faults_until_ms: 38_000,
                    ..with(few_losses)
                },
            ),
            (
                "regions",
                Self {
                    pair: None,
                    regions: 4,
                    rollouts: Rollouts {
                        files: 2,
                        regions_move: true,
                    },
                    duration_ms: 80_000,
                    faults_until_ms: 38_000,
                    ..with(crashes)
                },
            ),
            ("everything", two(everything)),
            ("tolerant", tolerant(none)),
            ("tolerant-crashes", tolerant(crashes)),
            ("tolerant-everything", tolerant(most)),
        ]
    }

    /// The kind and setup that a seed is of where no kind is asked for: they take turns.
    pub fn of_seed(seed: u64, kinds: &[(&'static str, Self)]) -> usize {
        usize::try_from(seed % kinds.len() as u64).expect("an index")
    }
}
