//! The repository as the rules see it: paths, and the text of every text file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use crate::rust;

/// Everything below the top, but for what git is told to ignore.
#[derive(Debug, Default)]
pub struct Repository {
    /// Files that hold text, by path. A path is relative to the top, with `/` between its parts.
    files: BTreeMap<String, File>,
    /// Every file and every directory, text or not.
    entries: BTreeSet<String>,
}

/// A text file.
#[derive(Debug)]
pub struct File {
    /// Relative to the top.
    pub path: String,
    /// As it is.
    pub text: String,
    /// The same lines as a reader of code sees them; for Rust files only.
    pub rust: Option<rust::SourceViews>,
}

impl Repository {
    /// Reads the repository that lies at `top`.
    ///
    /// # Errors
    ///
    /// When a directory or a file cannot be read.
    pub fn load(top: &Path) -> io::Result<Self> {
        let ignored = IgnoredPaths::load(top)?;
        let mut repository = Self::default();
        repository.load_directory(top, "", &ignored)?;
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
    pub fn rust_files(&self) -> impl Iterator<Item = (&File, &rust::SourceViews)> {
        self.files().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// The text file with this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Whether there is a file or a directory with this path. The empty path is the top.
    pub fn has(&self, path: &str) -> bool {
        path.is_empty() || self.entries.contains(path)
    }

    /// The names of what lies directly in a directory; the empty path is the top.
    pub fn names_in<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a str> {
        self.entries.iter().filter_map(move |entry| {
            let below = match directory {
                "" => entry,
                _ => entry.strip_prefix(directory)?.strip_prefix('/')?,
            };
            (!below.contains('/')).then_some(below)
        })
    }

    fn load_directory(&mut self, at: &Path, path: &str, ignored: &IgnoredPaths) -> io::Result<()> {
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_directory = entry.file_type()?.is_dir();
            if ignored.matches(&name, path.is_empty(), is_directory) {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            if is_directory {
                self.entries.insert(path.clone());
                self.load_directory(&entry.path(), &path, ignored)?;
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
        let rust = path.ends_with(".rs").then(|| rust::SourceViews::of(&text));
        self.entries.insert(path.clone());
        self.files.insert(path.clone(), File { path, text, rust });
    }
}

/// What git does not look at: the forms that our `.gitignore` uses, which are `/name` (at the top),
/// `name/` (a directory, anywhere) and `*.end`. A form that is not understood is refused: taken for
/// a name, it would let everything through that it was to keep out.
struct IgnoredPaths(Vec<Pattern>);

enum Pattern {
    AtTop(String),
    Directory(String),
    End(String),
}

impl IgnoredPaths {
    fn load(top: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(top.join(".gitignore")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(Pattern::parse).collect::<io::Result<_>>().map(Self)
    }

    fn matches(&self, name: &str, at_top: bool, is_directory: bool) -> bool {
        at_top && name == ".git"
            || self.0.iter().any(|pattern| match pattern {
                Pattern::AtTop(ignored) => at_top && name == ignored,
                Pattern::Directory(ignored) => is_directory && name == ignored,
                Pattern::End(end) => name.ends_with(end),
            })
    }
}

impl Pattern {
    fn parse(line: &str) -> io::Result<Self> {
        let plain = |name: &str| !name.is_empty() && !name.contains(['/', '*', '?', '[', '!']);
        let pattern = if let Some(name) = line.strip_prefix('/') {
            plain(name).then(|| Self::AtTop(name.to_owned()))
        } else if let Some(name) = line.strip_suffix('/') {
            plain(name).then(|| Self::Directory(name.to_owned()))
        } else {
            let end = line.strip_prefix('*').filter(|end| plain(end));
            end.map(|end| Self::End(end.to_owned()))
        };
        pattern.ok_or_else(|| {
            let known = "`/name`, `name/` and `*.end` are understood";
            io::Error::new(io::ErrorKind::InvalidData, format!(".gitignore: {line:?}: {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_text_and_skips_what_git_ignores() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("docs/empty")).unwrap();
        fs::create_dir_all(top.path().join("target/debug")).unwrap();
        fs::create_dir_all(top.path().join("docs/built/debug")).unwrap();
        fs::create_dir_all(top.path().join(".git")).unwrap();
        fs::write(top.path().join(".gitignore"), "# Built.\n/target\nbuilt/\n\n*.profraw\n")
            .unwrap();
        fs::write(top.path().join("docs/a.md"), "# A\n").unwrap();
        fs::write(top.path().join("docs/b.profraw"), "x").unwrap();
        fs::write(top.path().join("docs/picture.png"), [0xff, 0xfe]).unwrap();

        let repository = Repository::load(top.path()).unwrap();
        assert_eq!(repository.names_in("").collect::<Vec<_>>(), [".gitignore", "docs"]);
        let docs: Vec<_> = repository.names_in("docs").collect();
        assert_eq!(docs, ["a.md", "empty", "picture.png"]);
        assert_eq!(repository.file("docs/a.md").unwrap().text, "# A\n");
        assert!(repository.file("docs/picture.png").is_none());
    }

    #[test]
    fn refuses_what_it_does_not_understand_of_git() {
        for pattern in ["docs/*.md", "target", "!kept", "a/b/", "/", "*"] {
            let top = tempfile::tempdir().unwrap();
            fs::write(top.path().join(".gitignore"), pattern).unwrap();
            let told = Repository::load(top.path()).unwrap_err().to_string();
            assert!(told.contains(pattern), "{told}");
        }
    }
}
