//! Dependencies between our crates only go down.
//!
//! Each crate says in `[package.metadata.clearlane]` on which rung of the ladder it is (`rung =
//! 3`), or that it is beside the ladder and why (`beside = "..."`).
//!
//! * A crate on a rung uses crates of strictly lower rungs, and nothing beside the ladder. That
//!   holds for its tests and its build script, too: a test that needs a higher crate is a test of
//!   the higher crate.
//! * A crate beside the ladder may use every crate.
//!
//! So each crate can be read with those below it alone. And the workspace's lints hold for all: a
//! manifest without `[lints] workspace = true` would switch them off in silence.

use toml::{Table, Value};

use crate::{Repository, violation};

#[derive(Debug)]
pub struct Crate {
    /// Without a slash at the end.
    pub directory: String,
    pub position: CratePosition,
    name: String,
    inherits_lints: bool,
    /// Each with the name of its table.
    dependencies: Vec<(String, &'static str)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CratePosition {
    /// `rung = N`.
    Rung(i64),
    /// `beside = "why"`.
    Beside,
    /// The metadata is missing or wrong.
    Unknown,
}

pub fn check(repository: &Repository) -> Vec<String> {
    let crates = crates(repository);
    crates.iter().flat_map(|found| check_crate(found, &crates)).collect()
}

/// The crates that the root manifest lists. A broken manifest is skipped here: cargo reports it.
pub fn crates(repository: &Repository) -> Vec<Crate> {
    let manifest = |path: &str| repository.file(path)?.text.parse::<Table>().ok();
    let root = manifest("Cargo.toml").unwrap_or_default();
    let members = root.get("workspace").and_then(|table| table.get("members")?.as_array());
    let directories = members.into_iter().flatten().filter_map(Value::as_str);
    directories
        .filter_map(|directory| {
            let manifest = manifest(&format!("{directory}/Cargo.toml"))?;
            let package = manifest.get("package")?;
            let lints = manifest.get("lints").and_then(|lints| lints.get("workspace")?.as_bool());
            Some(Crate {
                directory: directory.to_owned(),
                position: position(package).unwrap_or(CratePosition::Unknown),
                name: package.get("name")?.as_str()?.to_owned(),
                inherits_lints: lints == Some(true),
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

/// Of all tables, those for one platform included.
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
    let manifest = format!("{}/Cargo.toml", from.directory);
    messages.into_iter().map(|message| violation(&manifest, 1, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"crates/low\", \"crates/high\", \"benches\"]\n";

    fn manifest(name: &str, place: &str, tables: &str) -> String {
        let lints = "[lints]\nworkspace = true\n";
        format!(
            "[package]\nname = \"{name}\"\n[package.metadata.clearlane]\n{place}\n{lints}{tables}"
        )
    }

    fn messages(low: &str, high: &str, benches: &str) -> Vec<String> {
        let repository = Repository::of([
            ("Cargo.toml", ROOT),
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
        let low = "[package]\nname = \"low\"\n[lints]\nworkspace = true\n";
        let high = manifest("high", "rung = 1\nbeside = \"x\"", "");
        let benches = manifest("benches", "beside = \"\"", "").replace("[lints]", "[lint]");
        let told = messages(low, &high, &benches);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[2].contains("lints"), "{told:?}");
    }
}
