//! Why the program does not start.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
    status: u8,
    shows_usage: bool,
}

impl ConfigError {
    pub(super) fn usage(words: String) -> ConfigError {
        ConfigError { message: words, status: 2, shows_usage: true }
    }

    pub(super) fn value(words: String) -> ConfigError {
        ConfigError { message: words, status: 2, shows_usage: false }
    }

    pub(crate) fn fatal(words: impl Into<String>) -> ConfigError {
        ConfigError { message: words.into(), status: 1, shows_usage: false }
    }

    /// Go's 2 where a flag is wrong, otherwise 1.
    pub fn status(&self) -> u8 {
        self.status
    }

    pub fn shows_usage(&self) -> bool {
        self.shows_usage
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}
