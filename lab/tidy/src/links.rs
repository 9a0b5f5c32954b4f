//! Links in Markdown lead somewhere, and so do the paths that Markdown and docs in code name.
//!
//! A link to a file must name a file or a directory of the repository; a link with an anchor must
//! name a heading of that page. Links to other sites are not followed: that would need a network.
//! In Markdown, code is skipped, whether it stands in a fence or between backticks. But what begins
//! with `crates/` or `docs/` between backticks, and ends like a file, is a path from the top.

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

/// The lines outside of fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut in_fence = false;
    text.lines().zip(1..).filter(move |(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        !is_fence && !in_fence
    })
}

/// Drops the odd pieces between backticks, which are code.
fn line_without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn paths(line: &str) -> impl Iterator<Item = &str> {
    quoted(line).filter(|word| {
        (word.starts_with("crates/") || word.starts_with("docs/"))
            && [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end))
            && !word.contains(['*', ' ', '<', '{'])
    })
}

/// Link targets: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(named.map(|(_, target)| target.trim())).map(str::to_owned).collect()
}

/// The path that a link in `page` names, relative to the top; `None` if it leads outside.
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

/// The anchors that the headings of a page get: lower case, spaces turned into dashes, and nothing
/// else but letters, digits and dashes.
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
