//! The program and the era of a server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// The eras as `clearlane --era` names them, oldest first.
pub const ERAS: [&str; 6] = ["3.0", "3.1", "3.2", "3.4", "3.5", "clearlane"];
/// The name of etcd in reports.
pub const ETCD: &str = "etcd";

/// Returns the era that has the read path of this version of etcd. Returns `None` if there is no
/// such era.
pub fn era_of_version(version: &str) -> Option<&'static str> {
    let name = match version {
        "3.3" => "3.2",
        "3.6" | "3.7" => "3.5",
        name => name,
    };
    ERAS.into_iter().find(|era| *era == name)
}

const CLEARLANE: &str = "clearlane";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProgram {
    binary: PathBuf,
    /// The era of Clearlane. `None` for etcd.
    era: Option<&'static str>,
}

impl ServerProgram {
    /// Creates a server of this era. Fails if there is no such era, or no such program.
    pub fn clearlane(binary: &Path, era: &str) -> Result<ServerProgram> {
        let Some(era) = era_of_version(era) else {
            let known = ERAS.join(", ");
            return Err(Error::Local(format!("--era {era}: unknown era; known are {known}")));
        };
        let remedy = "build it with `cargo build --release --bin clearlane`";
        check_program("--clearlane", binary, remedy)?;
        Ok(ServerProgram { binary: binary.to_owned(), era: Some(era) })
    }

    pub fn etcd(binary: &Path) -> Result<ServerProgram> {
        check_program("--etcd", binary, "give the path of etcd's server")?;
        Ok(ServerProgram { binary: binary.to_owned(), era: None })
    }

    /// Returns the path where a build puts the server: next to this program.
    pub fn clearlane_beside_this_program() -> Result<PathBuf> {
        let this = std::env::current_exe();
        let this = this.map_err(|error| {
            Error::Local(format!("cannot find the path of this program: {error}"))
        })?;
        Ok(this.with_file_name(CLEARLANE))
    }

    /// Returns the era, or [`ETCD`].
    pub fn name(&self) -> &str {
        self.era.unwrap_or(ETCD)
    }

    pub fn era(&self) -> Option<&str> {
        self.era
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Runs the program to get its version and build. These are the first two lines, in etcd's
    /// format.
    pub fn version(&self) -> Result<String> {
        let of =
            |what: String| Error::Local(format!("{} --version: {what}", self.binary.display()));
        let output = Command::new(&self.binary).arg("--version").env_clear().output();
        let output = output.map_err(|error| of(error.to_string()))?;
        if !output.status.success() {
            return Err(of(output.status.to_string()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().take(2).map(str::trim).collect::<Vec<_>>().join(", "))
    }
}

fn check_program(flag: &str, path: &Path, remedy: &str) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    Err(Error::Local(format!("{flag} {}: the program does not exist; {remedy}", path.display())))
}

#[cfg(test)]
mod tests {
    use clearlane_backend::Era;

    use super::*;

    #[test]
    fn the_eras_are_those_of_the_server() {
        assert_eq!(ERAS, Era::ALL.map(Era::name));
        for version in ["3.0", "3.3", "3.6", "3.7", "3.9"] {
            let era = version.parse::<Era>().ok().map(Era::name);
            assert_eq!(era_of_version(version), era, "{version}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_in_one_line() {
        let this = std::env::current_exe().expect("a test has a path");
        let told = ServerProgram::clearlane(&this, "3.9").map(drop).expect_err("no such era");
        let expected = "--era 3.9: unknown era; known are 3.0, 3.1, 3.2, 3.4, 3.5, clearlane";
        assert_eq!(told.to_string(), expected);
        let gone = Path::new("/gone/etcd");
        let told = ServerProgram::etcd(gone).map(drop).expect_err("no such program").to_string();
        assert_eq!(
            told,
            "--etcd /gone/etcd: the program does not exist; give the path of etcd's server"
        );
        assert!(ServerProgram::clearlane(gone, "3.2").is_err());
        let program = ServerProgram::clearlane(&this, "3.2").expect("both are there");
        assert_eq!((program.name(), program.era()), ("3.2", Some("3.2")));
    }
}
