//! Limits the log lines that clients can cause. A limiter admits 100 lines per second for all its
//! clients together, and counts the lines that it omits.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum number of lines in a window. The errors of one misconfigured client are all logged,
/// while a flood causes on average at most one line per 10 ms.
const LINES_PER_WINDOW_MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct LogLimiter {
    state: Mutex<LimiterWindow>,
}

#[derive(Debug)]
struct LimiterWindow {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Default for LogLimiter {
    fn default() -> Self {
        let window = LimiterWindow { since: Instant::now(), lines: 0, left_out: 0 };
        LogLimiter { state: Mutex::new(window) }
    }
}

impl LogLimiter {
    /// Returns `None` if this line must be omitted. Otherwise returns the number of lines that were
    /// omitted since the last logged line.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.state.lock();
        if now.saturating_duration_since(window.since) >= WINDOW {
            (window.since, window.lines) = (now, 0);
        }
        if window.lines == LINES_PER_WINDOW_MAX {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_logged() {
        let (log, now) = (LogLimiter::default(), Instant::now());
        for _ in 0..LINES_PER_WINDOW_MAX {
            assert_eq!(log.admit_at(now), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(log.admit_at(now), None);
        }
        assert_eq!(log.admit_at(now + WINDOW), Some(7));
        assert_eq!(log.admit_at(now + WINDOW), Some(0));
    }
}
