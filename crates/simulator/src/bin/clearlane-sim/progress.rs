//! How far a long run is: on a terminal, and nowhere else.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// A user that has to wait for less wants to see nothing.
const PATIENCE: Duration = Duration::from_millis(700);
const BETWEEN: Duration = Duration::from_millis(100);

/// The line of a run that is under way. It is gone when this is.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    start: Instant,
    said: Option<Instant>,
    is_watched: bool,
}

impl Progress {
    pub(crate) fn of(what: &str) -> Progress {
        let is_watched = io::stderr().is_terminal();
        Progress { what: what.to_owned(), start: Instant::now(), said: None, is_watched }
    }

    /// Says it, if it is time to.
    pub(crate) fn say(&mut self, share: f64) {
        let now = Instant::now();
        let is_due = self.said.map_or(now - self.start > PATIENCE, |said| now - said > BETWEEN);
        if self.is_watched && is_due {
            self.said = Some(now);
            let line = line(&self.what, share, now - self.start);
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.said.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, share: f64, took: Duration) -> String {
    let left_s = if share > 0.0 { took.as_secs_f64() * (1.0 - share) / share } else { 0.0 };
    format!("{what}: {:.0} %, {left_s:.0} s left", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_is_done() {
        assert_eq!(line("era 3.2", 0.25, Duration::from_secs(5)), "era 3.2: 25 %, 15 s left");
    }
}
