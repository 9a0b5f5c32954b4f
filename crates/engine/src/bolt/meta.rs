//! The two meta pages. The newer meta page leads to the pages of the newest commit.
//!
//! A commit writes the meta page `txid % 2`, so the other meta page stays valid during the write.
//! bbolt writes 64 bytes after the page's header. It ignores the rest of the page, where we store a
//! trailer. The numbers on the left are offsets:
//!
//! ```text
//!   16    magic · version · page size · flags · root page · sequence · freelist page
//!         · high-water mark · txid · FNV-1a-64 of these
//!   512   trailer: magic · the same 64 bytes again · root of the checksum table · crc32c of these
//! ```
//!
//! * bbolt fills the rest of the page with zeros when it commits. So a page whose trailer is all
//!   zeros is taken for a page of bbolt. We write such a page only while the state has no checksum
//!   table. A flipped bit does not make a trailer all zeros.
//! * The second copy is read in place of a damaged first copy. If there were only one copy and it
//!   were damaged, the file would open at the previous commit, as if the newest commit had not
//!   finished. If both copies are lost, this does happen, with a [note](super::open).

use super::checksums::TableRoot;
use super::page::{META_FLAG, PAGE_HEADER_BYTES, PAGE_ID_MAX, PageHeader, PageId, u32_at, u64_at};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
pub(super) const META_BYTES: usize = 64;
/// The value of the freelist field if no freelist was written.
pub const NO_FREELIST: PageId = u64::MAX;

pub(super) const TRAILER_OFFSET: usize = 512;
const TRAILER_MAGIC: &[u8; 8] = b"clearln\x01";
pub(super) const TRAILER_BYTES: usize = 8 + META_BYTES + TableRoot::BYTES + 4;
/// Maximum transaction id. A larger id is damage, because no file ever gets that many commits.
const TXID_MAX: u64 = u64::MAX / 2;
/// The number of bytes of a meta page that are read.
pub(super) const META_PAGE_BYTES: usize = 1024;

pub(super) const PAGE_SIZE_MIN: usize = 1 << 10;
pub(super) const PAGE_SIZE_MAX: usize = 1 << 20;

/// The fields of a meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub page_size: u32,
    /// The root of the tree whose records are the buckets.
    pub root: PageId,
    pub sequence: u64,
    /// The first page of the freelist, or [`NO_FREELIST`] if none was written.
    pub freelist: PageId,
    /// The first page that was never used.
    pub high_water: PageId,
    pub txid: u64,
}

/// A meta page that can be used, and the peculiarities that were found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaPage {
    pub meta: Meta,
    /// The root of the checksum table, or `None` if the page has no trailer, or if its trailer is
    /// damaged or belongs to another commit.
    pub table: Option<TableRoot>,
    /// If true, the first copy or the page's header is damaged.
    pub is_damaged: bool,
    /// If true, the trailer is all zeros, as on a page that bbolt wrote.
    pub is_of_bbolt: bool,
    /// If true, the page's txid belongs on the other meta page. bbolt's `Tx.WriteTo` creates such
    /// files.
    pub is_misplaced: bool,
}

impl MetaPage {
    /// Returns the sort key of a meta page. The page with the larger rank holds the current state.
    pub(super) fn rank(&self) -> (u64, bool) {
        (self.meta.txid, !self.is_misplaced)
    }
}

impl Meta {
    /// Returns the id of the page, 0 or 1, to which a commit with this txid writes its meta page.
    pub(super) fn place(&self) -> PageId {
        self.txid % 2
    }

    fn encode(&self) -> [u8; META_BYTES] {
        let mut bytes = [0; META_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.page_size.to_le_bytes());
        let numbers = [self.root, self.sequence, self.freelist, self.high_water, self.txid];
        for (index, number) in numbers.into_iter().enumerate() {
            bytes[16 + index * 8..24 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = fnv_1a_64(&bytes[..META_BYTES - 8]);
        bytes[META_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Meta, String> {
        let (magic, version) = (u32_at(bytes, 0), u32_at(bytes, 4));
        if magic != MAGIC {
            return Err(format!("magic {magic:#010x}, not {MAGIC:#010x}"));
        }
        if version != VERSION {
            return Err(format!("version {version}, not {VERSION}"));
        }
        if u64_at(bytes, META_BYTES - 8) != fnv_1a_64(&bytes[..META_BYTES - 8]) {
            return Err("wrong checksum".to_owned());
        }
        let meta = Meta {
            page_size: u32_at(bytes, 8),
            root: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            freelist: u64_at(bytes, 32),
            high_water: u64_at(bytes, 40),
            txid: u64_at(bytes, 48),
        };
        meta.check()?;
        Ok(meta)
    }

    fn check(&self) -> Result<(), String> {
        let Meta { page_size, root, freelist, high_water, txid, .. } = *self;
        let is_possible = |page: PageId| (2..high_water).contains(&page);
        let size = page_size as usize;
        if !size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&size) {
            Err(format!("invalid page size {page_size}"))
        } else if txid > TXID_MAX {
            Err(format!("invalid txid {txid}"))
        } else if high_water > PAGE_ID_MAX {
            Err(format!("invalid number of pages {high_water}"))
        } else if !is_possible(root) {
            Err(format!("invalid root page {root}: the file has {high_water} pages"))
        } else if freelist != NO_FREELIST && !is_possible(freelist) {
            Err(format!("invalid freelist page {freelist}: the file has {high_water} pages"))
        } else {
            Ok(())
        }
    }
}

/// Returns a whole meta page, with a trailer if there is a checksum table.
pub(super) fn encode_meta_page(meta: &Meta, table: Option<TableRoot>) -> Vec<u8> {
    let mut page = Vec::with_capacity(meta.page_size as usize);
    PageHeader { id: meta.place(), flags: META_FLAG, count: 0, overflow: 0 }.append_to(&mut page);
    page.extend_from_slice(&meta.encode());
    if let Some(table) = table {
        page.resize(TRAILER_OFFSET, 0);
        page.extend_from_slice(TRAILER_MAGIC);
        page.extend_from_slice(&meta.encode());
        table.append_to(&mut page);
        let sum = crc32c::crc32c(&page[TRAILER_OFFSET..]);
        page.extend_from_slice(&sum.to_le_bytes());
    }
    page.resize(meta.page_size as usize, 0);
    page
}

/// Parses meta page `place` from its first [`META_PAGE_BYTES`], or returns why it cannot be used.
pub(super) fn parse_meta_page(bytes: &[u8], place: PageId) -> Result<MetaPage, String> {
    if bytes.len() < META_PAGE_BYTES {
        return Err(format!("{} bytes are too few for a meta page", bytes.len()));
    }
    let header = PageHeader::parse(bytes);
    let is_header_right = header.id == place && header.flags == META_FLAG;
    let first = Meta::decode(&bytes[PAGE_HEADER_BYTES..]);
    let trailer = parse_trailer(&bytes[TRAILER_OFFSET..]);
    let (meta, table, is_damaged) = match (first, trailer) {
        (Ok(meta), Some((copy, table))) if copy == meta => (meta, Some(table), !is_header_right),
        // No valid trailer belongs to this commit. bbolt writes no trailer, and a trailer may be
        // damaged. A trailer belongs to another commit if the power failed between the two sectors,
        // or if another program wrote only the first sector.
        (Ok(meta), _) => (meta, None, !is_header_right),
        (Err(_), Some((meta, table))) => (meta, Some(table), true),
        (Err(reason), None) => return Err(reason),
    };
    let is_misplaced = meta.place() != place;
    // Only a page of bbolt may be misplaced. bbolt gives it the id of its position and writes no
    // trailer. Any other misplaced page was written to the wrong place.
    if is_misplaced && (is_damaged || table.is_some()) {
        return Err(format!("txid {} does not belong on this page", meta.txid));
    }
    let is_of_bbolt = bytes[TRAILER_OFFSET..][..TRAILER_BYTES].iter().all(|byte| *byte == 0);
    Ok(MetaPage { meta, table, is_damaged, is_of_bbolt, is_misplaced })
}

fn parse_trailer(bytes: &[u8]) -> Option<(Meta, TableRoot)> {
    let (trailer, sum) = bytes[..TRAILER_BYTES].split_at(TRAILER_BYTES - 4);
    let is_ours = trailer.starts_with(TRAILER_MAGIC) && crc32c::crc32c(trailer) == u32_at(sum, 0);
    if !is_ours {
        return None;
    }
    let (copy, table) = trailer[TRAILER_MAGIC.len()..].split_at(META_BYTES);
    Some((Meta::decode(copy).ok()?, TableRoot::parse(table)))
}

/// Changes bytes of an encoded meta page, even if the page is damaged.
#[cfg(feature = "fuzzing")]
pub(super) struct MetaSums;

#[cfg(feature = "fuzzing")]
impl MetaSums {
    pub(super) const PAGE_SIZE_OFFSET: usize = PAGE_HEADER_BYTES + 8;
    const COPY: usize = TRAILER_OFFSET + TRAILER_MAGIC.len();
    const TABLE: usize = MetaSums::COPY + META_BYTES;

    pub(super) fn put_right(page: &mut [u8]) {
        for copy in [PAGE_HEADER_BYTES, MetaSums::COPY] {
            let (meta, sum) = page[copy..copy + META_BYTES].split_at_mut(META_BYTES - 8);
            sum.copy_from_slice(&fnv_1a_64(meta).to_le_bytes());
        }
        let trailer = &mut page[TRAILER_OFFSET..TRAILER_OFFSET + TRAILER_BYTES];
        let (trailer, sum) = trailer.split_at_mut(TRAILER_BYTES - 4);
        sum.copy_from_slice(&crc32c::crc32c(trailer).to_le_bytes());
    }

    pub(super) fn copy_to_trailer(page: &mut [u8]) {
        page.copy_within(PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + META_BYTES, MetaSums::COPY);
    }

    pub(super) fn remove_trailer(page: &mut [u8]) {
        page[TRAILER_OFFSET..TRAILER_OFFSET + TRAILER_BYTES].fill(0);
    }

    pub(super) fn table_root(page: &[u8]) -> TableRoot {
        TableRoot::parse(&page[MetaSums::TABLE..])
    }

    pub(super) fn set_table_root(page: &mut [u8], root: TableRoot) {
        let mut bytes = Vec::with_capacity(TableRoot::BYTES);
        root.append_to(&mut bytes);
        page[MetaSums::TABLE..MetaSums::TABLE + TableRoot::BYTES].copy_from_slice(&bytes);
    }
}

fn fnv_1a_64(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableRoot = TableRoot { page: 5, table_pages: 1, sum: 77 };

    fn meta(txid: u64) -> Meta {
        let (root, freelist) = (3, NO_FREELIST);
        Meta { page_size: 4096, root, sequence: 0, freelist, high_water: 9, txid }
    }

    #[test]
    fn the_sum_is_that_of_fnv() {
        assert_eq!(fnv_1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a_64(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_meta_page_is_read_back() {
        for table in [None, Some(TABLE)] {
            let page = encode_meta_page(&meta(8), table);
            assert_eq!(page.len(), 4096);
            let (meta, is_damaged, is_misplaced) = (meta(8), false, false);
            let is_of_bbolt = table.is_none();
            let expected = MetaPage { meta, table, is_damaged, is_of_bbolt, is_misplaced };
            assert_eq!(parse_meta_page(&page, 0), Ok(expected));
        }
    }

    #[test]
    fn a_meta_page_on_the_page_of_the_other_parity_is_read_and_ranks_lower() {
        let mut page = encode_meta_page(&meta(8), None);
        // The header of this page has the id 0, so the page was written to the wrong place.
        assert!(parse_meta_page(&page, 1).is_err());
        assert!(parse_meta_page(&encode_meta_page(&meta(8), Some(TABLE)), 1).is_err());
        page[0] = 1;
        let found = parse_meta_page(&page, 1).unwrap();
        assert_eq!(found.meta, meta(8));
        assert!(found.is_misplaced && !found.is_damaged);
        let placed = parse_meta_page(&encode_meta_page(&meta(8), None), 0).unwrap();
        let newer = parse_meta_page(&encode_meta_page(&meta(9), None), 1).unwrap();
        assert!(found.rank() < placed.rank() && placed.rank() < newer.rank());
    }

    #[test]
    fn a_flipped_bit_is_never_taken_for_another_commit() {
        let page = encode_meta_page(&meta(7), Some(TABLE));
        let ends = [(0, 10), (16, 80), (512, 512 + TRAILER_BYTES)];
        for bit in ends.into_iter().flat_map(|(from, to)| from * 8..to * 8) {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = parse_meta_page(&damaged, 1).unwrap();
            assert_eq!(found.meta, meta(7), "bit {bit}");
            assert!(found.is_damaged || found.table.is_none(), "bit {bit} went unnoticed");
            assert!(!found.is_of_bbolt, "bit {bit} makes the page bbolt's");
        }
    }

    #[test]
    fn a_trailer_of_another_commit_does_not_count() {
        // The page is like this after bbolt wrote only the first sector, or after the power failed
        // between the two sectors.
        let old = encode_meta_page(&meta(5), Some(TABLE));
        let mut mixed = encode_meta_page(&meta(7), Some(TABLE));
        mixed[512..].copy_from_slice(&old[512..]);
        let found = parse_meta_page(&mixed, 1).unwrap();
        assert_eq!((found.meta, found.table), (meta(7), None));
        assert!(!found.is_of_bbolt);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let refused = |meta: Meta| {
            let page = encode_meta_page(&meta, None);
            parse_meta_page(&page[..META_PAGE_BYTES.min(page.len())], 0).unwrap_err()
        };
        assert_eq!(refused(Meta { page_size: 3000, ..meta(4) }), "invalid page size 3000");
        assert_eq!(
            refused(Meta { root: 9, ..meta(4) }),
            "invalid root page 9: the file has 9 pages"
        );
        assert_eq!(
            refused(Meta { root: 1, ..meta(4) }),
            "invalid root page 1: the file has 9 pages"
        );
        let last = u64::MAX - 1;
        assert_eq!(refused(Meta { txid: last, ..meta(4) }), format!("invalid txid {last}"));
        assert_eq!(
            refused(Meta { freelist: 10, ..meta(4) }),
            "invalid freelist page 10: the file has 9 pages"
        );
        assert!(parse_meta_page(&[0; 4096], 0).unwrap_err().starts_with("magic 0x00000000"));
    }
}
