//! Points in a long computation where its thread can pause it and do other work first.
//!
//! Code that reads or sorts for a long time counts its bytes in [`YieldPoints`]. After every 64
//! KiB, `YieldPoints` calls the hook of the thread. In the read pool the hook lets other jobs run,
//! and ends a job that no request waits for any longer. On a thread without a hook, only the count
//! changes.

use std::cell::Cell;

thread_local! {
    static YIELD_HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
}

#[derive(Debug, Default)]
pub struct YieldPoints {
    bytes_in_step: usize,
}

impl YieldPoints {
    /// Number of bytes in a step. A thread reads and copies this amount in about a tenth of a
    /// millisecond.
    pub const BYTES_PER_STEP: usize = 64 << 10;

    /// Counts bytes, and calls the hook at the end of a step. On a thread with a hook, the caller
    /// must hold no lock, because the hook may block or unwind.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        if self.is_step_done(bytes)
            && let Some(hook) = YIELD_HOOK.get()
        {
            hook();
        }
    }

    fn is_step_done(&mut self, bytes: usize) -> bool {
        self.bytes_in_step += bytes;
        let ends = self.bytes_in_step >= YieldPoints::BYTES_PER_STEP;
        if ends {
            self.bytes_in_step = 0;
        }
        ends
    }
}

/// Sets the hook of this thread, in place of any earlier hook.
pub fn set_yield_hook(hook: fn()) {
    YIELD_HOOK.set(Some(hook));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_after_its_bytes() {
        let mut steps = YieldPoints::default();
        let ends: Vec<bool> =
            (0..5).map(|_| steps.is_step_done(YieldPoints::BYTES_PER_STEP / 2)).collect();
        assert_eq!(ends, [false, true, false, true, false]);
        assert!(steps.is_step_done(10 * YieldPoints::BYTES_PER_STEP));
    }
}
