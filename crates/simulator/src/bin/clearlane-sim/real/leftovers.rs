//! Who interrupts a measurement leaves nothing behind: no server that runs on, no gigabyte among the temporary files.
//!
//! A signal ends a program where it stands, and nothing that would be done when values are dropped is done. So what
//! would be left is noted in one place, and a thread that waits for signals clears it away before it lets the signal
//! have its way.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

/// What runs now.
static ALL: Mutex<Vec<Leftover>> = Mutex::new(Vec::new());
static WATCHED: Once = Once::new();

/// A server and where it keeps its data.
#[derive(Clone, Debug)]
struct Leftover {
    child: Arc<Mutex<Child>>,
    directory: PathBuf,
}

/// A process that ends with this, or with this program.
#[derive(Debug)]
pub(super) struct Running(Arc<Mutex<Child>>);

impl Running {
    /// A signal waits until it is noted.
    pub(super) fn start(command: &mut Command, directory: &Path) -> io::Result<Running> {
        WATCHED.call_once(watch);
        let mut all = all();
        let child = Arc::new(Mutex::new(command.spawn()?));
        all.push(Leftover { child: Arc::clone(&child), directory: directory.to_owned() });
        Ok(Running(child))
    }

    /// While it is looked at, no signal ends it.
    pub(super) fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.child());
        all().retain(|leftover| !Arc::ptr_eq(&leftover.child, &self.0));
    }
}

fn all() -> MutexGuard<'static, Vec<Leftover>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing in its directory is worth an orderly end.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(unix)]
fn watch() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    // Where that cannot be, a signal ends this program as it would any other.
    let Ok(mut signals) = Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            for Leftover { child, directory } in all().drain(..) {
                end(&mut child.lock().unwrap_or_else(PoisonError::into_inner));
                let _ = std::fs::remove_dir_all(directory);
            }
            let _ = emulate_default_handler(signal);
        }
    });
}

#[cfg(not(unix))]
fn watch() {}
