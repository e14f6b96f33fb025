//! Periods of fixed windows: of one length, or calendar months.
//!
//! Each window of a period has a label, and the labels follow each other. UTC has no summer time, and Unix time has no
//! leap seconds, so a day always has 86,400 seconds here.

use crate::ids::StoreMs;

const DAY_MS: u64 = 86_400_000;
/// Months end here: the year 200,000.
const MONTHS_MAX: u64 = 198_030 * 12;

/// How long the windows of a policy are, and where they begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Period {
    /// Windows of `per_ms`; the first began `offset_ms` before the Unix epoch.
    Every { per_ms: u64, offset_ms: u64 },
    /// Calendar months in UTC. The label of January 1970 is 0.
    Month,
}

impl Period {
    pub const DAY: Self = Self::every(DAY_MS);
    /// ISO 8601: from Monday to Sunday. The Unix epoch was a Thursday.
    pub const WEEK: Self = Self::Every {
        per_ms: 7 * DAY_MS,
        offset_ms: 3 * DAY_MS,
    };

    /// Windows of `per_ms`, aligned to the Unix epoch.
    pub const fn every(per_ms: u64) -> Self {
        Self::Every {
            per_ms,
            offset_ms: 0,
        }
    }

    /// The label of the window that `now` falls in.
    pub const fn label(&self, now: StoreMs) -> u64 {
        match *self {
            Self::Every { per_ms, offset_ms } => now.0.saturating_add(offset_ms) / per_ms,
            Self::Month => month_of(now.0 / DAY_MS),
        }
    }

    /// The bounds `[start, end)` of a window. A label that a peer made up may be beyond the end of time.
    pub const fn bounds(&self, label: u64) -> (StoreMs, StoreMs) {
        (self.start(label), self.start(label.saturating_add(1)))
    }

    /// The longest that a window of this period can be.
    pub const fn longest_ms(&self) -> u64 {
        match *self {
            Self::Every { per_ms, .. } => per_ms,
            Self::Month => 31 * DAY_MS,
        }
    }

    /// The shortest that a window of this period can be.
    pub const fn shortest_ms(&self) -> u64 {
        match *self {
            Self::Every { per_ms, .. } => per_ms,
            Self::Month => 28 * DAY_MS,
        }
    }

    const fn start(&self, label: u64) -> StoreMs {
        match *self {
            Self::Every { per_ms, offset_ms } => {
                let start = label as u128 * per_ms as u128;
                let start = start.saturating_sub(offset_ms as u128);
                StoreMs(if start < u64::MAX as u128 {
                    start as u64
                } else {
                    u64::MAX
                })
            }
            Self::Month if label > MONTHS_MAX => StoreMs::MAX,
            Self::Month => StoreMs(first_day_of(label) * DAY_MS),
        }
    }
}

/// Days before the Unix epoch at which the count of days below begins: 1 March of the year 0.
const MARCH_0_DAYS: u64 = 719_468;
const DAYS_400_YEARS: u64 = 146_097;

/// The month, counted from January 1970, that the day falls in, counted from the Unix epoch.
///
/// Howard Hinnant, *chrono-Compatible Low-Level Date Algorithms*: years begin in March, so that leap days come last.
const fn month_of(day: u64) -> u64 {
    let day = day + MARCH_0_DAYS;
    let era = day / DAYS_400_YEARS;
    let day = day % DAYS_400_YEARS;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    // From March of the year 0 to January 1970 there are 23,638 months.
    (era * 400 + year) * 12 + month - 23_638
}

/// The day, counted from the Unix epoch, on which a month begins.
const fn first_day_of(month: u64) -> u64 {
    let month = month + 23_638;
    let (year, month) = (month / 12, month % 12);
    let (era, year) = (year / 400, year % 400);
    era * DAYS_400_YEARS + 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5 - MARCH_0_DAYS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> StoreMs {
        let at: jiff::Timestamp = format!("{text}T00:00:00Z").parse().unwrap();
        StoreMs(u64::try_from(at.as_millisecond()).unwrap())
    }

    #[test]
    fn months_have_their_lengths_also_in_leap_years() {
        for (from, to) in [
            ("1970-01-01", "1970-02-01"),
            ("2024-02-01", "2024-03-01"),
            ("2023-02-01", "2023-03-01"),
            ("2000-02-01", "2000-03-01"),
            ("2100-02-01", "2100-03-01"),
            ("2025-12-01", "2026-01-01"),
            ("2026-04-01", "2026-05-01"),
        ] {
            let (from, to) = (day(from), day(to));
            let label = Period::Month.label(from);
            assert_eq!(Period::Month.bounds(label), (from, to));
            assert_eq!(Period::Month.label(to.minus(1)), label);
            assert_eq!(Period::Month.label(to), label + 1);
            assert!(to.since(from) <= Period::Month.longest_ms());
        }
        assert_eq!(Period::Month.label(StoreMs(0)), 0);
    }

    #[test]
    fn months_agree_with_the_calendar_for_four_hundred_years() {
        let mut at = jiff::civil::date(1970, 1, 1);
        for label in 0..12 * 400 {
            let start = at.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
            let start = StoreMs(u64::try_from(start.as_millisecond()).unwrap());
            assert_eq!(Period::Month.bounds(label).0, start, "{at}");
            assert_eq!(Period::Month.label(start), label, "{at}");
            at = at.saturating_add(jiff::Span::new().months(1));
        }
    }

    #[test]
    fn weeks_begin_on_monday() {
        // 29 December 2025 began week 1 of 2026.
        let monday = day("2025-12-29");
        let label = Period::WEEK.label(monday);
        assert_eq!(Period::WEEK.bounds(label), (monday, day("2026-01-05")));
        assert_eq!(Period::WEEK.label(monday.minus(1)), label - 1);
        assert_eq!(Period::WEEK.bounds(0), (StoreMs(0), day("1970-01-05")));
    }

    #[test]
    fn a_label_beyond_the_end_of_time_has_bounds() {
        for period in [Period::DAY, Period::WEEK, Period::Month] {
            let (start, end) = period.bounds(u64::MAX);
            assert!(start <= end);
        }
    }
}
