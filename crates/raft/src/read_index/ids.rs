//! Request ids that are never used twice. A member generates them without contacting another
//! member. In etcd: `idutil`.
//!
//! ```text
//!   63           48 47                            8 7         0
//!  ┌───────────────┬───────────────────────────────┬───────────┐
//!  │  member id    │  start, milliseconds of the   │  counter  │
//!  │ (low 16 bits) │  wall clock (low 40 bits)     │           │
//!  └───────────────┴───────────────────────────────┴───────────┘
//!                   └───────── one number, plus 1 each time ────┘
//! ```
//!
//! An id is the context of a read in raft, as eight bytes in big endian. Each proposal also has an
//! id, in its header or in the change of members. Only the id connects a response to its ReadIndex
//! request, and the response may arrive late and from another member. [`RequestIdGenerator`] lists
//! the assumptions; see `docs/read-index.md`.

/// The bits of an id below the member's part.
const SUFFIX_MASK: u64 = (1 << 48) - 1;
const MILLISECONDS_MASK: u64 = (1 << 40) - 1;
const COUNTER_BITS: u32 = 8;

/// Generates the ids of one member, from one start to the next.
///
/// The counter carries into the milliseconds. If a member creates fewer than 256 ids per
/// millisecond, on average since it started, its ids are not ahead of the clock. So after a restart
/// its new ids are above all old ids. Assumptions:
///
/// * No two members of a cluster have ids with the same low 16 bits. (If two members do, the member
///   that started earlier may later reach ids that the other one has used.) Member ids are hashes,
///   so equal low bits are unlikely; etcd relies on this as well.
/// * Between two starts the wall clock gains at least a millisecond per 256 ids. A caller that does
///   not rely on this passes a floor to [`starting_above`](RequestIdGenerator::starting_above). The
///   floor is a stored number well above all ids, or, if only proposals matter, the highest id of
///   this member in the log.
/// * A member creates fewer than 2^48 ids. The milliseconds wrap every 34 years, next in 2039;
///   after that an older floor must not be used.
#[derive(Debug)]
pub struct RequestIdGenerator {
    prefix: u64,
    /// The suffix of the last id. It may exceed 48 bits, but an id contains only its low 48 bits.
    suffix: u64,
}

impl RequestIdGenerator {
    /// Creates a generator. `unix_ms` is the time of the start, in milliseconds since 1970.
    pub fn new(member: u64, unix_ms: u64) -> RequestIdGenerator {
        let suffix = (unix_ms & MILLISECONDS_MASK) << COUNTER_BITS;
        RequestIdGenerator { prefix: member << 48, suffix }
    }

    /// Makes the next ids larger than `floor`, if `floor` is an id of this member and is above the
    /// ids that follow from the clock. A floor of another member has no effect.
    #[must_use]
    pub fn starting_above(mut self, floor: u64) -> RequestIdGenerator {
        if floor & !SUFFIX_MASK == self.prefix {
            self.suffix = self.suffix.max(floor & SUFFIX_MASK);
        }
        self
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no collection")]
    pub fn next(&mut self) -> u64 {
        self.suffix = self.suffix.wrapping_add(1);
        self.prefix | (self.suffix & SUFFIX_MASK)
    }

    /// Returns the last id, or the number before the first id. At the next start, this number may
    /// be passed to [`starting_above`](RequestIdGenerator::starting_above).
    pub fn last(&self) -> u64 {
        self.prefix | (self.suffix & SUFFIX_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_a_millisecond_per_256_ids_later_repeats_nothing() {
        let mut before = RequestIdGenerator::new(1, 1_000);
        let last = (0..2_560).map(|_| before.next()).last().unwrap();
        assert!(RequestIdGenerator::new(1, 1_010).next() > last);
    }

    #[test]
    fn members_do_not_meet() {
        let ids = |member| {
            let mut ids = RequestIdGenerator::new(member, 5);
            (0..1_000).map(move |_| ids.next()).collect::<std::collections::HashSet<_>>()
        };
        assert!(ids(1).is_disjoint(&ids(2)));
    }

    #[test]
    fn the_layout_is_etcds() {
        let mut ids = RequestIdGenerator::new(0xabcd_0000_0000_1234, 1);
        assert_eq!(ids.next(), 0x1234_0000_0000_0101);
        assert_eq!(ids.next(), 0x1234_0000_0000_0102);
        // 2026-11-21; the low 40 bits of this time are used.
        let mut ids = RequestIdGenerator::new(7, 1_795_219_200_000);
        assert_eq!(ids.next(), (7 << 48) | ((1_795_219_200_000 % (1 << 40)) << 8) | 1);
    }

    #[test]
    fn the_counter_carries_into_the_milliseconds_and_never_into_the_member() {
        let mut ids = RequestIdGenerator::new(1, 1);
        let handed_out: Vec<u64> = (0..300).map(|_| ids.next()).collect();
        assert!(handed_out.is_sorted_by(|a, b| a < b));
        assert_eq!(handed_out.last(), Some(&0x0001_0000_0000_022c));
        let mut ids = RequestIdGenerator::new(1, MILLISECONDS_MASK);
        let handed_out: Vec<u64> = (0..300).map(|_| ids.next()).collect();
        assert!(handed_out.iter().all(|id| id >> 48 == 1), "{handed_out:x?}");
        assert_eq!(handed_out[255], 0x0001_0000_0000_0000);
    }

    #[test]
    fn a_clock_that_was_set_back_repeats_unless_there_is_a_floor() {
        let start = |member, ms| RequestIdGenerator::new(member, ms);
        let mut before = start(1, 1_000);
        let id = before.next();
        assert_eq!(start(1, 1_000).next(), id, "this is what the floor is for");
        assert_eq!(start(1, 900).starting_above(before.last()).next(), id + 1);
        assert_eq!(start(1, 2_000).starting_above(id).next(), start(1, 2_000).next());
        let other = start(2, 1_000).last();
        assert_eq!(start(1, 900).starting_above(other).next(), start(1, 900).next());
    }
}
