//! Why the program does not start.

use std::fmt;

/// What is said, and with which status the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    words: String,
    status: u8,
    shows_usage: bool,
}

impl Refusal {
    /// The command line is none.
    pub(super) fn usage(words: String) -> Refusal {
        Refusal { words, status: 2, shows_usage: true }
    }

    /// A value is not allowed.
    pub(super) fn value(words: String) -> Refusal {
        Refusal { words, status: 2, shows_usage: false }
    }

    /// What was said does not fit together.
    pub(crate) fn fatal(words: impl Into<String>) -> Refusal {
        Refusal { words: words.into(), status: 1, shows_usage: false }
    }

    /// The status with which the process ends: Go's 2 where a flag is wrong, otherwise 1.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Whether a look at the usage would help.
    pub fn shows_usage(&self) -> bool {
        self.shows_usage
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}
