//! Why the program does not start.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    /// Go's 2 where a flag is wrong, otherwise 1.
    pub status: u8,
    pub shows_usage: bool,
}

impl ConfigError {
    pub(super) fn usage(message: String) -> ConfigError {
        ConfigError { message, status: 2, shows_usage: true }
    }

    pub(super) fn value(message: String) -> ConfigError {
        ConfigError { message, status: 2, shows_usage: false }
    }

    pub(crate) fn fatal(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into(), status: 1, shows_usage: false }
    }
}
