//! Links in Markdown lead somewhere.
//!
//! A link to a file must name a file or a directory of the repository; a link with an anchor must
//! name a heading of that page. Links to other sites are not followed: that would need a network.
//! Code is skipped, whether it stands in a fence or between backticks.

use crate::{File, Repository, Violation};

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let pages = repository.files().filter(|file| file.path.ends_with(".md"));
    pages.flat_map(|page| check_page(repository, page)).collect()
}

fn check_page(repository: &Repository, page: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, at) in prose(&page.text) {
        for target in targets(&line) {
            if let Some(message) = link_error(repository, page, target) {
                violations.push(Violation::new(&page.path, at, message));
            }
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

/// The lines of a page with their numbers, code left out.
fn prose(text: &str) -> impl Iterator<Item = (String, usize)> {
    let mut in_fence = false;
    text.lines().zip(1..).filter_map(move |(line, at)| {
        let fence = line.trim_start().starts_with("```");
        in_fence ^= fence;
        // What stands at an odd place between backticks is code.
        let outside = || line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        (!fence && !in_fence).then(|| (outside(), at))
    })
}

/// Where the links of a line lead: `[text](target)`, `[name]: target`, and `src="target"`.
fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let behind =
        |mark: &'static str| line.match_indices(mark).map(move |(at, _)| &line[at + mark.len()..]);
    for rest in behind("](") {
        // A title may follow: [text](target "title").
        targets.extend(rest.split([')', ' ']).next());
    }
    for rest in behind("src=\"").chain(behind("href=\"")) {
        targets.extend(rest.split('"').next());
    }
    if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        targets.push(target.trim());
    }
    targets
}

/// The path that a link in `page` names, seen from the top; `None` if it leads out at the top.
fn resolve(page: &str, link: &str) -> Option<String> {
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
/// else but letters, digits and dashes. A second heading of the same text gets a number.
fn headings(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut in_fence = false;
    for line in text.lines() {
        in_fence ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if in_fence || title == line || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let base: String = kept.flat_map(char::to_lowercase).collect::<String>().replace(' ', "-");
        let mut anchor = base.clone();
        let mut count = 0;
        while anchors.contains(&anchor) {
            count += 1;
            anchor = format!("{base}-{count}");
        }
        anchors.push(anchor);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# The store\n\n## How it's *read*: `Range`\n\n## Again\n\n## Again\n";

    fn messages(text: &str) -> Vec<String> {
        let repository = Repository::of([
            ("docs/a.md", text),
            ("docs/b/page.md", PAGE),
            ("crates/x/src/lib.rs", "//! X.\n"),
        ]);
        check(&repository).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn good_links_pass() {
        let good = [
            "[x](b/page.md) and [y](b/page.md#the-store) and [z](./b/page.md#how-its-read-range)",
            "[x](b/page.md#again-1) [y](../crates/x) [z](../crates/x/src/) [top](..)",
            "# Here\n[x](#here) [site](https://example.org/x) [m](mailto:a@example.org)",
            "[x](b/page.md \"title\")\n\n[name]: b/page.md\n<img src=\"b/page.md\">",
            "`[x](nowhere.md)`\n```\n[x](nowhere.md)\n```\n",
        ];
        for text in good {
            assert_eq!(messages(text), [""; 0], "{text}");
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
            "<img src=\"nowhere.svg\">",
            "[x](b/page.md#gone)",
            "[x](#gone)",
        ];
        for text in bad {
            let told = messages(&format!("# A\n\n{text}\n"));
            assert_eq!(told.len(), 1, "{text}");
            assert!(told[0].starts_with("docs/a.md:3: "), "{text}: {told:?}");
        }
    }
}
