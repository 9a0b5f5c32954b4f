//! How much may be read before anybody takes it?
//!
//! # The problem
//!
//! A long answer is read in the [pool](crate::node::ReadPool) and sent by a network thread. To hand over a
//! small piece costs as much as to hand over a large one: two threads are woken. But a piece lies in
//! memory until its client takes it, and a client may take for ever.
//!
//! # The idea
//!
//! A shelf of 64 MiB for all answers together. Who finds room on it reads a large piece, or the whole rest if
//! that is not more; who finds none reads a small piece, and goes on all the same.
//!
//! ```text
//!   shelf   ▐ answer 1 ▐ answer 2, all of it ▐ answer 1, one ahead ▐ ┄┄┄   others: small pieces
//! ```
//!
//! So clients that do not take their answers cost the others some speed, and no more than the shelf. And
//! an answer of a few megabytes is read whole at once: its view is not kept until the client has taken it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// For all answers.
const BYTES: u64 = 64 << 20;
/// What is read at once by who finds room, and by who finds none.
const LARGE: u64 = 4 << 20;
const SMALL: u64 = 64 << 10;

/// The memory that answers share.
#[derive(Debug, Default)]
pub struct Shelf {
    taken: AtomicU64,
}

/// Room on the shelf, for as long as it lives; or none.
#[derive(Debug)]
pub struct Place {
    shelf: Arc<Shelf>,
    taken: u64,
}

impl Place {
    /// Takes room for an answer of which so many bytes are left, if there is any.
    pub fn on(shelf: &Arc<Shelf>, left: u64) -> Place {
        let wanted = left.min(LARGE);
        let more = |taken| (taken + wanted <= BYTES).then_some(taken + wanted);
        let is_there = shelf.taken.fetch_update(Relaxed, Relaxed, more).is_ok();
        Place { shelf: Arc::clone(shelf), taken: if is_there { wanted } else { 0 } }
    }

    /// How much may be read at once.
    pub fn bytes(&self) -> usize {
        self.taken.max(SMALL) as usize
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shelf.taken.fetch_sub(self.taken, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let shelf = Arc::new(Shelf::default());
        let bytes = |place: &Place| place.bytes() as u64;
        let mut places: Vec<Place> = (0..16).map(|_| Place::on(&shelf, u64::MAX)).collect();
        assert!(places.iter().all(|place| bytes(place) == LARGE));
        assert_eq!(bytes(&Place::on(&shelf, u64::MAX)), SMALL);
        places.truncate(15);
        let some = Place::on(&shelf, 3 << 20);
        assert_eq!([bytes(&some), bytes(&Place::on(&shelf, 2 << 20))], [3 << 20, SMALL]);
        drop((places, some));
        assert_eq!(shelf.taken.load(Relaxed), 0);
    }
}
