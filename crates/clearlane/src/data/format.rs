//! The file `format` with the version of a member's data, for engines other than `bolt`.
//!
//! An older program would lose data in a newer format, which it cannot read. So the directory of
//! each member with such an engine has this file. A member does not start if the file has a larger
//! number than this program's version, or any other text. A store of the engine `bolt` contains its
//! own version, as in etcd: see `store_version.rs`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clearlane_engine::EngineKind;

use super::error::{Error, Result, at};

/// The version that this program writes. Version 1 means the log and the buckets of etcd 3.7,
/// stored in an engine other than `bolt`.
const FORMAT: u32 = 1;

/// Checks the version in the file, and writes the file if there is none. Does nothing for engine
/// `bolt`.
pub(super) fn check(member_dir: &Path, kind: EngineKind) -> Result<()> {
    if kind == EngineKind::Bolt {
        return Ok(());
    }
    let path = member_dir.join("format");
    let found = match fs::read_to_string(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return write(member_dir, &path).map_err(at(&path));
        }
        Err(error) => return Err(at(&path)(error)),
    };
    match found.trim().parse::<u32>() {
        Ok(found) if (1..=FORMAT).contains(&found) => Ok(()),
        _ => Err(Error::NewerFormat { path, found: found.trim().to_owned(), known: FORMAT }),
    }
}

/// Writes the version to a temporary file and renames that file, because the next start would fail
/// if the file were only partly written.
fn write(member_dir: &Path, path: &Path) -> io::Result<()> {
    let half = member_dir.join("format.tmp");
    let mut file = File::create(&half)?;
    writeln!(file, "{FORMAT}")?;
    file.sync_all()?;
    fs::rename(&half, path)?;
    File::open(member_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), EngineKind::Sled).unwrap();
        check(dir.path(), EngineKind::Sled).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("format")).unwrap(), "1\n");
        for newer in ["2", "0", "", "one"] {
            fs::write(dir.path().join("format"), newer).unwrap();
            let message = check(dir.path(), EngineKind::Sled).unwrap_err().to_string();
            assert!(message.contains(&format!("of format {newer}, but")), "{message}");
        }
    }
}
