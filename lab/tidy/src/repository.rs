//! The repository as the rules see it: the path and the text of every file.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use crate::rust::{self, SourceViews};

/// Names that are skipped at any depth.
const SKIPPED: [&str; 2] = [".git", "target"];

#[derive(Debug, Default)]
pub struct Repository {
    /// The files by path. A path is relative to the top of the repository, with `/` between its
    /// parts.
    files: BTreeMap<String, File>,
    /// The path prefixes of the modules that exist only in tests.
    test_modules: Vec<String>,
}

/// A file of the repository. If it is not UTF-8, such as a picture, `text` contains replacement
/// characters.
#[derive(Debug)]
pub struct File {
    /// The path relative to the top of the repository.
    pub path: String,
    pub text: String,
    /// The views of the code. `None` if this is not a Rust file.
    pub rust: Option<SourceViews>,
}

impl Repository {
    pub fn load(top: &Path) -> io::Result<Self> {
        let mut repository = Self::default();
        repository.load_directory(top, "")?;
        Ok(repository)
    }

    pub fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let mut repository = Self::default();
        for (path, text) in files {
            repository.add(path.to_owned(), text.to_owned());
        }
        repository
    }

    /// Returns all files, ordered by path.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    pub fn rust_files(&self) -> impl Iterator<Item = (&File, &SourceViews)> {
        self.files().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// Returns the Rust files whose path starts with `start`, without modules that exist only in
    /// tests.
    pub fn product_files(&self, start: &str) -> impl Iterator<Item = (&File, &SourceViews)> {
        let is_test = |path: &str| self.test_modules.iter().any(|test| path.starts_with(test));
        self.rust_files()
            .filter(move |(file, _)| file.path.starts_with(start) && !is_test(&file.path))
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Returns whether a file or a directory has this path. The empty path is the top.
    pub fn has(&self, path: &str) -> bool {
        let directory = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = self.files.range(directory.clone()..).next();
        self.files.contains_key(path) || below.is_some_and(|(path, _)| path.starts_with(&directory))
    }

    fn load_directory(&mut self, at: &Path, path: &str) -> io::Result<()> {
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let kind = entry.file_type()?;
            // The target of a symbolic link is checked at its own path.
            if kind.is_symlink() {
                continue;
            }
            if kind.is_dir() {
                self.load_directory(&entry.path(), &path)?;
            } else {
                let bytes = fs::read(entry.path())?;
                self.add(path, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        Ok(())
    }

    fn add(&mut self, path: String, text: String) {
        let rust = path.ends_with(".rs").then(|| SourceViews::of(&text));
        let directory = rust::directory_of_children(&path);
        for module in rust.iter().flat_map(|views| &views.test_modules) {
            self.test_modules.push(format!("{directory}/{module}.rs"));
            self.test_modules.push(format!("{directory}/{module}/"));
        }
        self.files.insert(path.clone(), File { path, text, rust });
    }
}
