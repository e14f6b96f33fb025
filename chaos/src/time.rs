//! Waiting for conditions, seeds, and the wall clock where a test has to look at it.

use crate::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const POLL: Duration = Duration::from_millis(50);

/// Asks `condition` until it holds; `what` is what the message says was waited for.
pub fn wait_until(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<(), Error> {
    wait_for(limit, what, || condition().then_some(()))
}

/// As [`wait_until`], and hands back what was found.
pub fn wait_for<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Error> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut {
                what: what.to_owned(),
                limit,
                log: String::new(),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// The seed of a run: `CHAOS_SEED` if it is set, otherwise a fresh one. Printed, so that a failure can be had again.
pub fn seed(test: &str) -> u64 {
    let seed = std::env::var("CHAOS_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("{test}: CHAOS_SEED={seed}");
    seed
}

/// Milliseconds since the Unix epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "windows are aligned to the wall clock, and a test keeps clear of their edges"
)]
pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns once no window of length `window` (aligned to the Unix epoch) ends within `room`, so that a test that counts
/// within one window isn't cut in two. Waits at most `room`.
pub fn keep_clear_of_window_end(window: Duration, room: Duration) {
    let left_ms = |now: u64| {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1);
        window_ms - now % window_ms
    };
    let left = Duration::from_millis(left_ms(now_ms()));
    if left < room && room < window {
        eprintln!("waiting {left:?} for the next window of {window:?}");
        std::thread::sleep(left + Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_in_vain_says_what_for() {
        let error = wait_until(Duration::from_millis(1), "the moon", || false).unwrap_err();
        assert!(error.to_string().contains("the moon"), "{error}");
    }

    #[test]
    fn waiting_hands_back_what_was_found() {
        let mut left = 3;
        let found = wait_for(Duration::from_secs(10), "zero", || {
            left -= 1;
            (left == 0).then_some("found")
        });
        assert_eq!(found.expect("found in time"), "found");
    }
}
