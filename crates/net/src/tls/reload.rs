//! A value that is built from files, and rebuilt when one of them has changed. So certificates can
//! be replaced while a member runs.
//!
//! Each handshake compares the modification time, the length and the inode number of each file. If
//! any of these has changed, all files are read again. If the files cannot be used, the old value
//! stays, and the log reports this once for each change. This happens for example between the
//! replacement of a certificate and the replacement of its key. See `docs/tls.md`.
//!
//! etcd reads its certificate at each handshake, but the authorities only once, at startup. Here
//! the authorities are among the watched files.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::Error;
use super::config::FlagPath;

/// The modification time, length and inode number of a file. Equal stamps mean an unchanged file.
/// The stamp of a link is the stamp of its target. `None` if the file cannot be read.
type FileStamp = Option<(SystemTime, u64, u64)>;

type BuildFn<T> = Box<dyn Fn() -> Result<T, Error> + Send + Sync>;

pub(super) struct FileBacked<T> {
    files: Vec<PathBuf>,
    build: BuildFn<T>,
    current: Mutex<(Vec<FileStamp>, Arc<T>)>,
    reload_permit: Arc<Semaphore>,
}

impl<T: Send + Sync + 'static> FileBacked<T> {
    pub(super) fn new(
        files: impl IntoIterator<Item = FlagPath>,
        build: impl Fn() -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<FileBacked<T>, Error> {
        let files: Vec<PathBuf> = files.into_iter().map(|named| named.path).collect();
        // Take the stamps before the files are read: the next handshake then notices a change in
        // between.
        let stamps = file_stamps(&files);
        let current = Mutex::new((stamps, Arc::new(build()?)));
        let reload_permit = Arc::new(Semaphore::new(1));
        Ok(FileBacked { files, build: Box::new(build), current, reload_permit })
    }

    /// Returns the value, and rebuilds it first if a file has changed. If the changed files cannot
    /// be used, returns the old value. The files are checked on another thread, because the
    /// caller's thread serves other connections. It may be a handshake thread, the raft loop's
    /// thread when a member calls another member, or the main thread for a metrics port with TLS.
    pub(super) async fn get(self: &Arc<Self>) -> io::Result<Arc<T>> {
        let this = Arc::clone(self);
        // Only one check runs at a time, so that a disk that hangs does not block all threads of
        // the pool. The check keeps the permit even if its handshake is given up. The other
        // handshakes of this acceptor then wait for the permit until their own time-out.
        let permit = Arc::clone(&self.reload_permit).acquire_owned().await;
        let reload = move || {
            let _permit = permit;
            this.reload_if_changed()
        };
        spawn_blocking(reload).await.map_err(io::Error::other)
    }

    fn reload_if_changed(&self) -> Arc<T> {
        let found = file_stamps(&self.files);
        let mut current = self.current.lock();
        if current.0 != found {
            current.0 = found;
            match (self.build)() {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "loaded changed certificates");
                    current.1 = Arc::new(value);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot use changed certificates; keeping the old ones");
                }
            }
        }
        Arc::clone(&current.1)
    }
}

fn file_stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len(), found.ino()))
    };
    files.iter().map(stamp).collect()
}

impl<T> fmt::Debug for FileBacked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBacked").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bad_is_not_taken_and_what_is_good_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = FlagPath { flag: "cert-file", path: dir.path().join("number") };
        fs::write(&file.path, "1").unwrap();
        let read = {
            let file = file.clone();
            move || {
                let text = fs::read_to_string(&file.path).unwrap_or_default();
                text.parse::<u64>().map_err(|error| file.error(error.to_string()))
            }
        };
        let watched = FileBacked::new([file.clone()], read).unwrap();
        let first = watched.reload_if_changed();
        assert!(*first == 1 && Arc::ptr_eq(&first, &watched.reload_if_changed()));
        fs::write(&file.path, "none").unwrap();
        assert_eq!(*watched.reload_if_changed(), 1);
        fs::remove_file(&file.path).unwrap();
        assert_eq!(*watched.reload_if_changed(), 1);
        fs::write(&file.path, "234").unwrap();
        assert_eq!(*watched.reload_if_changed(), 234);
    }
}
