//! Opening damaged files with code that may panic over them.
//!
//! sled asserts part of what it reads. An open runs here: a panic becomes an error, and the
//! usual message with its backtrace is not printed.
//!
//! The panic hook is the process's, so ours is put around the one it finds, once, and keeps quiet
//! only on a thread that is inside [`catch_panic`].

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::error::one_line;

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `open`; returns the message of a panic as an error.
pub(crate) fn catch_panic<T>(open: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CATCHING.get() {
                previous(info);
            }
        }));
    });
    IS_CATCHING.set(true);
    // What the closure borrowed is dropped with the failed open, so no code sees it half changed.
    let outcome = panic::catch_unwind(AssertUnwindSafe(open));
    IS_CATCHING.set(false);
    outcome.map_err(|payload| message_of(&*payload))
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    one_line(&text.unwrap_or_else(|| "no message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::catch_panic;

    #[test]
    fn a_panic_becomes_its_message_on_one_line() {
        assert_eq!(catch_panic(|| 5), Ok(5));
        let failed = catch_panic(|| -> u8 { panic!("page {}\n  is gone", 7) });
        assert_eq!(failed, Err("page 7 is gone".to_owned()));
    }
}
