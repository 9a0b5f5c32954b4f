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
//! So each crate can be read with those below it alone.

use crate::manifests::{self, Crate, CratePosition, Dependency};
use crate::{Repository, Violation};

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let (crates, mut violations) = manifests::crates(repository);
    for found in &crates {
        if found.position.is_none() {
            let message = "says nowhere where it stands; [package.metadata.clearlane] must hold \
                           either rung = N or beside = \"why\"";
            violations.push(Violation::new(&found.manifest(), 1, message));
        }
        violations.extend(edges(found, &crates).filter_map(|edge| edge.violation()));
    }
    violations
}

/// One crate uses another.
struct Edge<'a> {
    from: &'a Crate,
    to: &'a Crate,
    by: &'a Dependency,
}

fn edges<'a>(from: &'a Crate, crates: &'a [Crate]) -> impl Iterator<Item = Edge<'a>> {
    from.dependencies.iter().filter_map(move |by| {
        let to = crates.iter().find(|to| to.name == by.name)?;
        Some(Edge { from, to, by })
    })
}

impl Edge<'_> {
    fn violation(&self) -> Option<Violation> {
        let (from, to) = (self.from.position?, self.to.position?);
        let where_it_leads = match (from, to) {
            (CratePosition::Beside, _) => return None,
            (CratePosition::Rung(from), CratePosition::Rung(to)) if to < from => return None,
            (CratePosition::Rung(_), CratePosition::Rung(to)) => format!("on rung {to}"),
            (CratePosition::Rung(_), CratePosition::Beside) => "beside the ladder".to_owned(),
        };
        let CratePosition::Rung(rung) = from else { return None };
        let message = format!(
            "{} on rung {rung} lists {} {where_it_leads} in [{}]; {}",
            self.from.name,
            self.to.name,
            self.by.table,
            allowed_edges(rung)
        );
        Some(self.from.violation_at(self.by, message))
    }
}

fn allowed_edges(rung: i64) -> String {
    match rung {
        0 => "rung 0 uses no crate of ours".to_owned(),
        _ => format!("from there only rungs below {rung} may be used"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"crates/low\", \"crates/high\", \"benches\"]\n";

    /// A manifest with this metadata and these dependency tables.
    fn manifest(name: &str, place: &str, tables: &str) -> String {
        format!(
            "[package]\nname = \"clearlane-{name}\"\n[package.metadata.clearlane]\n{place}\n{tables}"
        )
    }

    fn messages(low: &str, high: &str, benches: &str) -> Vec<String> {
        let repository = Repository::of([
            ("Cargo.toml", ROOT),
            ("crates/low/Cargo.toml", low),
            ("crates/high/Cargo.toml", high),
            ("benches/Cargo.toml", benches),
        ]);
        check(&repository).iter().map(ToString::to_string).collect()
    }

    fn uses(table: &str, name: &str) -> String {
        format!("[{table}]\nclearlane-{name} = {{ workspace = true }}\n")
    }

    #[test]
    fn down_is_allowed_and_beside_may_use_all() {
        let low = manifest("low", "rung = 0", "");
        let high = manifest("high", "rung = 1", &uses("dependencies", "low"));
        let benches = manifest("benches", "beside = \"x\"", &uses("dependencies", "high"));
        assert_eq!(messages(&low, &high, &benches), [""; 0]);
    }

    #[test]
    fn up_level_and_beside_are_told_in_every_table() {
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let low = manifest("low", "rung = 1", &uses(table, "high"));
            let high = manifest("high", "rung = 1", &uses(table, "benches"));
            let benches = manifest("benches", "beside = \"x\"", "");
            assert_eq!(
                messages(&low, &high, &benches),
                [
                    format!(
                        "crates/low/Cargo.toml:6: clearlane-low on rung 1 lists clearlane-high on \
                         rung 1 in [{table}]; from there only rungs below 1 may be used"
                    ),
                    format!(
                        "crates/high/Cargo.toml:6: clearlane-high on rung 1 lists \
                         clearlane-benches beside the ladder in [{table}]; from there only rungs \
                         below 1 may be used"
                    ),
                ]
            );
        }
    }

    #[test]
    fn a_renamed_dependency_is_found() {
        let low = manifest(
            "low",
            "rung = 1",
            "[dependencies]\nx = { package = \"clearlane-high\", workspace = true }\n",
        );
        let high = manifest("high", "rung = 2", "");
        let benches = manifest("benches", "beside = \"x\"", "");
        assert!(messages(&low, &high, &benches)[0].starts_with("crates/low/Cargo.toml:6: "));
    }

    #[test]
    fn no_place_and_two_places_are_told() {
        let low = "[package]\nname = \"clearlane-low\"\n";
        let high = manifest("high", "rung = 1\nbeside = \"x\"", "");
        let benches = manifest("benches", "beside = \"\"", "");
        assert_eq!(messages(low, &high, &benches).len(), 3);
    }
}
