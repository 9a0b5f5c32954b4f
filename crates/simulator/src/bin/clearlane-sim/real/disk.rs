//! On what kind of file system a directory lies: in memory a sync costs nothing, and whoever measures it there should
//! know.

use std::fs;
use std::path::Path;

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

/// That of the longest mount point that the path begins with, and of several at one place the last.
fn kind<'m>(mounts: &'m str, path: &Path) -> Option<&'m str> {
    let mounts = mounts.lines().filter_map(|line| {
        let (place, rest) = line.split_once(" - ")?;
        Some((Path::new(place.split(' ').nth(4)?), rest.split(' ').next()?))
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
                      31 30 254:1 / /tmp/disk rw - xfs /dev/vdb rw\n";
        let of = |path| kind(mounts, Path::new(path));
        assert_eq!(of("/home/a"), Some("ext4"));
        assert_eq!(of("/tmp"), Some("tmpfs"));
        assert_eq!(of("/tmp/a/b"), Some("tmpfs"));
        assert_eq!(of("/tmp/disk/a"), Some("xfs"));
        assert_eq!(of("/tmpfiles"), Some("ext4"));
        assert_eq!(kind("", Path::new("/")), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn shared_memory_is_told_of() {
        let directory = Path::new("/dev/shm");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_there =
            mounts.lines().any(|line| line.contains(" /dev/shm ") && line.contains(" - tmpfs "));
        assert_eq!(warning(directory).is_some(), is_there);
    }
}
