//! The repository as the rules see it: paths, and the text of every text file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use crate::rust::{self, SourceViews};

/// Directories that are not part of the repository, wherever they lie.
const SKIPPED: [&str; 2] = [".git", "target"];

/// Everything below the top, but for [what git has and what was built](SKIPPED).
#[derive(Debug, Default)]
pub struct Repository {
    /// Files that hold text, by path. A path is relative to the top, with `/` between its parts.
    files: BTreeMap<String, File>,
    /// Every file and every directory, text or not.
    entries: BTreeSet<String>,
    /// How the paths of modules begin that exist in tests only.
    test_modules: Vec<String>,
}

/// A text file.
#[derive(Debug)]
pub struct File {
    /// Relative to the top.
    pub path: String,
    /// As it is.
    pub text: String,
    /// The same lines without comments, strings and tests; for Rust files only.
    pub rust: Option<SourceViews>,
}

impl Repository {
    /// Reads the repository that lies at `top`.
    ///
    /// # Errors
    ///
    /// When a directory or a file cannot be read.
    pub fn load(top: &Path) -> io::Result<Self> {
        let mut repository = Self::default();
        repository.load_directory(top, "")?;
        Ok(repository)
    }

    /// A repository made up of these paths and texts.
    pub fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let mut repository = Self::default();
        for (path, text) in files {
            let directories = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
            repository.entries.extend(directories);
            repository.add(path.to_owned(), text.to_owned());
        }
        repository
    }

    /// All text files, in order of their paths.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// All Rust files with the views of their code.
    pub fn rust_files(&self) -> impl Iterator<Item = (&File, &SourceViews)> {
        self.files().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// Rust files whose path begins so, without those that exist in tests only.
    pub fn product_files(&self, start: &str) -> impl Iterator<Item = (&File, &SourceViews)> {
        let is_test = |path: &str| self.test_modules.iter().any(|test| path.starts_with(test));
        self.rust_files()
            .filter(move |(file, _)| file.path.starts_with(start) && !is_test(&file.path))
    }

    /// The text file with this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Whether there is a file or a directory with this path. The empty path is the top.
    pub fn has(&self, path: &str) -> bool {
        path.is_empty() || self.entries.contains(path)
    }

    fn load_directory(&mut self, at: &Path, path: &str) -> io::Result<()> {
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            if entry.file_type()?.is_dir() {
                self.entries.insert(path.clone());
                self.load_directory(&entry.path(), &path)?;
            } else {
                // Whatever is not UTF-8 is a picture or the like: it exists, and has no text.
                match String::from_utf8(fs::read(entry.path())?) {
                    Ok(text) => self.add(path, text),
                    Err(_) => _ = self.entries.insert(path),
                }
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
        self.entries.insert(path.clone());
        self.files.insert(path.clone(), File { path, text, rust });
    }
}
