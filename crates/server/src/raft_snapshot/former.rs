//! The former layout of stores of the engine `bolt`, and its conversion: a file `current` named a
//! numbered directory, and a marker in that the file.
//!
//! ```text
//!   snap/current  "store 4"   ─▶  snap/store.4/data.2  ─▶  snap/db
//!   snap/7310.copy "store 5"  ─▶  snap/store.5/data.0  ─▶  snap/0000000000001c8e.snap.db
//! ```
//!
//! One rename for each file, copies first, and the store last; then the old names are removed. A
//! conversion that was interrupted goes on at the next start: a file that has moved is found under
//! its new name.

use std::fs;
use std::path::Path;

use clearlane_engine::{Error, Result, bolt_file};
use clearlane_wal::files::{FileSystem, remove_if_there};

use super::directory::{
    CURRENT, LOCK, MARK_NEW, is_store_name, lock, path_error, read_mark, snapshot_index, store_name,
};
use super::files::copy_name;

pub(super) fn convert(files: &dyn FileSystem, dir: &Path) -> Result<()> {
    let names = files.list(dir).map_err(path_error(dir))?;
    if !names.iter().any(|name| name == CURRENT) {
        return match names.iter().find(|name| is_store_name(name)) {
            // What an interrupted conversion has left, and nothing names.
            Some(_) if names.iter().any(|name| name == "db") => remove_former(files, dir, &names),
            Some(name) => {
                let found = format!("it has {name}, and no file named {CURRENT}");
                Err(Error::Foreign { path: dir.to_owned(), found })
            }
            None => Ok(()),
        };
    }
    // A program that still knows this layout alone locks this file.
    let _lock = lock(files, dir)?;
    for name in &names {
        if let Some(index) = snapshot_index(name) {
            move_store(files, dir, name, &copy_name(index))?;
        }
    }
    move_store(files, dir, CURRENT, "db")?;
    tracing::info!(dir = %dir.display(), "the store is member/snap/db now, as etcd names it");
    remove_former(files, dir, &names)
}

/// The file of the store that `mark` names gets the name `to`.
fn move_store(files: &dyn FileSystem, dir: &Path, mark: &str, to: &str) -> Result<()> {
    let store = dir.join(store_name(read_mark(files, dir.join(mark))?));
    let to = dir.join(to);
    // One that was not made to its end has no marker.
    if !store.join("engine").exists() {
        return Ok(());
    }
    let data = bolt_file::of_store(&store)?;
    match (data.exists(), to.exists()) {
        (true, false) => {
            files.rename(&data, &to).map_err(path_error(&to))?;
            // The new name first: between the two the file must have one.
            files.sync_dir(dir).and_then(|()| files.sync_dir(&store)).map_err(path_error(dir))
        }
        (false, true) => Ok(()),
        (true, true) => {
            let found = format!("it is there, and so is {}", data.display());
            Err(Error::Foreign { path: to, found })
        }
        (false, false) => {
            Err(Error::Corrupt { path: data, detail: "the file is missing".to_owned() })
        }
    }
}

fn remove_former(files: &dyn FileSystem, dir: &Path, names: &[String]) -> Result<()> {
    for name in names {
        let is_mark = snapshot_index(name).is_some() || name == MARK_NEW;
        if is_mark || name == CURRENT || name == LOCK {
            let path = dir.join(name);
            remove_if_there(files, &path).map_err(path_error(&path))?;
        }
    }
    files.sync_dir(dir).map_err(path_error(dir))?;
    for name in names.iter().filter(|name| is_store_name(name)) {
        let path = dir.join(name);
        fs::remove_dir_all(&path).map_err(path_error(&path))?;
    }
    Ok(())
}
