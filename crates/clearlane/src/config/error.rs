//! Why the program does not start.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    /// Go's 2 where a flag or a value is wrong, otherwise 1.
    pub status: u8,
}

impl ConfigError {
    pub(super) fn usage(message: String) -> ConfigError {
        ConfigError { message, status: 2 }
    }

    pub(crate) fn fatal(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into(), status: 1 }
    }

    pub(super) fn in_file(self, path: &str) -> ConfigError {
        ConfigError { message: format!("{path}: {}", self.message), ..self }
    }
}
