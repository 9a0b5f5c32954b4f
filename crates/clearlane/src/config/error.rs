//! The reason why the program does not start.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    /// The exit status. It is 2 if a flag is unknown or its value cannot be parsed, as in Go, and
    /// for clap's other errors, such as a missing argument. It is 1 for all other errors, such as
    /// an unknown command, or a value that is out of range or conflicts with other values.
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
