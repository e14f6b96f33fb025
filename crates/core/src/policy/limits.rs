//! How much of everything a policies file may hold. `docs/POLICIES.md` repeats these for people.

use std::ops::RangeInclusive;

/// Units of a limit or burst: in millionths they stay below 2^53, which Lua counts exactly.
pub const UNITS: RangeInclusive<u64> = 1..=9_007_199_254;
/// Below 2^53, for the same reason.
pub const REVISION: RangeInclusive<u64> = 1..=9_007_199_254_740_991;
pub const VERSION: RangeInclusive<u64> = 1..=u32::MAX as u64;
pub const WEIGHT: RangeInclusive<u64> = 0..=1_000_000;

/// Units of a sliding log: every admission is remembered.
pub const LOG_UNITS: RangeInclusive<u64> = 1..=10_000;
/// Slots of a region: each that is taken is remembered.
pub const SLOTS: RangeInclusive<u64> = 1..=10_000;
/// Cells of a sliding window.
pub const BUCKETS: RangeInclusive<u64> = 1..=60;
pub const DEFAULT_BUCKETS: u32 = 20;
pub const NEW_SUBJECTS_PER_S: RangeInclusive<u64> = 1..=1_000_000;
/// Of a member of a pool.
pub const MEMBER_WEIGHT: RangeInclusive<u64> = 1..=1_000_000;
/// What a class of requests may have to leave, millionths of the limit.
pub const REFUSE_BELOW_PPM: RangeInclusive<u32> = 0..=990_000;
/// What `tolerance` may allow, millionths of the limit.
pub const OVER_PPM: RangeInclusive<u32> = 1..=1_000_000;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
pub const PER_MS: RangeInclusive<u64> = 100..=366 * DAY_MS;
pub const USAGE_MS: RangeInclusive<u64> = 1000..=366 * DAY_MS;
pub const SLOT_TTL_MS: RangeInclusive<u64> = 100..=DAY_MS;

pub const MAX_FILE_BYTES: usize = 4 << 20;
pub const MAX_POLICIES: usize = 1000;
pub const MAX_REGIONS: usize = 64;
pub const MAX_KEY_ATTRIBUTES: usize = 16;
pub const MAX_MATCH_ATTRIBUTES: usize = 16;
pub const MAX_PATTERN_BYTES: usize = 256;
pub const MAX_PLANS: usize = 100;
pub const MAX_OVERRIDES: usize = 10_000;
pub const MAX_CLASSES: usize = 16;
pub const MAX_POOL_WEIGHTS: usize = 10_000;

/// A smaller base than this, per region, is mostly rounding: most regions would have to borrow for every request.
pub const FEW_UNITS_A_REGION: u64 = 4;

/// 1 to 64 characters of `a-z`, `0-9`, `_` and `-`.
pub fn is_policy_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// 1 to 32 characters of `a-z`, `0-9` and `-`.
pub fn is_region_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// 1 to 64 printable ASCII characters but `=`, which ends the name on a command line.
pub fn is_attribute_name(name: &str) -> bool {
    (1..=crate::key::MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_graphic() && b != b'=')
}
