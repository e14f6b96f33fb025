//! The node's own clock, against which the store's is checked.

use crate::track::Mono;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Counts the time in which the machine is suspended, too: a node that slept must know that its loans went on. (Tokio's
/// and std's clocks stop there.) On macOS it is the monotonic clock that does so.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Milliseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Timespec,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            began: clock_gettime(CLOCK),
        }
    }

    pub fn now(&self) -> Mono {
        let now = clock_gettime(CLOCK);
        let ms = (now.tv_sec - self.began.tv_sec) * 1_000
            + (now.tv_nsec - self.began.tv_nsec) / 1_000_000;
        u64::try_from(ms).unwrap_or(0)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
