//! Where the deterministic cluster plants faults, a member as it is delivered does nothing.

use clearlane_raft as raft;

use super::{Applier, ApplyReport, Replica, ToApply};
use crate::applied_position::AppliedPosition;
use crate::error::Result;

impl Replica {
    pub(super) fn keeps_lease(&self) -> bool {
        false
    }

    pub(super) fn spoil_append(&mut self, append: raft::ReadyAppend) -> Result<raft::ReadyAppend> {
        Ok(append)
    }

    pub(super) fn spoil_read_request(&mut self, context: u64) -> Option<u64> {
        Some(context)
    }

    pub(super) fn spoil_read_context(&self, context: u64) -> u64 {
        context
    }

    pub(super) fn spoil_apply_report(&mut self, applied: ApplyReport) -> ApplyReport {
        applied
    }

    pub(super) fn spoil_install(&mut self, _index: u64) -> Result<()> {
        Ok(())
    }

    pub(super) fn spoil_durable(&self, durable: &AppliedPosition) -> AppliedPosition {
        durable.clone()
    }
}

impl Applier {
    pub(super) fn complete_early(&mut self, _work: &ToApply) {}

    pub(super) fn completes_before_apply(&self) -> bool {
        false
    }

    pub(super) fn applies_twice(&self) -> bool {
        false
    }

    pub(super) fn apply_count(&mut self) -> usize {
        1
    }

    pub(super) fn completion_count(&self) -> usize {
        1
    }
}
