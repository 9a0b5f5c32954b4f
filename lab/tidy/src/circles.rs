//! At most three files of one crate import each other in a circle.
//!
//! Files that import each other can only be understood together. This rule counts each path outside
//! of tests that starts with `crate` or `super`, in a `use` or elsewhere in the code. The path
//! leads to the file of the longest module that it names. So an item that a module re-exports
//! belongs to the file of that module.
//!
//! Two kinds of paths are ignored. A path that starts with the name of a child module is expected:
//! a parent represents its children. A `pub use` only exports a name.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::rust::is_name;
use crate::{Repository, violation};

const CIRCLE_FILES_MAX: usize = 3;

pub fn check(repository: &Repository) -> Vec<String> {
    let roots = repository.files().filter_map(|file| file.path.strip_suffix("src/lib.rs"));
    let sources = roots.map(|root| format!("{root}src/"));
    sources.flat_map(|source| check_crate(repository, &source)).collect()
}

fn check_crate(repository: &Repository, source: &str) -> Vec<String> {
    let modules = Modules::of(repository, source);
    let mut imports = DiGraphMap::<_, ()>::new();
    for (module, (_, named)) in &modules.0 {
        for to in named.iter().filter_map(|path| modules.resolve(module, path)) {
            imports.add_edge(module, to, ());
        }
    }
    let circles = tarjan_scc(&imports).into_iter();
    let long = circles.filter(|circle| circle.len() > CIRCLE_FILES_MAX);
    long.map(|circle| {
        let mut files: Vec<_> = circle.iter().map(|module| modules.0[*module].0).collect();
        files.sort_unstable();
        let message = format!(
            "{} files import each other in a circle; {CIRCLE_FILES_MAX} are the most: {}",
            files.len(),
            files.join(", ")
        );
        violation(files[0], 1, message)
    })
    .collect()
}

/// The names in a path. The path of a module starts at the root of its crate, and the root itself
/// is the empty path. A path in the code starts with `crate` or `super`.
type ModulePath = Vec<String>;

/// The modules of a crate that have their own file. For each module: the path of its file, and the
/// paths that its code names.
struct Modules<'a>(BTreeMap<ModulePath, (&'a str, Vec<ModulePath>)>);

impl<'a> Modules<'a> {
    fn of(repository: &'a Repository, source: &str) -> Self {
        let files = repository.product_files(source).filter_map(|(file, views)| {
            let stem = file.path[source.len()..].trim_end_matches(".rs");
            let mut module: ModulePath = stem.split('/').map(str::to_owned).collect();
            module.pop_if(|last| last == "mod" || stem == "lib");
            let is_program = stem == "main" || stem.starts_with("bin/");
            let named = (file.path.as_str(), paths(&views.code_without_tests));
            (!is_program).then_some((module, named))
        });
        Self(files.collect())
    }

    fn resolve(&self, from: &ModulePath, path: &[String]) -> Option<&ModulePath> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let start = if ups == 0 { 0 } else { from.len().checked_sub(ups)? };
        let mut whole = from[..start].to_vec();
        whole.extend_from_slice(&path[ups.max(1)..]);
        let known = (0..=whole.len()).rev();
        let known = known.filter_map(|length| self.0.get_key_value(&whole[..length]));
        known.map(|(module, _)| module).next()
    }
}

/// Returns all paths that start with `crate` or `super`, except the paths of a `pub use`.
fn paths(code: &str) -> Vec<ModulePath> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = &code[..at];
        let statement = before.rsplit([';', '}', ']']).next().unwrap_or_default().trim();
        let is_exported = statement.starts_with("pub") && statement.ends_with(" use");
        let is_longer = before.ends_with(|c: char| is_name(c) || c == '$' || c == ':');
        if !is_longer && !is_exported {
            flatten(&[], &code[at..], &mut paths);
        }
    }
    paths
}

/// Flattens the use tree at the start of `code`: `a::{b, c::D}` becomes `a::b` and `a::c::D`.
/// Returns the code after the tree.
fn flatten<'a>(before: &[String], code: &'a str, paths: &mut Vec<ModulePath>) -> &'a str {
    let length = code.find(|c| !is_name(c) && c != ':').unwrap_or(code.len());
    let (names, rest) = code.split_at(length);
    let mut path = before.to_vec();
    path.extend(names.split("::").filter(|name| !name.is_empty()).map(str::to_owned));
    let Some(mut group) = rest.strip_prefix('{').filter(|_| names.ends_with("::")) else {
        paths.push(path);
        return rest;
    };
    while let Some((at, c)) = group.char_indices().find(|(_, c)| is_name(*c) || *c == '}') {
        if c == '}' {
            return &group[at + 1..];
        }
        group = flatten(&path, &group[at..], paths);
        group = group
            .trim_start()
            .strip_prefix("as ")
            .map_or(group, |alias| alias.trim_start_matches(is_name));
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(last: &str) -> Vec<String> {
        let repository = Repository::of([
            ("crates/x/src/lib.rs", "//! X.\nmod a;\npub mod d;\npub use crate::a::A;\n"),
            ("crates/x/src/a.rs", "//! A.\nuse crate::b::{self, inner::{B, C as D}};\n"),
            ("crates/x/src/b/mod.rs", "//! B.\nuse super::c::C;\nmod inner;\n"),
            ("crates/x/src/b/inner.rs", "//! I.\nuse bytes::Bytes;\n"),
            ("crates/x/src/c.rs", "//! C.\nuse crate::d;\n"),
            ("crates/x/src/d.rs", last),
        ]);
        check(&repository)
    }

    #[test]
    fn four_files_in_a_circle_are_told() {
        let told = "crates/x/src/a.rs:1: 4 files import each other in a circle; 3 are the most: \
                    crates/x/src/a.rs, crates/x/src/b/mod.rs, crates/x/src/c.rs, \
                    crates/x/src/d.rs";
        for import in [
            "use bytes::Bytes;\nuse crate::a::A;",
            "use super::a;",
            "fn f() {\n    use crate::{b::inner::B as D, a::{A}};\n}",
            "pub(crate) fn f(x: super::a::A) {}",
        ] {
            assert_eq!(messages(&format!("//! D.\n{import}\n")), [told], "{import}");
        }
    }

    #[test]
    fn shorter_circles_tests_and_re_exports_pass() {
        for import in [
            "use crate::b;",
            "use crate::b::inner::B;",
            // The root re-exports `A`, so this path leads to the root and not to `a.rs`.
            "use crate::{A as Other, b};",
            "use a::A;",
            "pub(crate) use crate::a::A;",
            "// use crate::a::A;",
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
        ] {
            assert_eq!(messages(&format!("//! D.\n{import}\n")), [""; 0], "{import}");
        }
    }
}
