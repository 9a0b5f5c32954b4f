//! What is there to know of a disk before a server writes to it.
//!
//! On what kind of file system a directory lies: in memory a sync costs nothing, and the user that
//! measures it there should know. And how much of a sync is computing: a server sees only how long
//! it takes as a whole.

use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_loadgen::process::Process;
use clearlane_simulator::calibration::derive::PUTS_OFTEN;

/// The kinds that lie in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// What to say of a directory that lies in memory.
pub(crate) fn warning(directory: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let whole = directory.canonicalize().ok()?;
    let kind = kind(&mounts, &whole).filter(|kind| IN_MEMORY.contains(kind))?;
    Some(format!(
        "{} lies in memory ({kind}), where a sync costs nothing; --dir says which disk counts",
        directory.display()
    ))
}

/// Bytes of a small entry of a log.
const ENTRY: [u8; 200] = [b'e'; 200];
/// For a processor time that is counted in hundredths of a second.
const SYNCS: u64 = 2_000;

/// What a sync of a small entry computes, if they come as often as puts: in nanoseconds, of this
/// process.
pub(crate) fn sync_ns(directory: &Path) -> Result<f64, String> {
    let own = Process::open(process::id()).map_err(|error| error.to_string())?;
    let used = || own.usage().map(|used| used.processor).map_err(|error| error.to_string());
    let of = |error: io::Error| format!("{}: {error}", directory.display());
    // As in a log, there is a place for each already.
    let mut file = tempfile::tempfile_in(directory).map_err(of)?;
    file.write_all(&vec![0; ENTRY.len() * SYNCS as usize]).map_err(of)?;
    file.sync_all().and_then(|()| file.rewind()).map_err(of)?;
    let (begin, before) = (Instant::now(), used()?);
    for number in 1..=SYNCS {
        file.write_all(&ENTRY).and_then(|()| file.sync_data()).map_err(of)?;
        let next = Duration::from_secs_f64(number as f64 / PUTS_OFTEN);
        thread::sleep(next.saturating_sub(begin.elapsed()));
    }
    Ok((used()? - before).as_nanos() as f64 / SYNCS as f64)
}

/// That of the longest mount point that the path begins with, and of several at one place the last.
fn kind<'m>(mounts: &'m str, path: &Path) -> Option<&'m str> {
    let mounts = mounts.lines().filter_map(|line| {
        let (place, rest) = line.split_once(" - ")?;
        // A blank in a name would end it.
        let point = place.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(point), rest.split(' ').next()?))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_point_says_it() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      30 22 0:25 / /tmp rw shared:5 - tmpfs tmpfs rw\n\
                      31 30 254:1 / /tmp/disk rw - xfs /dev/vdb rw\n\
                      32 22 254:2 / /my\\040disk rw - btrfs /dev/vdc rw\n";
        let of = |path| kind(mounts, Path::new(path));
        assert_eq!(of("/srv/a"), Some("ext4"));
        assert_eq!(of("/tmp"), Some("tmpfs"));
        assert_eq!(of("/tmp/a/b"), Some("tmpfs"));
        assert_eq!(of("/tmp/disk/a"), Some("xfs"));
        assert_eq!(of("/tmpfiles"), Some("ext4"));
        assert_eq!(of("/my disk/a"), Some("btrfs"));
        assert_eq!(kind("", Path::new("/")), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_sync_computes_something() {
        let (directory, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        let ns = sync_ns(directory.path()).unwrap();
        assert!(ns > 0.0 && ns * (SYNCS as f64) < 2.0 * begin.elapsed().as_nanos() as f64, "{ns}");
        let words = sync_ns(Path::new("/nowhere")).unwrap_err();
        assert!(words.starts_with("/nowhere: "), "{words}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_the_system_says_is_understood() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(kind(&mounts, Path::new("/")).is_some(), "{mounts}");
        assert_eq!(kind(&mounts, Path::new("/proc/self")), Some("proc"));
        assert_eq!(warning(Path::new("/proc/self")), None);
    }
}
