//! What every `Cargo.toml` of the workspace has in common.
//!
//! * A dependency is named with its version once, in `[workspace.dependencies]` of the root; crates
//!   say `workspace = true`. So there is one version of each, and one place to change it.
//! * The lints of the root hold for every crate.
//! * A crate in `crates/name` is called `clearlane-name` (but the program `clearlane`), and is a
//!   member of the workspace.
//!
//! The other modules ask here for a crate's rung and dependencies.

use toml::{Table, Value};

use crate::{Repository, Violation};

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// The directory, without a slash at the end.
    pub directory: String,
    /// The name of the package.
    pub name: String,
    /// Where it stands; `None` if it does not say, or says it wrongly.
    pub position: Option<CratePosition>,
    /// What it depends on, of every kind.
    pub dependencies: Vec<Dependency>,
    inherits_lints: bool,
}

/// Where a crate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CratePosition {
    /// On the ladder: `rung = N`.
    Rung(i64),
    /// Beside it: `beside = "why"`.
    Beside,
}

/// A line in one of the dependency tables of a crate.
#[derive(Debug)]
pub struct Dependency {
    /// The name of the package.
    pub name: String,
    /// In which table: `dependencies`, `dev-dependencies` or `build-dependencies`.
    pub table: String,
    from_workspace: bool,
    line: usize,
}

impl Crate {
    /// The path of the manifest.
    pub fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.directory)
    }

    /// A violation on the line of one of its dependencies.
    pub fn violation_at(&self, dependency: &Dependency, message: String) -> Violation {
        Violation::new(&self.manifest(), dependency.line, message)
    }

    fn parse(directory: &str, text: &str) -> Result<Self, String> {
        let manifest: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let package = manifest.get("package").and_then(Value::as_table);
        let package = package.ok_or("there is no [package]")?;
        let name = package.get("name").and_then(Value::as_str).ok_or("the package has no name")?;
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        Ok(Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            position: crate_position(package),
            dependencies: dependencies(&manifest, text),
            inherits_lints: lints.and_then(Value::as_bool) == Some(true),
        })
    }
}

/// The crates that the root manifest lists, and what cannot be read of them.
pub fn crates(repository: &Repository) -> (Vec<Crate>, Vec<Violation>) {
    let mut crates = Vec::new();
    let mut violations = Vec::new();
    for directory in members(repository) {
        let path = format!("{directory}/Cargo.toml");
        match repository.file(&path) {
            Some(file) => match Crate::parse(&directory, &file.text) {
                Ok(found) => crates.push(found),
                Err(error) => violations.push(Violation::new(&path, 1, error)),
            },
            None => violations.push(Violation::new(
                "Cargo.toml",
                1,
                format!("member {directory} has no Cargo.toml; list directories one by one"),
            )),
        }
    }
    (crates, violations)
}

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let (crates, mut violations) = crates(repository);
    let listed = members(repository);
    for name in repository.names_in("crates") {
        let directory = format!("crates/{name}");
        if !listed.contains(&directory) {
            let message = format!("{directory} is not a member of the workspace; list it");
            violations.push(Violation::new("Cargo.toml", 1, message));
        }
    }
    violations.extend(crates.iter().flat_map(check_crate));
    violations
}

fn check_crate(found: &Crate) -> Vec<Violation> {
    let mut violations = Vec::new();
    let last = found.directory.rsplit('/').next().unwrap_or_default();
    // The program has the name of the project.
    let name = if last == "clearlane" { last.to_owned() } else { format!("clearlane-{last}") };
    if found.name != name {
        let message = format!("the crate in {last} is called {}, not {name}", found.name);
        violations.push(Violation::new(&found.manifest(), 1, message));
    }
    if !found.inherits_lints {
        let message = "the workspace's lints do not hold here; add [lints] workspace = true";
        violations.push(Violation::new(&found.manifest(), 1, message));
    }
    for dependency in found.dependencies.iter().filter(|dependency| !dependency.from_workspace) {
        let message = format!(
            "{} names its own version or path; put it into [workspace.dependencies] of the root \
             and write workspace = true here",
            dependency.name
        );
        violations.push(found.violation_at(dependency, message));
    }
    violations
}

fn members(repository: &Repository) -> Vec<String> {
    let root = repository.file("Cargo.toml").and_then(|file| file.text.parse::<Table>().ok());
    let members = root.as_ref().and_then(|root| root.get("workspace")?.get("members")?.as_array());
    let names = members.into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

fn crate_position(package: &Table) -> Option<CratePosition> {
    let metadata = package.get("metadata")?.get("clearlane")?;
    match (metadata.get("rung"), metadata.get("beside")) {
        (Some(rung), None) => Some(CratePosition::Rung(rung.as_integer()?)),
        (None, Some(reason)) if !reason.as_str()?.is_empty() => Some(CratePosition::Beside),
        _ => None,
    }
}

/// Every dependency of every table, those for one platform included.
fn dependencies(manifest: &Table, text: &str) -> Vec<Dependency> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let mut found = Vec::new();
    for tables in std::iter::once(manifest).chain(platforms) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let table = tables.get(kind).and_then(Value::as_table);
            for (key, value) in table.into_iter().flatten() {
                found.push(Dependency {
                    name: value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned(),
                    table: kind.to_owned(),
                    from_workspace: value.get("workspace").and_then(Value::as_bool) == Some(true),
                    line: line_of_key(text, kind, key),
                });
            }
        }
    }
    found
}

/// The first line that starts with the key, below the head of its table.
fn line_of_key(text: &str, table: &str, key: &str) -> usize {
    let mut lines = text.lines().zip(1..).skip_while(|(line, _)| {
        !(line.starts_with('[') && line.trim_end().ends_with(&format!("{table}]")))
    });
    let found = lines.find(|(line, _)| {
        let after = line.trim_start().strip_prefix(key);
        after.is_some_and(|after| after.starts_with([' ', '=', '.']))
    });
    found.map_or(1, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"crates/a\"]\n";
    const GOOD: &str = "[package]\nname = \"clearlane-a\"\n\n[dependencies]\n\
                        bytes = { workspace = true }\n\n[lints]\nworkspace = true\n";

    fn messages(manifest: &str) -> Vec<String> {
        let repository = Repository::of([("Cargo.toml", ROOT), ("crates/a/Cargo.toml", manifest)]);
        check(&repository).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_manifest_passes() {
        assert_eq!(messages(GOOD), [""; 0]);
    }

    #[test]
    fn an_own_version_is_told_with_its_line() {
        let told = messages(&GOOD.replace("{ workspace = true }", "\"1\""));
        assert!(told[0].starts_with("crates/a/Cargo.toml:5: bytes names its own version"));
        assert_eq!(told.len(), 1);
    }

    #[test]
    fn an_own_version_in_a_platform_table_is_told() {
        let own = "[target.'cfg(unix)'.dev-dependencies]\nlibc = { version = \"1\" }\n";
        let told = messages(&format!("{GOOD}{own}"));
        assert!(told[0].starts_with("crates/a/Cargo.toml:10: libc names its own version"));
    }

    #[test]
    fn missing_lints_are_told() {
        assert!(messages(&GOOD.replace("[lints]\nworkspace = true\n", ""))[0].contains("lints"));
    }

    #[test]
    fn another_name_is_told() {
        assert!(messages(&GOOD.replace("clearlane-a", "clearlane-b"))[0].contains("clearlane-b"));
    }

    #[test]
    fn broken_manifests_are_told() {
        assert_eq!(messages("[package]\n"), ["crates/a/Cargo.toml:1: the package has no name"]);
        assert!(messages("[package\n")[0].starts_with("crates/a/Cargo.toml:1: "));
    }

    #[test]
    fn crates_outside_of_the_workspace_are_told() {
        let repository = Repository::of([
            ("Cargo.toml", ROOT),
            ("crates/a/Cargo.toml", GOOD),
            ("crates/b/Cargo.toml", GOOD),
        ]);
        let told = check(&repository);
        assert!(told[0].message.contains("crates/b is not a member"));
    }
}
