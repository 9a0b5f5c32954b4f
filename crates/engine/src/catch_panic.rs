//! Catches the panics of a library that opens damaged files, and turns them into errors.
//!
//! sled uses assertions to check part of the data that it reads. So sled is opened inside
//! [`catch_panic`], which turns a panic into an error and does not print the usual message with its
//! backtrace.
//!
//! The panic hook belongs to the whole process. So our hook is installed once and wraps the
//! existing hook. Our hook calls the existing hook, except on a thread that is inside
//! [`catch_panic`].

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::error::one_line;

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `open`. If it panics, returns the panic's message as an error.
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
    // `AssertUnwindSafe` is correct here: after a panic no code uses a half-changed value. The
    // panic drops the values that `open` has made, and the caller does not use sled's configuration
    // again.
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
