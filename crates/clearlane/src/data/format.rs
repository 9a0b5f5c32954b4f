//! The file with the version of a member's data, where the store is none of etcd's.
//!
//! A program would lose what it does not understand of a newer one's data. So the first file in a
//! member's directory has a number, and one that is higher than ours is refused. A store of the
//! engine `bolt` says its version itself, as etcd's does; there, the file is what a former version
//! of this program has left.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clearlane_engine::EngineKind;

use super::error::{Error, Result, at};

/// How this program writes: 1 is the log and the buckets of etcd 3.7 in an engine of ours.
const FORMAT: u32 = 1;

/// Writes the version if there is none and one is needed.
pub(super) fn check(member_dir: &Path, kind: EngineKind) -> Result<()> {
    let path = member_dir.join("format");
    let found = match fs::read_to_string(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match kind {
                EngineKind::Bolt => Ok(()),
                EngineKind::Sled | EngineKind::Memory => {
                    write(member_dir, &path).map_err(at(&path))
                }
            };
        }
        Err(error) => return Err(at(&path)(error)),
    };
    match found.trim().parse::<u32>() {
        Ok(found) if (1..=FORMAT).contains(&found) => Ok(()),
        _ => Err(Error::NewerFormat { path, found: found.trim().to_owned(), known: FORMAT }),
    }
}

/// By a rename: a half-written file would be refused.
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
            let told = check(dir.path(), EngineKind::Sled).unwrap_err().to_string();
            assert!(told.contains(&format!("of format {newer}, and")), "{told}");
        }
    }
}
