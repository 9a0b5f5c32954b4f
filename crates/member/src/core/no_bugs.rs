//! Where the deterministic cluster plants faults, a member as it is delivered does nothing.

use clearlane_raft_log::driver;

use super::{Applied, Applier, Core, ToApply};
use crate::error::Result;
use crate::progress::Progress;

impl Core {
    pub(super) fn keeps_lease(&self) -> bool {
        false
    }

    pub(super) fn spoil_append(&mut self, append: driver::Append) -> Result<driver::Append> {
        Ok(append)
    }

    pub(super) fn spoil_question(&mut self, context: u64) -> Option<u64> {
        Some(context)
    }

    pub(super) fn spoil_answer(&self, context: u64) -> u64 {
        context
    }

    pub(super) fn spoil_applied(&mut self, applied: Applied) -> Applied {
        applied
    }

    pub(super) fn spoil_install(&mut self, _index: u64) -> Result<()> {
        Ok(())
    }

    pub(super) fn spoil_durable(&self, durable: &Progress) -> Progress {
        durable.clone()
    }
}

impl Applier {
    pub(super) fn answer_early(&mut self, _work: &ToApply) {}

    pub(super) fn replies_first(&self) -> bool {
        false
    }

    pub(super) fn applies_twice(&self) -> bool {
        false
    }

    pub(super) fn times(&mut self) -> usize {
        1
    }

    pub(super) fn answers(&self) -> usize {
        1
    }
}
