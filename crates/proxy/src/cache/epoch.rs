//! Epochs of the cluster behind the proxy.
//!
//! A new epoch starts when the proxy notices that the cluster was replaced, or restored from a
//! backup. The revisions of two epochs cannot be compared. So each revision that the proxy keeps
//! belongs to an epoch, and so does each watch of a client.

use parking_lot::Mutex;

/// The newest revision that was noted in the newest epoch.
#[derive(Debug, Default)]
pub struct NewestRevision {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    epoch: u64,
    revision: i64,
}

impl NewestRevision {
    /// Notes a revision. The revisions of earlier epochs are forgotten, and are ignored if they are
    /// noted late.
    pub fn note(&self, epoch: u64, revision: i64) {
        let mut noted = self.noted.lock();
        if noted.epoch < epoch {
            *noted = Noted { epoch, revision };
        } else if noted.epoch == epoch {
            noted.revision = noted.revision.max(revision);
        }
    }

    /// Returns the newest revision of this epoch, or 0 if there is none.
    pub fn of(&self, epoch: u64) -> i64 {
        let noted = self.noted.lock();
        if noted.epoch == epoch { noted.revision } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_forgets_the_revisions_of_earlier_ones() {
        let newest = NewestRevision::default();
        newest.note(0, 1000);
        newest.note(0, 900);
        assert_eq!((newest.of(0), newest.of(1)), (1000, 0));
        newest.note(1, 500);
        newest.note(0, 1001);
        assert_eq!((newest.of(0), newest.of(1)), (0, 500));
    }
}
