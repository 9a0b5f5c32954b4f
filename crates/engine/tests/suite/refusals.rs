//! Tests that directories and files that are not a store of this crate are rejected with a clear
//! message in one line, and stay exactly as they were.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clearlane_engine::{Bucket, EngineKind, Error, Options, open};

use crate::support::{Store, open_small, shown};

/// Returns the path of every file below a directory, with its bytes, and the path of every
/// directory.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(dir).unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let below = contents(&path).into_iter();
            all.extend(below.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
            all.insert(name + "/", Vec::new());
        } else {
            all.insert(name, fs::read(&path).unwrap());
        }
    }
    all
}

/// Asserts that opening fails and changes nothing. Returns the error.
fn refused(kind: EngineKind, dir: &Path) -> Error {
    let before = dir.is_dir().then(|| contents(dir));
    let error = open(kind, dir, Options::default()).unwrap_err();
    let after = dir.is_dir().then(|| contents(dir));
    assert!(before == after, "{error}: the directory was changed");
    let line = error.to_string();
    assert!(!line.contains('\n'), "not one line: {line}");
    assert!(line.starts_with(dir.to_str().unwrap()), "no path: {line}");
    error
}

/// Returns the directory of a closed store with one record. Its files no longer change.
fn store_with_a_record(kind: EngineKind) -> tempfile::TempDir {
    let store = Store::new(kind);
    store.put(Bucket::Key, "a", "1");
    let Store { engine, dir, .. } = store;
    drop(engine);
    dir
}

const DURABLE: [EngineKind; 2] = [EngineKind::Bolt, EngineKind::Sled];

#[test]
fn a_directory_of_another_engine() {
    for owner in EngineKind::ALL {
        let dir = store_with_a_record(owner);
        for other in EngineKind::ALL.into_iter().filter(|kind| *kind != owner) {
            let error = refused(other, dir.path());
            assert!(matches!(error, Error::Foreign { .. }), "{error}");
            assert!(error.to_string().contains(&format!("belongs to engine {owner}")), "{error}");
        }
    }
}

#[test]
fn a_directory_with_something_else_in_it() {
    for kind in EngineKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("letter.txt"), "dear reader").unwrap();
        let error = refused(kind, dir.path());
        assert!(matches!(error, Error::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("letter.txt"), "{error}");
    }
}

#[test]
fn a_strangers_file_by_the_name_of_an_announcement() {
    for kind in EngineKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("engine.new"), "my notes about the new engine").unwrap();
        let error = refused(kind, dir.path());
        assert!(matches!(error, Error::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("engine.new"), "{error}");
        fs::remove_file(dir.path().join("engine.new")).unwrap();
        fs::create_dir(dir.path().join("engine.new")).unwrap();
        assert!(matches!(refused(kind, dir.path()), Error::Foreign { .. }));
    }
}

#[test]
fn an_operators_backup_beside_the_data_is_kept() {
    for kind in DURABLE {
        let dir = store_with_a_record(kind);
        let names = ["data.0.bak", "data.", "data.x", "data.+7", "data.007"];
        for name in names {
            fs::write(dir.path().join(name), "precious").unwrap();
        }
        fs::create_dir(dir.path().join("data.backup-2026")).unwrap();
        fs::write(dir.path().join("data.backup-2026").join("a"), "precious").unwrap();
        let engine = open_small(kind, dir.path());
        let mut defragment = engine.begin_defragment().unwrap();
        while !defragment.step(10).unwrap() {}
        defragment.finish().unwrap();
        drop(engine);
        drop(open_small(kind, dir.path()));
        let left = contents(dir.path());
        assert!(names.iter().all(|name| left.contains_key(*name)), "{:?}", left.keys());
        assert!(left.contains_key("data.backup-2026/a"), "{:?}", left.keys());
    }
}

#[test]
fn data_without_its_marker() {
    for kind in DURABLE {
        let dir = store_with_a_record(kind);
        fs::remove_file(dir.path().join("engine")).unwrap();
        assert!(matches!(refused(kind, dir.path()), Error::Foreign { .. }));
    }
}

#[test]
fn a_missing_parent() {
    let dir = tempfile::tempdir().unwrap();
    for kind in EngineKind::ALL {
        let error = refused(kind, &dir.path().join("not").join("here"));
        assert!(matches!(error, Error::Path { .. }), "{error}");
    }
    assert!(contents(dir.path()).is_empty());
}

#[test]
fn a_file_where_a_directory_should_be() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    for kind in EngineKind::ALL {
        assert!(matches!(refused(kind, &file), Error::Foreign { .. }));
    }
    assert_eq!(fs::read(&file).unwrap(), b"text");
}

#[test]
fn a_directory_that_cannot_be_written() {
    for kind in EngineKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o555)).unwrap();
        let error = refused(kind, dir.path());
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(error, Error::Path { .. }), "{error}");
    }
}

#[test]
fn a_store_of_a_newer_program() {
    for kind in EngineKind::ALL {
        let dir = store_with_a_record(kind);
        let marker = dir.path().join("engine");
        let text = fs::read_to_string(&marker).unwrap();
        fs::write(&marker, text.replace("clearlane-engine 1", "clearlane-engine 2")).unwrap();
        let error = refused(kind, dir.path());
        assert!(error.to_string().contains("format version 2"), "{error}");
    }
}

#[test]
fn a_store_of_an_engine_that_is_not_here_any_more() {
    let dir = store_with_a_record(EngineKind::Bolt);
    let marker = dir.path().join("engine");
    let text = fs::read_to_string(&marker).unwrap();
    fs::write(&marker, text.replace("engine bolt", "engine redb")).unwrap();
    let error = refused(EngineKind::Bolt, dir.path());
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    let message = "of engine \"redb\", which this version does not have";
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn a_marker_that_is_none() {
    let beyond = format!("clearlane-engine 1\nengine bolt\ngeneration {}\n", u64::MAX);
    for text in ["", "clearlane-engine", &beyond, "\0\u{1}"] {
        let dir = store_with_a_record(EngineKind::Bolt);
        fs::write(dir.path().join("engine"), text).unwrap();
        assert!(matches!(refused(EngineKind::Bolt, dir.path()), Error::Corrupt { .. }));
    }
}

#[test]
fn a_store_that_is_open_already() {
    for kind in EngineKind::ALL {
        let store = Store::new(kind);
        store.put(Bucket::Key, "a", "1");
        assert!(matches!(refused(kind, store.dir.path()), Error::Locked { .. }));
        if kind.is_durable() {
            // The lock lasts until everything that reads the files is dropped.
            let snapshot = store.engine.snapshot().unwrap();
            let Store { engine, dir, .. } = store;
            drop(engine);
            assert!(matches!(refused(kind, dir.path()), Error::Locked { .. }));
            drop(snapshot);
            open_small(kind, dir.path());
        }
    }
}

/// Damages the file of a bolt store and asserts that opening fails with `path: damaged: …`, with
/// `words` in the message.
fn damaged_bolt(words: &str, damage: impl FnOnce(&mut Vec<u8>)) {
    let dir = store_with_a_record(EngineKind::Bolt);
    let file = dir.path().join("data.0");
    let mut bytes = fs::read(&file).unwrap();
    damage(&mut bytes);
    fs::write(&file, bytes).unwrap();
    let error = refused(EngineKind::Bolt, dir.path());
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let line = error.to_string();
    assert!(line.starts_with(&format!("{}: damaged: ", file.display())), "{line}");
    assert!(line.contains(words), "{line}");
}

#[test]
fn a_truncated_bolt_file() {
    for length in [0, 7, 4096, 4097, 8192] {
        damaged_bolt("", |bytes| bytes.truncate(length));
    }
    damaged_bolt("no meta page is valid: page 0: the file is too short", Vec::clear);
    damaged_bolt("cut short: the file has 8192 bytes, but its pages need", |bytes| {
        bytes.truncate(8192)
    });
}

#[test]
fn a_bolt_file_of_garbage() {
    damaged_bolt("no meta page is valid", |bytes| bytes.fill(0x5a));
    damaged_bolt("no meta page is valid", |bytes| *bytes = b"hello".to_vec());
    damaged_bolt("has the id 0 in its header", |bytes| bytes[8192..].fill(0));
}

#[test]
fn a_bolt_file_that_is_missing() {
    let dir = store_with_a_record(EngineKind::Bolt);
    fs::remove_file(dir.path().join("data.0")).unwrap();
    let error = refused(EngineKind::Bolt, dir.path());
    assert!(error.to_string().ends_with("data.0: damaged: the file is missing"), "{error}");
}

#[test]
fn a_bolt_file_that_another_program_has_locked() {
    let dir = store_with_a_record(EngineKind::Bolt);
    let file = File::open(dir.path().join("data.0")).unwrap();
    file.lock().unwrap();
    assert!(matches!(refused(EngineKind::Bolt, dir.path()), Error::Locked { .. }));
    drop(file);
    open_small(EngineKind::Bolt, dir.path());
}

#[test]
fn keys_and_values_that_bolt_has_no_place_for() {
    let store = Store::new(EngineKind::Bolt);
    store.commit(|txn| {
        txn.put(Bucket::Key, &[1; 32_768], b"1").unwrap();
        for key in [&[][..], &[1; 32_769]] {
            let error = txn.put(Bucket::Key, key, b"2").unwrap_err();
            assert!(matches!(error, Error::KeySize { bytes } if bytes == key.len()), "{error}");
        }
        // The transaction is still usable.
        txn.put(Bucket::Key, b"a", b"3").unwrap();
    });
    assert_eq!(store.engine.size_in_use(), 32_769 + 2);
}

#[test]
fn sled_files_that_are_missing_or_empty_or_garbage() {
    for name in ["db", "conf", "witness"] {
        let dir = store_with_a_record(EngineKind::Sled);
        let file = dir.path().join("data.0").join(name);
        File::create(&file).unwrap();
        assert!(matches!(refused(EngineKind::Sled, dir.path()), Error::Corrupt { .. }), "{name}");
        fs::write(&file, [0x5a; 40]).unwrap();
        assert!(matches!(refused(EngineKind::Sled, dir.path()), Error::Corrupt { .. }), "{name}");
        fs::remove_file(&file).unwrap();
        assert!(matches!(refused(EngineKind::Sled, dir.path()), Error::Corrupt { .. }), "{name}");
    }
}

#[test]
fn a_truncated_sled_log() {
    for numerator in [1, 5, 9] {
        let dir = store_with_a_record(EngineKind::Sled);
        let file = dir.path().join("data.0").join("db");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() * numerator / 10]).unwrap();
        assert!(matches!(refused(EngineKind::Sled, dir.path()), Error::Corrupt { .. }));
    }
}

#[test]
fn a_sled_log_with_wrong_bits_and_its_right_length() {
    let store = Store::new(EngineKind::Sled);
    for number in 0..200u64 {
        store.commit(|txn| {
            for sub in 0..20 {
                let key = (number * 20 + sub).to_be_bytes();
                txn.put(Bucket::Key, &key, &[7; 1000]).unwrap();
            }
        });
    }
    let Store { engine, dir, .. } = store;
    drop(engine);
    let file = dir.path().join("data.0").join("db");
    let mut bytes = fs::read(&file).unwrap();
    // sled's threads choose the positions of its pages, and a page may be outdated. So several
    // positions are damaged.
    for tenth in 1..10 {
        let position = bytes.len() / 10 * tenth;
        bytes[position] ^= 0x10;
    }
    fs::write(&file, bytes).unwrap();
    assert!(matches!(refused(EngineKind::Sled, dir.path()), Error::Corrupt { .. }));
}

#[test]
fn a_making_that_was_interrupted_is_made_again() {
    for kind in DURABLE {
        let dir = store_with_a_record(kind);
        fs::rename(dir.path().join("engine"), dir.path().join("engine.new")).unwrap();
        let engine = open_small(kind, dir.path());
        assert_eq!(shown(&*engine.snapshot().unwrap(), Bucket::Key), "");
    }
}

#[test]
fn leftovers_of_a_killed_defragmentation_are_removed() {
    for kind in DURABLE {
        let dir = store_with_a_record(kind);
        fs::write(dir.path().join("data.1"), "half a copy").unwrap();
        fs::create_dir(dir.path().join("data.7")).unwrap();
        fs::write(dir.path().join("data.7").join("db"), "half a copy").unwrap();
        fs::write(dir.path().join("engine.new"), "half a mark").unwrap();
        let engine = open_small(kind, dir.path());
        assert_eq!(shown(&*engine.snapshot().unwrap(), Bucket::Key), "a=1");
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["data.0", "engine"]);
    }
}
