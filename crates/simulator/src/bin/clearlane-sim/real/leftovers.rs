//! An interrupted measurement leaves nothing behind: no server that runs on, no gigabyte among the
//! temporary files.
//!
//! A signal ends a program where it stands, and nothing that would be done when values are dropped
//! is done. So what would be left is noted in one place, and a thread that waits for signals clears
//! it away before it lets the signal have its way.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tempfile::TempDir;

/// What there is now. A thread that locks this one and one of them locks this one first.
static ALL: Mutex<Vec<Arc<Mutex<Leftover>>>> = Mutex::new(Vec::new());
static WATCHED: Once = Once::new();

/// A directory, and the server that keeps its data there.
#[derive(Debug)]
struct Leftover {
    directory: Option<TempDir>,
    child: Option<Child>,
}

impl Leftover {
    /// Nothing in its directory is worth an orderly end.
    fn clear(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.directory = None;
    }
}

/// A place for a server, which ends with this, or with this program.
#[derive(Debug)]
pub(super) struct ServerDirectory {
    leftover: Arc<Mutex<Leftover>>,
    directory: PathBuf,
}

impl ServerDirectory {
    /// In there.
    pub(super) fn new(parent: &Path) -> io::Result<ServerDirectory> {
        WATCHED.call_once(watch);
        let mut all = lock(&ALL);
        let made = TempDir::new_in(parent)?;
        let directory = made.path().to_owned();
        let leftover = Leftover { directory: Some(made), child: None };
        let leftover = Arc::new(Mutex::new(leftover));
        all.push(Arc::clone(&leftover));
        Ok(ServerDirectory { leftover, directory })
    }

    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    /// Says which process it is.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<u32> {
        let mut leftover = lock(&self.leftover);
        let id = leftover.child.insert(command.spawn()?).id();
        Ok(id)
    }

    /// How it has ended, if it has.
    pub(super) fn has_ended(&self) -> Option<String> {
        let status = lock(&self.leftover).child.as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }
}

impl Drop for ServerDirectory {
    fn drop(&mut self) {
        lock(&self.leftover).clear();
        lock(&ALL).retain(|leftover| !Arc::ptr_eq(leftover, &self.leftover));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn watch() {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    // Where that cannot be, a signal ends this program as it would any other.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            // All of it is held till the end: no thread starts a server meanwhile, and no thread
            // that misses its own ends the program before its data is gone.
            let all = lock(&ALL);
            let mut leftovers: Vec<_> = all.iter().map(|leftover| lock(leftover)).collect();
            leftovers.iter_mut().for_each(|leftover| leftover.clear());
            let _ = emulate_default_handler(signal);
        }
    });
}

#[cfg(not(unix))]
fn watch() {}
