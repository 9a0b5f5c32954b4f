//! Stacks of addresses and their names. A signal handler and an allocator can record them.
//!
//! Recording allocates nothing and takes no lock of this program. A thread that is recording must
//! not start another recording: a signal may arrive while the allocator records a stack, and the
//! map of samples allocates memory. [`begin`] prevents this.

#![allow(unsafe_code, reason = "the unwinder without its lock, which a signal handler needs")]

use std::cell::Cell;

/// Maximum number of frames of a stack. Further frames are omitted.
pub(super) const FRAMES_MAX: usize = 64;

/// A list of return addresses, the innermost first.
#[derive(Clone, Copy)]
pub(super) struct Stack {
    frames: [usize; FRAMES_MAX],
    len: usize,
}

impl Stack {
    pub(super) const EMPTY: Stack = Stack { frames: [0; FRAMES_MAX], len: 0 };

    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..self.len]
    }
}

thread_local! {
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
}

pub(super) struct Recording(());

/// Starts a recording. Returns `None` if this thread is already recording.
pub(super) fn begin() -> Option<Recording> {
    // `then_some` would create a recording even if there is one already, and dropping it would
    // clear the flag.
    (!IS_RECORDING.replace(true)).then(|| Recording(()))
}

impl Drop for Recording {
    fn drop(&mut self) {
        IS_RECORDING.set(false);
    }
}

impl Recording {
    /// Returns the stack of this thread. A signal handler passes the address of the interrupted
    /// instruction as `from`, and the stack then omits the handler's own frames. If `from` is
    /// `None`, or if the unwinder does not find that address, the stack also includes the frames of
    /// the recording itself.
    pub(super) fn stack(&self, from: Option<usize>) -> Stack {
        let mut stack = Stack::EMPTY;
        let mut has_begun = from.is_none();
        let push = |stack: &mut Stack, address| {
            // The outermost frame of a thread may have no address.
            if address == 0 {
                return false;
            }
            stack.frames[stack.len] = address;
            stack.len += 1;
            stack.len < FRAMES_MAX
        };
        // SAFETY: two threads may unwind at the same time. A lock is needed only for names, and no
        // names are resolved here.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let address = frame.ip().addr();
                if from == Some(address) && !has_begun {
                    has_begun = true;
                    // `address` is the interrupted instruction and not a return address. The lookup
                    // of names subtracts one from each address, so one is added here.
                    stack.len = 0;
                    return push(&mut stack, address + 1);
                }
                push(&mut stack, address)
            });
        }
        stack
    }
}

/// One function at an address. An address has several functions if some were inlined.
pub(super) struct NamedFrame {
    pub(super) function: String,
    /// The name of the function in the symbol table.
    pub(super) symbol: String,
    pub(super) file: String,
    pub(super) line: u32,
}

/// Reads the names at an address from the program's symbols. The list is empty if the symbols do
/// not contain the address.
pub(super) fn names(address: usize) -> Vec<NamedFrame> {
    let mut frames = Vec::new();
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        let Some(name) = symbol.name() else { return };
        frames.push(NamedFrame {
            function: format!("{name:#}"),
            symbol: name.as_str().map(str::to_owned).unwrap_or_default(),
            file: symbol.filename().map(|file| file.display().to_string()).unwrap_or_default(),
            line: symbol.lineno().unwrap_or_default(),
        });
    });
    frames
}
