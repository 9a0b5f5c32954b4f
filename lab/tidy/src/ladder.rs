//! Dependencies between our crates only go down.
//!
//! Each crate's manifest has an entry in `[package.metadata.clearlane]`. It is either the crate's
//! rung on the ladder (`rung = 3`), or the reason why the crate is not on the ladder (`beside =
//! "..."`).
//!
//! * A crate on a rung uses only crates on strictly lower rungs, and none beside the ladder. This
//!   also holds for its tests and its build script: a test that needs a higher crate belongs to the
//!   higher crate.
//! * A crate beside the ladder may use every crate.
//! * All crates of the ladder are in `crates/`, and no other crate is.
//!
//! So a reader of a crate needs only the crates below it.
//!
//! A manifest without `[lints] workspace = true` would silently switch off the workspace's lints. A
//! crate without `publish = false` is [published](PackageRule), so cargo must find all its
//! dependencies.

use toml::{Table, Value};

use crate::{Repository, violation};

#[derive(Debug)]
pub struct Crate {
    /// The path of the crate's directory, without a slash at the end.
    pub directory: String,
    pub position: CratePosition,
    name: String,
    inherits_lints: bool,
    /// If true, the manifest has no `publish = false`.
    is_published: bool,
    /// The names of the fields of `[package]`.
    fields: Vec<String>,
    /// The names of the used crates, each with the name of the table that lists it.
    dependencies: Vec<(String, &'static str)>,
}

impl Crate {
    /// Returns whether the crate itself depends on `name`, not only its tests or its build script.
    pub fn uses(&self, name: &str) -> bool {
        self.dependencies.iter().any(|(used, table)| used == name && *table == "dependencies")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CratePosition {
    /// The manifest has `rung = N`.
    Rung(i64),
    /// The manifest has `beside = "why"`.
    Beside,
    /// The metadata is missing or wrong.
    Unknown,
}

pub fn check(repository: &Repository) -> Vec<String> {
    let crates = crates(repository);
    let rule = PackageRule { root: manifest(repository, ".").unwrap_or_default() };
    let check = |found| {
        let mut messages = check_crate(found, &crates);
        messages.extend(rule.check(found, &crates));
        let manifest = format!("{}/Cargo.toml", found.directory);
        messages.into_iter().map(move |message| violation(&manifest, 1, message))
    };
    crates.iter().flat_map(check).collect()
}

/// Reads a manifest. Returns `None` if it is missing or broken, because cargo reports such a
/// manifest.
fn manifest(repository: &Repository, directory: &str) -> Option<Table> {
    let path = format!("{directory}/Cargo.toml");
    repository.file(path.trim_start_matches("./"))?.text.parse().ok()
}

/// Returns the crates that the root manifest lists.
pub fn crates(repository: &Repository) -> Vec<Crate> {
    let root = manifest(repository, ".").unwrap_or_default();
    let members = root.get("workspace").and_then(|table| table.get("members")?.as_array());
    let directories = members.into_iter().flatten().filter_map(Value::as_str);
    directories
        .filter_map(|directory| {
            let manifest = manifest(repository, directory)?;
            let package = manifest.get("package")?;
            let lints = manifest.get("lints").and_then(|lints| lints.get("workspace")?.as_bool());
            Some(Crate {
                directory: directory.to_owned(),
                position: position(package).unwrap_or(CratePosition::Unknown),
                name: package.get("name")?.as_str()?.to_owned(),
                inherits_lints: lints == Some(true),
                is_published: package.get("publish").and_then(Value::as_bool) != Some(false),
                fields: package.as_table()?.keys().cloned().collect(),
                dependencies: dependencies(&manifest),
            })
        })
        .collect()
}

fn position(package: &Value) -> Option<CratePosition> {
    let metadata = package.get("metadata")?.get("clearlane")?;
    match (metadata.get("rung"), metadata.get("beside")) {
        (Some(rung), None) => Some(CratePosition::Rung(rung.as_integer()?)),
        (None, Some(reason)) if !reason.as_str()?.is_empty() => Some(CratePosition::Beside),
        _ => None,
    }
}

/// Returns the dependencies of all tables, including the tables for one platform.
fn dependencies(manifest: &Table) -> Vec<(String, &'static str)> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let mut found = Vec::new();
    for tables in std::iter::once(manifest).chain(platforms) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (key, value) in tables.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let name = value.get("package").and_then(Value::as_str).unwrap_or(key);
                found.push((name.to_owned(), kind));
            }
        }
    }
    found
}

fn check_crate(from: &Crate, crates: &[Crate]) -> Vec<String> {
    let mut messages = Vec::new();
    if !from.inherits_lints {
        messages.push("the workspace's lints do not hold; add [lints] workspace = true".to_owned());
    }
    if from.position == CratePosition::Unknown {
        let message = "says nowhere where it stands; [package.metadata.clearlane] must hold \
                       either rung = N or beside = \"why\"";
        messages.push(message.to_owned());
    }
    let is_in_crates = from.directory.starts_with("crates/");
    let is_misplaced = match from.position {
        CratePosition::Rung(_) => !is_in_crates,
        CratePosition::Beside => is_in_crates,
        CratePosition::Unknown => false,
    };
    if is_misplaced {
        messages.push("crates/ must have the crates of the ladder, and no others".to_owned());
    }
    for (name, table) in &from.dependencies {
        let Some(to) = crates.iter().find(|to| to.name == *name) else { continue };
        let place = match (from.position, to.position) {
            (CratePosition::Rung(from), CratePosition::Rung(to)) if to >= from => {
                format!("on rung {to}")
            }
            (CratePosition::Rung(_), CratePosition::Beside) => "beside the ladder".to_owned(),
            _ => continue,
        };
        messages.push(format!("[{table}] lists {name} {place}; only lower rungs may be used"));
    }
    messages
}

/// The rule for published crates.
///
/// * A published crate has a description, a readme, the address of its docs, and a list of its
///   files.
/// * It needs no unpublished crate, except for its tests.
/// * Its line in `[workspace.dependencies]` requires exactly the workspace's version. Our crates
///   are published together, and the API between them may change at any time.
///
/// The line of an unpublished crate has no version.
#[derive(Debug)]
struct PackageRule {
    /// The manifest of the workspace.
    root: Table,
}

impl PackageRule {
    fn check(&self, found: &Crate, crates: &[Crate]) -> Vec<String> {
        let mut messages = Vec::new();
        let demanded = self.workspace_value(&["dependencies", &found.name, "version"]);
        if !found.is_published {
            let message = "is not published, but its line in the workspace has a version";
            return demanded.map(|_| message.to_owned()).into_iter().collect();
        }
        for field in ["description", "documentation", "include", "readme"] {
            if !found.fields.iter().any(|name| name == field) {
                messages.push(format!("is published and has no {field}; or add publish = false"));
            }
        }
        let version = self.workspace_value(&["package", "version"]).unwrap_or_default();
        if demanded != Some(format!("={version}").as_str()) {
            messages.push(format!("its line in the workspace must have version = \"={version}\""));
        }
        for (name, table) in &found.dependencies {
            let is_missing = |to: &Crate| to.name == *name && !to.is_published;
            if *table != "dev-dependencies" && crates.iter().any(is_missing) {
                messages.push(format!("[{table}] lists {name}, which is not published"));
            }
        }
        messages
    }

    fn workspace_value(&self, path: &[&str]) -> Option<&str> {
        let table = self.root.get("workspace")?;
        path.iter().try_fold(table, |value, key| value.get(key))?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = r#"
        workspace.members = ["crates/low", "crates/high", "benches"]
        workspace.package.version = "0.2.0"
        workspace.dependencies.low = { path = "crates/low", version = "=0.2.0" }
        workspace.dependencies.high = { path = "crates/high" }
    "#;

    fn manifest(name: &str, place: &str, tables: &str) -> String {
        let package = format!("[package]\nname = \"{name}\"\npublish = false\n");
        let lints = "[lints]\nworkspace = true\n";
        format!("{package}[package.metadata.clearlane]\n{place}\n{lints}{tables}")
    }

    fn messages(low: &str, high: &str, benches: &str) -> Vec<String> {
        // The tests that call this function are not about published packages, so the lines of the
        // workspace's manifest have no versions.
        let root = ROOT.replace(", version = \"=0.2.0\"", "");
        messages_under(&root, low, high, benches)
    }

    fn messages_under(root: &str, low: &str, high: &str, benches: &str) -> Vec<String> {
        let repository = Repository::of([
            ("Cargo.toml", root),
            ("crates/low/Cargo.toml", low),
            ("crates/high/Cargo.toml", high),
            ("benches/Cargo.toml", benches),
        ]);
        check(&repository)
    }

    #[test]
    fn down_is_allowed_and_beside_may_use_all() {
        let low = manifest("low", "rung = 0", "");
        let high = manifest("high", "rung = 1", "[dependencies]\nlow.workspace = true\n");
        let benches = manifest("benches", "beside = \"x\"", "[dependencies]\nhigh = \"1\"\n");
        assert_eq!(messages(&low, &high, &benches), [""; 0]);
    }

    #[test]
    fn crates_has_the_ladder_and_nothing_else() {
        let (rung, beside) = ("rung = 0", "beside = \"x\"");
        let [low, high] =
            [("low", beside), ("high", rung)].map(|(name, at)| manifest(name, at, ""));
        let told = messages(&low, &high, &manifest("benches", rung, ""));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("crates/low/Cargo.toml:1: crates/ must"), "{told:?}");
        assert!(told[1].starts_with("benches/Cargo.toml:1: crates/ must"), "{told:?}");
    }

    #[test]
    fn up_level_and_beside_are_told_in_every_table() {
        let benches = manifest("benches", "beside = \"x\"", "");
        for table in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.build-dependencies"] {
            let renamed = format!("[{table}]\nx = {{ package = \"high\", workspace = true }}\n");
            let low = manifest("low", "rung = 1", &renamed);
            let high = manifest("high", "rung = 1", &format!("[{table}]\nbenches = \"1\"\n"));
            let told = messages(&low, &high, &benches);
            assert!(told[0].starts_with("crates/low/Cargo.toml:1: ["), "{told:?}");
            assert!(told[0].contains("lists high on rung 1"), "{told:?}");
            assert!(told[1].contains("lists benches beside the ladder"), "{told:?}");
        }
    }

    #[test]
    fn missing_lints_and_no_or_two_places_are_told() {
        let low = "[package]\nname = \"low\"\npublish = false\n[lints]\nworkspace = true\n";
        let high = manifest("high", "rung = 1\nbeside = \"x\"", "");
        let benches = manifest("benches", "beside = \"\"", "").replace("[lints]", "[lint]");
        let told = messages(low, &high, &benches);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[2].contains("lints"), "{told:?}");
    }

    #[test]
    fn a_published_crate_has_all_that_cargo_needs() {
        let benches = manifest("benches", "beside = \"x\"", "");
        let high = manifest("high", "rung = 1", "");
        let fields = "documentation = \"d\"\ndescription = \"d\"\ninclude = []\nreadme = \"r\"";
        let published = manifest("low", "rung = 2", "").replace("publish = false", fields);
        assert_eq!(messages_under(ROOT, &published, &high, &benches), [""; 0]);

        let tables = "[dev-dependencies]\nhigh = \"1\"\n[dependencies]\nhigh.workspace = true\n";
        let wrong = published.replace("readme", "read") + tables;
        let told = messages_under(&ROOT.replace("=0.2", "0.2"), &wrong, &high, &benches);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("no readme"), "{told:?}");
        assert!(told[1].contains("version = \"=0.2.0\""), "{told:?}");
        assert!(told[2].contains("[dependencies] lists high, which"), "{told:?}");

        let unpublished = manifest("low", "rung = 0", "");
        let told = messages_under(ROOT, &unpublished, &high, &benches);
        assert!(told[0].contains("is not published, but"), "{told:?}");
    }
}
