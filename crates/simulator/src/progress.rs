//! What the leader knows of the logs of the voting members, and which entry a quorum has.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::entries::{Batch, LEADER};

#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) appended: Cell<u64>,
    /// By voting member: the last entry known to be in its log.
    pub(crate) synced: RefCell<Vec<u64>>,
    pub(crate) uncommitted: RefCell<VecDeque<Rc<Batch>>>,
}

impl Progress {
    pub(crate) fn new(voters: usize) -> Progress {
        Progress { synced: RefCell::new(vec![0; voters]), ..Progress::default() }
    }

    /// The last entry that a quorum has; with `leader_first` the leader must be part of it.
    pub(crate) fn of_a_quorum(&self, leader_first: bool) -> u64 {
        let synced = self.synced.borrow();
        let has = |entry: u64| synced.iter().filter(|last| **last >= entry).count();
        let by_most = synced.iter().copied().filter(|last| 2 * has(*last) > synced.len()).max();
        let by_most = by_most.unwrap_or(0);
        if leader_first { by_most.min(synced[LEADER]) } else { by_most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(synced: &[u64], leader_first: bool) -> u64 {
        let progress = Progress::new(synced.len());
        *progress.synced.borrow_mut() = synced.to_vec();
        progress.of_a_quorum(leader_first)
    }

    #[test]
    fn a_majority_of_voters_decides() {
        assert_eq!(committed(&[7], true), 7);
        assert_eq!(committed(&[7, 5, 3], true), 5);
        assert_eq!(committed(&[7, 0, 0], true), 0);
        assert_eq!(committed(&[9, 8, 7, 2, 1], false), 7);
        // The leader is last: etcd waits for it.
        assert_eq!(committed(&[2, 8, 7], false), 7);
        assert_eq!(committed(&[2, 8, 7], true), 2);
    }
}
