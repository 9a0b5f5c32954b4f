//! Binary search in the sorted keys of a page or node.

use std::cmp::Ordering;

/// Returns `Ok` with the index of `key` among `count` sorted keys, or `Err` with the index at which
/// to insert it.
pub(super) fn search<'k>(
    count: usize,
    key: &[u8],
    key_at: impl Fn(usize) -> &'k [u8],
) -> Result<usize, usize> {
    // Most new keys are revisions, which grow. They belong after all existing keys, so this case is
    // checked first.
    if count == 0 || compare(key_at(count - 1), key) == Ordering::Less {
        return Err(count);
    }
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = from + (to - from) / 2;
        match compare(key_at(middle), key) {
            Ordering::Equal => return Ok(middle),
            Ordering::Less => from = middle + 1,
            Ordering::Greater => to = middle,
        }
    }
    Err(from)
}

/// Compares like `a.cmp(b)`, but faster. Two revisions differ in their first eight bytes unless
/// they belong to the same transaction. So one comparison of numbers is usually enough, without a
/// function call.
#[inline]
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    match (a.first_chunk(), b.first_chunk()) {
        (Some(first_a), Some(first_b)) if first_a != first_b => {
            u64::from_be_bytes(*first_a).cmp(&u64::from_be_bytes(*first_b))
        }
        _ => a.cmp(b),
    }
}

/// Returns the index of the child to which `key` belongs: the last child whose key is at most
/// `key`. A `key` below the keys of all children belongs to the first child.
pub(super) fn child_index<'k>(
    count: usize,
    key: &[u8],
    key_at: impl Fn(usize) -> &'k [u8],
) -> usize {
    search(count, key, key_at).unwrap_or_else(|index| index.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_or_their_places() {
        let keys: [&[u8]; 4] = [b"b", b"d", b"f", b"h"];
        let found = |key: &[u8]| search(keys.len(), key, |index| keys[index]);
        assert_eq!(keys.map(found), [Ok(0), Ok(1), Ok(2), Ok(3)]);
        let others: [&[u8]; 5] = [b"a", b"c", b"e", b"g", b"i"];
        assert_eq!(others.map(found), [Err(0), Err(1), Err(2), Err(3), Err(4)]);
        let children = others.map(|key| child_index(keys.len(), key, |index| keys[index]));
        assert_eq!(children, [0, 0, 1, 2, 3]);
        assert_eq!(search(0, b"a", |_| b""), Err(0));
    }

    #[test]
    fn keys_are_compared_as_slices_are() {
        let keys: [&[u8]; 7] =
            [b"", b"a", b"aaaaaaaa", b"aaaaaaaa\0", b"aaaaaaaab", b"aaaaaaab", b"\xffaaaaaaaa"];
        for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
            assert_eq!(compare(a, b), a.cmp(b), "{a:?} and {b:?}");
        }
    }
}
