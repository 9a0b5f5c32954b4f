//! What one should find can be found.
//!
//! * Every decision record is linked from `docs/decisions/README.md`.
//! * Every example is named in `examples/README.md`.
//! * Every bench says on top how to run it: the header holds its `cargo bench` command.

use toml::{Table, Value};

use crate::{File, Repository, Violation};

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(decisions(repository));
    violations.extend(examples(repository));
    violations.extend(benches(repository));
    violations
}

fn decisions(repository: &Repository) -> Vec<Violation> {
    let index = "docs/decisions/README.md";
    let names = repository.names_in("docs/decisions").filter(|name| *name != "README.md");
    let missing = names.filter(|name| !file_contains(repository, index, &format!("({name})")));
    let message = |name| format!("no link to {name}; every record is linked from here");
    missing.map(|name| Violation::new(index, 1, message(name))).collect()
}

fn examples(repository: &Repository) -> Vec<Violation> {
    let index = "examples/README.md";
    let names = programs(repository, "examples").into_iter().map(|(name, _)| name);
    let missing = names.filter(|name| !file_contains(repository, index, name));
    let message = |name| format!("example {name} is not named; every example is named here");
    missing.map(|name| Violation::new(index, 1, message(name))).collect()
}

fn benches(repository: &Repository) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, file) in programs(repository, "benches") {
        let Some(file) = file else {
            let message = format!("the source of bench {name} is not where its path says");
            violations.push(Violation::new("benches/Cargo.toml", 1, message));
            continue;
        };
        let mut header = file.text.lines().take_while(|line| line.starts_with("//!"));
        let command = format!("--bench {name}");
        if !header.any(|line| line.contains("cargo bench") && line.contains(&command)) {
            let message = format!(
                "the header does not say how to run this; put `cargo bench {command}` on one line \
                 of the doc on top"
            );
            violations.push(Violation::new(&file.path, 1, message));
        }
    }
    violations
}

/// The programs of a package, as its manifest lists them: name and source.
fn programs<'a>(repository: &'a Repository, directory: &str) -> Vec<(String, Option<&'a File>)> {
    let manifest = repository.file(&format!("{directory}/Cargo.toml"));
    let Some(manifest) = manifest.and_then(|file| file.text.parse::<Table>().ok()) else {
        return Vec::new();
    };
    let tables = ["bench", "example", "bin"].into_iter().filter_map(|kind| manifest.get(kind));
    let programs = tables.filter_map(Value::as_array).flatten().filter_map(|program| {
        let text = |key| program.get(key).and_then(Value::as_str);
        let name = text("name")?;
        let path = text("path").map_or_else(|| format!("{name}.rs"), str::to_owned);
        Some((name.to_owned(), repository.file(&format!("{directory}/{path}"))))
    });
    programs.collect()
}

fn file_contains(repository: &Repository, path: &str, text: &str) -> bool {
    repository.file(path).is_some_and(|file| file.text.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Repository::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_decision_without_a_link_is_told() {
        let index = ("docs/decisions/README.md", "- [A](a.md)\n");
        assert_eq!(messages([index, ("docs/decisions/a.md", "")]), [""; 0]);
        let told = messages([index, ("docs/decisions/b.md", "")]);
        assert!(told[0].starts_with("docs/decisions/README.md:1: no link to b.md"));
    }

    #[test]
    fn an_example_that_is_not_named_is_told() {
        let manifest = ("examples/Cargo.toml", "[[example]]\nname = \"hello\"\n");
        assert!(messages([manifest, ("examples/README.md", "# A\n")])[0].contains("example hello"));
        assert_eq!(messages([manifest]).len(), 1);
        assert_eq!(messages([manifest, ("examples/README.md", "- `hello`\n")]), [""; 0]);
        assert_eq!(messages([("examples/lib.rs", "//! L.\n")]), [""; 0]);
    }

    #[test]
    fn a_bench_without_its_command_is_told() {
        let manifest = ("benches/Cargo.toml", "[[bench]]\nname = \"open\"\n");
        let good = "//! B.\n//! Run: `cargo bench -p x --bench open`\n";
        assert_eq!(
            messages([manifest, ("benches/open.rs", good), ("benches/part.rs", "")]),
            [""; 0]
        );
        for bad in
            ["//! B.\n//! `cargo bench --bench x`\n", "//! B.\n// cargo bench --bench open\n"]
        {
            let told = messages([manifest, ("benches/open.rs", bad)]);
            assert!(told[0].starts_with("benches/open.rs:1: the header"), "{bad}");
        }
        assert!(
            messages([manifest])[0].starts_with("benches/Cargo.toml:1: the source of bench open")
        );
    }
}
