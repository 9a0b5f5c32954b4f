//! Links in Markdown, and paths that Markdown and docs in code name, lead to existing files.
//!
//! * A link to a file names a file or a directory of the repository.
//! * A link with an anchor names a heading of that page.
//! * Links to other sites are not followed, because that needs a network.
//! * Links in code, which is in fences or between backticks, are not checked. But text between
//!   backticks is a path from the top of the repository if it starts with one of [`FOLDERS`] and
//!   ends like the name of a file. The repository must contain this path.

use crate::chapters::quoted;
use crate::{File, Repository, violation};

pub fn check(repository: &Repository) -> Vec<String> {
    let mut violations = Vec::new();
    for file in repository.files() {
        let is_page = file.path.ends_with(".md");
        for (line, at) in prose(&file.text).filter(|_| is_page || file.rust.is_some()) {
            let links = if is_page { targets(&line_without_code(line)) } else { Vec::new() };
            let broken = links.iter().filter_map(|target| link_error(repository, file, target));
            let names_paths = is_page || line.trim_start().starts_with("//");
            let missing = paths(line).filter(|path| names_paths && !repository.has(path));
            let missing = missing.map(|path| format!("nothing lies at `{path}`"));
            violations
                .extend(broken.chain(missing).map(|message| violation(&file.path, at, message)));
        }
    }
    violations
}

fn link_error(repository: &Repository, page: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match path {
        "" => page.path.clone(),
        _ => match resolve(&page.path, path) {
            Some(path) if repository.has(&path) => path,
            _ => return Some(format!("nothing lies at `{path}`; a link is relative to its page")),
        },
    };
    if anchor.is_empty() || !path.ends_with(".md") {
        return None;
    }
    let headings = repository.file(&path).map(|page| headings(&page.text)).unwrap_or_default();
    let known = headings.iter().any(|heading| heading == anchor);
    (!known).then(|| format!("{path} has no heading `#{anchor}`; it has {}", headings.join(", ")))
}

/// Returns the lines outside of fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut in_fence = false;
    text.lines().zip(1..).filter(move |(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        !is_fence && !in_fence
    })
}

/// Removes the code between backticks. After a split at backticks, every second part is code.
fn line_without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Text between backticks is treated as a path if it starts with one of these folders.
const FOLDERS: [&str; 4] = ["crates/", "clients/", "lab/", "docs/"];

fn paths(line: &str) -> impl Iterator<Item = &str> {
    quoted(line).filter(|word| {
        FOLDERS.iter().any(|folder| word.starts_with(folder))
            && [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end))
            && !word.contains(['*', ' ', '<', '{'])
    })
}

/// Returns the link targets of a line: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(named.map(|(_, target)| target.trim())).map(str::to_owned).collect()
}

/// Returns the path that a link in `page` names, relative to the top. Returns `None` if the link
/// leads outside of the repository.
pub(crate) fn resolve(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the anchors of a page's headings. An anchor is the title in lower case. Each space
/// becomes a dash, and only letters, digits, dashes and underscores remain.
fn headings(text: &str) -> Vec<String> {
    let titles = prose(text).filter_map(|(line, _)| {
        let title = line.trim_start_matches('#').strip_prefix(' ');
        title.filter(|_| line.starts_with('#'))
    });
    let anchor = |title: &str| {
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).collect::<String>().replace(' ', "-")
    };
    titles.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# The store\n\n## How it's *read*: `Range`\n";

    fn messages(path: &str, text: &str) -> Vec<String> {
        let repository = Repository::of([
            (path, text),
            ("docs/b/page.md", PAGE),
            ("crates/x/src/lib.rs", "//! X.\n"),
        ]);
        check(&repository)
    }

    #[test]
    fn good_links_pass() {
        let good = [
            "[x](b/page.md) and [y](b/page.md#the-store) and [z](./b/page.md#how-its-read-range)",
            "[y](../crates/x) [z](../crates/x/src/) [top](..)",
            "# Here\n[x](#here) [site](https://example.org/x) [m](mailto:a@example.org)",
            "[name]: b/page.md",
            "`[x](nowhere.md)`\n```\n[x](nowhere.md)\n```\n",
            "`crates/x/src/lib.rs` `crates/y/src` `crates/*/a.rs` `docs/b/page.md`",
        ];
        for text in good {
            assert_eq!(messages("docs/a.md", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn bad_links_are_told_with_their_line() {
        let bad = [
            "[x](page.md)",
            "`a` [x](nowhere.md) `b`",
            "[x](../../outside.md)",
            "[x](/docs/b/page.md)",
            "[name]: nowhere.md",
            "[x](b/page.md#gone)",
            "[x](#gone)",
            "`crates/x/src/gone.rs`",
        ];
        for text in bad {
            let told = messages("docs/a.md", &format!("# A\n\n{text}\n"));
            assert_eq!(told.len(), 1, "{text}");
            assert!(told[0].starts_with("docs/a.md:3: "), "{text}: {told:?}");
        }
        assert_eq!(
            messages("crates/y/a.rs", "//! `docs/gone.md`, [x](y), `docs/b/page.md`").len(),
            1
        );
    }
}
