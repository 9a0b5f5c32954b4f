//! Tests with our own files, and with files built by hand as bbolt would write them. Some tests
//! damage these files.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{BoltFile, Checksums, NO_FREELIST, PageBody, PageKind, Survey};
use crate::bolt::meta::{Meta, encode_meta_page};
use crate::bolt::page::{
    BranchElement, FREELIST_FLAG, LeafElement, PageHeader, PageId, encode_branch, encode_leaf,
};
use crate::bolt::simulated_disk::SimulatedDisk;
use crate::bolt::simulated_file::create_with;
use crate::durable::DurableStore;
use crate::suite_support::{apply_all, changes_of, model_after, open_small};
use crate::writer_lock::WriterLock;
use crate::{Bucket, EngineKind, Error, KeyRange, Read};

const SEED: u64 = 3;
const COMMITS: u64 = 60;
/// The page size of the files that are built by hand.
const SMALL: usize = 1024;

fn look(image: Vec<u8>) -> BoltFile {
    let disk = SimulatedDisk::with_contents(image);
    BoltFile::open_on(Box::new(disk), Path::new("file")).unwrap()
}

/// Returns a file that our engine wrote in `COMMITS` commits.
fn our_image(page_size: usize) -> Vec<u8> {
    let disk = SimulatedDisk::with_contents(Vec::new());
    let store = create_with(&disk, page_size).unwrap();
    for number in 1..=COMMITS {
        let lock = std::sync::Arc::new(WriterLock::default());
        let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
        apply_all(&changes_of(SEED, number), &mut *txn).unwrap();
        txn.commit().unwrap();
    }
    disk.contents()
}

fn record(key: &str, value: &str) -> LeafElement {
    LeafElement::new(Bytes::from(format!("{key}{value}")), key.len(), false)
}

/// Returns the element of a bucket whose root page is `root`. If `root` is 0, the bucket is inline
/// and contains the records `inline`.
fn bucket(name: &str, root: PageId, sequence: u64, inline: &[LeafElement]) -> LeafElement {
    let mut bytes = BytesMut::from(name.as_bytes());
    bytes.put_u64_le(root);
    bytes.put_u64_le(sequence);
    if root == 0 {
        let page_bytes = 16 + inline.iter().map(LeafElement::encoded_bytes).sum::<usize>();
        bytes.put_slice(&encode_leaf(0, SMALL, page_bytes, inline));
    }
    LeafElement::new(bytes.freeze(), name.len(), true)
}

fn leaf(id: PageId, elements: &[LeafElement]) -> Bytes {
    encode_leaf(id, SMALL, SMALL, elements)
}

fn branch(id: PageId, children: &[(&str, PageId)]) -> Bytes {
    let element = |(key, child): &(&str, PageId)| BranchElement {
        key: Bytes::copy_from_slice(key.as_bytes()),
        child: *child,
    };
    encode_branch(id, SMALL, SMALL, &children.iter().map(element).collect::<Vec<_>>())
}

fn freelist(id: PageId, free: &[PageId]) -> Bytes {
    let mut page = BytesMut::new();
    let count = free.len() as u16;
    PageHeader { id, flags: FREELIST_FLAG, count, overflow: 0 }.append_to(&mut page);
    free.iter().for_each(|free| page.put_u64_le(*free));
    page.resize(SMALL, 0);
    page.freeze()
}

/// Returns a file as bbolt writes it, with two meta pages, followed by `pages`.
fn image_of(root: PageId, freelist: PageId, pages: &[Bytes]) -> Vec<u8> {
    let page_bytes: usize = pages.iter().map(Bytes::len).sum();
    let high_water = 2 + (page_bytes / SMALL) as u64;
    let meta = |txid| {
        let meta = Meta { page_size: SMALL as u32, root, sequence: 0, freelist, high_water, txid };
        encode_meta_page(&meta, None)
    };
    let mut image = [meta(6), meta(5)].concat();
    pages.iter().for_each(|page| image.extend_from_slice(page));
    image
}

/// Returns a file with buckets inside buckets, an overflow and a freelist:
///
/// ```text
///   2 leaf      a ▶ 3 (sequence 7)   b ▶ inline
///   3 branch    k1 ▶ 5   o ▶ 6
///   4 freelist  9
///   5 leaf      k1 = 1   n ▶ inline
///   6 leaf      o5 = 900 bytes   p ▶ 10      (page 7 is the overflow of page 6)
///   8 leaf      deep = 1
///   9 free
///  10 leaf      in ▶ 8
/// ```
fn nested_image() -> Vec<u8> {
    let inline = bucket("n", 0, 3, &[record("x", "y"), record("z", "")]);
    let large = [record("o5", &"5".repeat(900)), bucket("p", 10, 0, &[])];
    let pages = [
        leaf(2, &[bucket("a", 3, 7, &[]), bucket("b", 0, 0, &[])]),
        branch(3, &[("k1", 5), ("o", 6)]),
        freelist(4, &[9]),
        leaf(5, &[record("k1", "1"), inline]),
        encode_leaf(6, SMALL, 2 * SMALL, &large),
        leaf(8, &[record("deep", "1")]),
        leaf(9, &[]),
        leaf(10, &[bucket("in", 8, 1, &[])]),
    ];
    image_of(2, 4, &pages)
}

fn kinds(survey: &Survey) -> String {
    let name = |page: &super::PageEntry| format!("{}{}", page.id, page.kind.name());
    survey.pages.iter().map(name).collect::<Vec<_>>().join(" ")
}

fn problems(file: &BoltFile) -> Vec<String> {
    file.survey().unwrap().problems.iter().map(ToString::to_string).collect()
}

fn keys(file: &BoltFile, path: &[&[u8]]) -> Result<Vec<String>, Error> {
    let mut keys = Vec::new();
    file.scan(path, &mut |record| {
        let mark = if record.bucket.is_some() { "/" } else { "" };
        keys.push(String::from_utf8_lossy(&record.key).into_owned() + mark);
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

#[test]
fn a_file_of_ours_is_whole_and_every_page_has_its_place() {
    for page_size in [1024, 4096, 65_536] {
        let image = our_image(page_size);
        let file = look(image);
        let survey = file.survey().unwrap();
        assert_eq!((file.page_size(), file.checksums()), (page_size, &Checksums::Present));
        assert_eq!(survey.problems, []);
        let pages: u64 = survey.pages.iter().map(|page| 1 + page.overflow).sum();
        assert_eq!(pages, file.pages());
        let model = model_after(SEED, COMMITS);
        let total = survey.total();
        assert_eq!((total.records, total.buckets), (model.records.len() as u64, 10));
        assert_eq!(total.record_bytes, model.size());
        let root = file.newest().unwrap().table.unwrap();
        assert_eq!(survey.page(root.page).unwrap().kind, PageKind::ChecksumRoot);
        assert_eq!(survey.page(root.page).unwrap().count, u64::from(root.table_pages));
        let of_table = survey.pages.iter().filter(|page| page.kind == PageKind::ChecksumTable);
        assert_eq!(of_table.map(|page| page.count).sum::<u64>(), file.pages());
        for page in &survey.pages {
            let page_view = file.page(page.id).unwrap();
            assert_eq!(page_view.problems, [""; 0], "page {}", page.id);
            assert!(page.kind == PageKind::Free || page_view.kind == page.kind, "page {}", page.id);
        }
        for bucket in Bucket::ALL {
            let of_bucket = model.records.keys().filter(|(of, _)| *of == bucket);
            let expected: Vec<_> =
                of_bucket.map(|(_, key)| String::from_utf8_lossy(key).into_owned()).collect();
            assert_eq!(keys(&file, &[bucket.name().as_bytes()]).unwrap(), expected);
        }
    }
}

#[test]
fn as_a_snapshot_a_file_shows_what_was_committed() {
    let file = look(our_image(4096));
    let model = model_after(SEED, COMMITS);
    for bucket in Bucket::ALL {
        let of_bucket = model.records.iter().filter(|((of, _), _)| *of == bucket);
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            of_bucket.map(|((_, key), value)| (key.clone(), value.clone())).collect();
        let scanned = |range: KeyRange<'_>| {
            let mut found = Vec::new();
            let visit = &mut |key: &[u8], value: &[u8]| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            Read::scan(&file, bucket, range, visit).unwrap();
            found
        };
        assert_eq!(scanned(KeyRange::ALL), expected);
        assert_eq!(file.get(bucket, b"a key that is not there").unwrap(), None);
        let last = file.last_key(bucket).unwrap();
        assert_eq!(last.as_deref(), expected.last().map(|(key, _)| &key[..]));
        for (index, (key, value)) in expected.iter().enumerate() {
            assert_eq!(file.get(bucket, key).unwrap().as_deref(), Some(&value[..]));
            if index % 50 == 0 {
                assert_eq!(scanned(KeyRange::starting_at(key)), expected[index..]);
                assert_eq!(scanned(KeyRange::new(&expected[0].0, key)), expected[..index]);
            }
        }
    }
    // This file has none of etcd's buckets, like a file that bbolt wrote for another program.
    let other = look(nested_image());
    assert_eq!(other.get(Bucket::Key, b"a").unwrap(), None);
    assert_eq!(other.last_key(Bucket::Key).unwrap(), None);
}

#[test]
fn buckets_in_buckets_a_freelist_and_an_overflow() {
    let file = look(nested_image());
    let survey = file.survey().unwrap();
    assert_eq!(survey.problems, []);
    assert_eq!(file.checksums(), &Checksums::Missing);
    let expected = "0meta 1meta 2leaf 3branch 4freelist 5leaf 6leaf 8leaf 9free 10leaf";
    assert_eq!(kinds(&survey), expected);
    assert_eq!((survey.page(7).unwrap().id, survey.page(7).unwrap().overflow), (6, 1));
    assert_eq!(survey.page(11), None);
    let path = |bucket: &super::BucketEntry| {
        let names: Vec<_> = bucket.path.iter().map(|name| String::from_utf8_lossy(name)).collect();
        format!("{} {:?} on {} at {}", names.join("/"), bucket.root, bucket.leaf, bucket.sequence)
    };
    let buckets: Vec<_> = survey.buckets.iter().map(path).collect();
    let expected = [
        " Some(2) on 0 at 0",
        "a Some(3) on 2 at 7",
        "a/n None on 5 at 3",
        "a/p Some(10) on 6 at 0",
        "a/p/in Some(8) on 10 at 1",
        "b None on 2 at 0",
    ];
    assert_eq!(buckets, expected);
    let owner = survey.page(8).unwrap().bucket.unwrap();
    assert_eq!(survey.buckets[owner].path.last().unwrap(), "in");
    let a = &survey.buckets[1].stats;
    assert_eq!((a.depth, a.branch_pages, a.leaf_pages, a.leaf_overflow), (2, 1, 2, 1));
    assert_eq!((a.records, a.record_bytes, a.buckets, a.inline_buckets), (2, 905, 2, 1));
    assert_eq!(keys(&file, &[]).unwrap(), ["a/", "b/"]);
    assert_eq!(keys(&file, &[b"a"]).unwrap(), ["k1", "n/", "o5", "p/"]);
    assert_eq!(keys(&file, &[b"a", b"n"]).unwrap(), ["x", "z"]);
    assert_eq!(keys(&file, &[b"a", b"p", b"in"]).unwrap(), ["deep"]);
    assert_eq!(keys(&file, &[b"b"]).unwrap(), [""; 0]);
    let refused = |path: &[&[u8]]| keys(&file, path).unwrap_err().to_string();
    let expected = "file: there is no bucket \"c\", but \"a\", \"b\"";
    assert_eq!(refused(&[b"c"]), expected);
    assert_eq!(refused(&[b"a", b"k1"]), "file: there is no bucket \"k1\", but \"n\", \"p\"");
    assert_eq!(refused(&[b"b", b"x"]), "file: there is no bucket \"x\", but none");
}

#[test]
fn a_page_is_shown_with_what_is_on_it() {
    let file = look(nested_image());
    let PageBody::Leaf(items) = file.page(5).unwrap().body else { panic!("a leaf") };
    assert_eq!((&items[0].1.key[..], &items[0].1.value[..]), (&b"k1"[..], &b"1"[..]));
    let inline = items[1].1.bucket.as_ref().unwrap();
    assert_eq!((inline.root, inline.sequence, inline.records.len()), (None, 3, 2));
    let PageBody::Branch(items) = file.page(3).unwrap().body else { panic!("a branch") };
    let items: Vec<_> = items.iter().map(|(_, item)| (&item.key[..], item.child)).collect();
    assert_eq!(items, [(&b"k1"[..], 5), (b"o", 6)]);
    let PageBody::Freelist(free) = file.page(4).unwrap().body else { panic!("a freelist") };
    assert_eq!(free, [9]);
    let PageBody::Meta(Ok(meta)) = file.page(0).unwrap().body else { panic!("a meta page") };
    assert_eq!((meta.meta.txid, meta.table), (6, None));
    assert_eq!(file.page(6).unwrap().bytes.len(), 2 * SMALL);
    let error = file.page(11).unwrap_err().to_string();
    assert_eq!(error, "file: there is no page 11: the file has 11 pages");
    assert!(matches!(file.page(u64::MAX), Err(Error::NoPage { .. })));
}

#[test]
fn a_damaged_page_does_not_hide_the_others() {
    let damaged = |change: &dyn Fn(&mut [u8])| {
        let mut image = nested_image();
        change(&mut image);
        look(image)
    };
    // The second of the two elements of page 5 is outside the page.
    let file = damaged(&|image| image[5 * SMALL + 16 + 16 + 7] = 1);
    assert_eq!(problems(&file), ["page 5: element 1 is outside the page"]);
    let page_view = file.page(5).unwrap();
    assert_eq!(page_view.problems, ["element 1 is outside the page"]);
    let PageBody::Leaf(items) = page_view.body else { panic!("a leaf") };
    assert_eq!((items.len(), items[0].0, &items[0].1.key[..]), (1, 0, &b"k1"[..]));
    let survey = file.survey().unwrap();
    assert_eq!(survey.buckets.len(), 5, "all but the one on page 5");
    assert_eq!((survey.page(5).unwrap().kind, survey.page(5).unwrap().bucket), {
        (PageKind::Leaf, Some(1))
    });
    assert_eq!(keys(&file, &[b"a", b"p", b"in"]).unwrap(), ["deep"]);
    let error = keys(&file, &[b"a"]).unwrap_err().to_string();
    assert_eq!(error, "file: damaged: page 5: element 1 is outside the page");

    let file = damaged(&|image| image[8 * SMALL..9 * SMALL].fill(0xFF));
    assert!(problems(&file)[0].starts_with("page 8: overflow 4294967295 is outside the file"));
    assert_eq!(file.survey().unwrap().page(8).unwrap().kind, PageKind::Unknown);
    assert!(matches!(file.page(8).unwrap().body, PageBody::Unknown));
    let file = damaged(&|image| image[8 * SMALL] = 9);
    assert_eq!(problems(&file), ["page 8: has the id 9 in its header"]);
    let PageBody::Leaf(items) = file.page(8).unwrap().body else { panic!("a leaf") };
    assert_eq!(items.len(), 1);
    // The header states more elements than fit into the page. The elements that exist are shown.
    let file = damaged(&|image| image[5 * SMALL + 11] = 1);
    let page_view = file.page(5).unwrap();
    assert_eq!(page_view.problems, ["258 elements do not fit"]);
    let PageBody::Leaf(items) = page_view.body else { panic!("a leaf") };
    assert!(items.iter().any(|(_, item)| item.key == "k1"));
}

#[test]
fn every_problem_is_told() {
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut image = nested_image();
        change(&mut image);
        problems(&look(image))
    };
    let put = |image: &mut Vec<u8>, page: Bytes| {
        let id = PageHeader::parse(&page).id as usize;
        image[id * SMALL..(id + 1) * SMALL].copy_from_slice(&page);
    };
    let two = damaged(&|image| {
        image[2 * SMALL - 1] = 1;
        image[SMALL + 20] ^= 1;
        put(image, freelist(4, &[8, 9, 9, 99]));
        image[5 * SMALL + 8] = 0x77;
    });
    let expected = [
        "page 1: the meta page is damaged: version 3, not 2",
        "page 5: flags 0x77, not a branch or leaf",
        "page 8: is in the freelist, but is in use",
        "page 9: is in the freelist twice",
        "page 99: is in the freelist, but is after the last page",
    ];
    assert_eq!(two, expected);
    let lost = damaged(&|image| put(image, freelist(4, &[])));
    assert_eq!(lost, ["page 9: is neither in use nor in the freelist"]);
    let no_freelist = damaged(&|image| put(image, leaf(4, &[])));
    assert_eq!(no_freelist, ["page 4: is not a freelist"]);
    let loop_in_tree = damaged(&|image| put(image, branch(3, &[("k1", 5), ("o", 3)])));
    assert_eq!(loop_in_tree[0], "page 3: is used twice");
    let of_buckets = damaged(&|image| put(image, leaf(8, &[bucket("x", 10, 0, &[])])));
    assert_eq!(of_buckets, ["page 10: is used twice"]);
    let order = damaged(&|image| put(image, branch(3, &[("k2", 5), ("o", 6)])));
    assert_eq!(order, ["page 5: has a key that belongs on another page"]);
    let among = damaged(&|image| put(image, leaf(2, &[record("a", "1")])));
    assert!(among.contains(&"page 2: a record among the buckets".to_owned()));
    let overflow = damaged(&|image| image[8 * SMALL + 12] = 2);
    assert_eq!(overflow[0], "page 8: its overflow reaches page 10, which is already used");
    let behind = damaged(&|image| image[6 * SMALL + 12] = 200);
    assert_eq!(behind[0], "page 6: overflow 200 is outside the file");
    let child = damaged(&|image| put(image, branch(3, &[("k1", 5), ("o", 77)])));
    assert!(child.contains(&"page 77: is after the last page".to_owned()), "{child:?}");
    let short = damaged(&|image| image.truncate(10 * SMALL + 5));
    assert!(
        short.contains(&"cut short: the file has 10245 bytes, but its pages need 11264".to_owned())
    );
    assert!(short.contains(&"page 10: is after the last page".to_owned()), "{short:?}");
}

#[test]
fn a_tree_whose_branches_lead_to_the_same_page_does_not_hang() {
    // Each level doubles the number of paths to the leaf, up to 2^27.
    let ids = 2..30;
    let mut pages = vec![leaf(2, &[bucket("a", 3, 0, &[])])];
    pages.extend(ids.clone().skip(1).map(|id| branch(id, &[("a", id + 1), ("b", id + 1)])));
    pages.push(leaf(30, &[record("a", "1")]));
    let file = look(image_of(2, NO_FREELIST, &pages));
    let found = problems(&file);
    assert_eq!(found.iter().filter(|problem| problem.ends_with("is used twice")).count(), 27);
    assert!(keys(&file, &[b"a"]).is_err());
}

#[test]
fn checksums_are_ours_old_or_damaged() {
    let image = our_image(4096);
    let file = look(image.clone());
    let survey = file.survey().unwrap();
    let newest = file.newest().unwrap();
    let place = newest.meta.place() as usize;
    // A bit of a value is flipped, which a check of the layout does not notice.
    let leaf = survey.pages.iter().find(|page| page.kind == PageKind::Leaf && page.count > 2);
    let leaf = leaf.unwrap().id;
    let mut flipped = image.clone();
    let end = survey.page(leaf).unwrap().used_bytes as usize - 1;
    flipped[leaf as usize * 4096 + end] ^= 1;
    let found = look(flipped);
    assert_eq!(problems(&found), [format!("page {leaf}: the checksum is wrong")]);
    assert_eq!(found.survey().unwrap().total(), survey.total());

    // bbolt fills the trailer with zeros when it commits.
    let mut old = image.clone();
    old[place * 4096 + 80..(place + 1) * 4096].fill(0);
    assert_eq!(look(old.clone()).checksums(), &Checksums::Old);
    assert_eq!(problems(&look(old)), [""; 0]);

    let mut table = image.clone();
    table[newest.table.unwrap().page as usize * 4096 + 17] ^= 1;
    let table = look(table);
    assert!(matches!(table.checksums(), Checksums::Damaged(_)), "{:?}", table.checksums());
    assert!(problems(&table)[0].starts_with("the checksums cannot be read: page"));

    let mut first_copy = image;
    first_copy[place * 4096 + 30] ^= 1;
    let first_copy = look(first_copy);
    assert_eq!(first_copy.newest().unwrap().meta, newest.meta);
    let expected = format!("page {place}: the meta page is damaged; its second copy is intact");
    assert_eq!(problems(&first_copy), [expected]);
}

#[test]
fn what_is_no_bolt_file_is_looked_at_and_nothing_panics() {
    let refused = |image: Vec<u8>| look(image).survey().unwrap_err().to_string();
    let too_short = "the file is too short";
    let expected = format!("no meta page is valid: page 0: {too_short}; page 1: {too_short}");
    assert_eq!(refused(Vec::new()), format!("file: damaged: {expected}"));
    assert!(refused(vec![0; 10_000]).contains("page 0: magic 0x00000000"));
    let mut rng = StdRng::seed_from_u64(1);
    let images = [our_image(1024), nested_image()];
    for number in 0..600 {
        let mut image = images[number % 2].clone();
        for _ in 0..rng.random_range(1..20) {
            // Most changes hit headers, where damage matters most.
            let page = rng.random_range(0..image.len() / SMALL) * SMALL;
            let end = if rng.random_bool(0.7) { 32 } else { SMALL };
            let byte = rng.random_range(0..end);
            image[page + byte] = rng.random();
        }
        if rng.random_ratio(1, 10) {
            image.truncate(rng.random_range(0..image.len()));
        }
        let file = look(image);
        for id in 0..file.pages() + 2 {
            let _ = file.page(id);
        }
        if let Ok(survey) = file.survey() {
            let pages: u64 = survey.pages.iter().map(|page| 1 + page.overflow).sum();
            assert_eq!(pages, file.pages(), "image {number}");
            for bucket in &survey.buckets {
                let path: Vec<&[u8]> = bucket.path.iter().map(|name| &name[..]).collect();
                let _ = keys(&file, &path);
            }
        }
    }
}

#[test]
fn a_file_that_is_written_is_locked_and_readers_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let engine = open_small(EngineKind::Bolt, &store);
    let path = store.join("data.0");
    assert!(matches!(BoltFile::open(&path), Err(Error::Locked { .. })));
    drop(engine);
    let before = fs::read(&path).unwrap();
    let readers = [BoltFile::open(&path).unwrap(), BoltFile::open(&path).unwrap()];
    assert_eq!(readers[0].survey().unwrap().problems, []);
    drop(readers);
    assert!(fs::read(&path).unwrap() == before);

    let refused = |path: &Path| BoltFile::open(path).unwrap_err().to_string();
    assert!(
        refused(&dir.path().join("none")).ends_with("none: No such file or directory (os error 2)")
    );
    assert!(refused(dir.path()).ends_with(": a directory, not a file"));
    assert!(refused(Path::new("/dev/null")).ends_with(": not a file"));
}
