//! Which features are on? `--feature-gates=A=true,B=false`.
//!
//! etcd gives what is new a gate of its own, until it is trusted: alpha is off by default, beta is
//! on. `AllAlpha` and `AllBeta` are all gates of that kind, but for those that are named
//! themselves, wherever they stand in the list:
//!
//! ```text
//!   AllAlpha=true,LeaseCheckpoint=false     all of alpha but one
//! ```
//!
//! Here each of etcd's gates is known, and another name is refused in etcd's words. Some switch
//! nothing, because what they stand for is always so here, or has no counterpart. Setting such a
//! gate to something that is not so logs a warning.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::value;

/// A gate of etcd.
#[derive(Clone, Copy, Debug)]
pub struct FeatureGate {
    /// Its name.
    pub name: &'static str,
    /// Beta is on by default.
    pub is_beta: bool,
    /// What it does here.
    pub effect: GateEffect,
}

/// What a gate does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateEffect {
    /// Its effect, as a sentence.
    Switchable(&'static str),
    /// Nothing: it is as if it were always on, or off. Why.
    Fixed(bool, &'static str),
}

use GateEffect::{Fixed, Switchable};

/// All of them, but for `AllAlpha` and `AllBeta`.
pub const FEATURE_GATES: [FeatureGate; 9] = [
    gate("CompactHashCheck", false, Switchable("members are compared behind compactions")),
    gate("FastLeaseKeepAlive", true, Fixed(true, "a leader renews a lease without waiting")),
    gate("InitialCorruptCheck", false, Switchable("a member compares itself before it serves")),
    gate("LeaseCheckpoint", false, Switchable("members know what is left of long leases")),
    gate("LeaseCheckpointPersist", false, Fixed(true, "a checkpoint is always on disk, too")),
    gate("PriorityRequest", false, Fixed(false, "requests come in turn")),
    gate("SetMemberLocalAddr", false, Fixed(false, "the system chooses the address")),
    gate("StopGRPCServiceOnDefrag", false, Fixed(false, "a defragmentation stops no service")),
    gate("TxnModeWriteWithSharedBuffer", true, Fixed(true, "it is the era's to say: see --era")),
];

const fn gate(name: &'static str, is_beta: bool, effect: GateEffect) -> FeatureGate {
    FeatureGate { name, is_beta, effect }
}

/// The gates that were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    values: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Reads the value of the flag. Errors have etcd's text.
    pub fn parse(text: &str) -> Result<FeatureGates, String> {
        let mut said = BTreeMap::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, on) =
                word.split_once('=').ok_or_else(|| format!("missing bool value for {word}"))?;
            let (name, on) = (name.trim(), on.trim());
            let is_on = value::switch(on).ok_or_else(|| {
                let why = format!("strconv.ParseBool: parsing \"{on}\": invalid syntax");
                format!("invalid value of {name}={on}, err: {why}")
            })?;
            let mut names =
                FEATURE_GATES.iter().map(|gate| gate.name).chain(["AllAlpha", "AllBeta"]);
            let known = names.find(|known| *known == name);
            said.insert(known.ok_or_else(|| format!("unrecognized feature gate: {name}"))?, is_on);
        }
        Ok(FeatureGates { values: said })
    }

    /// What some gates need of others.
    pub fn check_dependencies(&self) -> Result<(), String> {
        if self.is_on("LeaseCheckpointPersist") && !self.is_on("LeaseCheckpoint") {
            Err("enabling feature gate LeaseCheckpointPersist requires enabling feature \
                         gate LeaseCheckpoint"
                .to_owned())
        } else {
            Ok(())
        }
    }

    /// Whether a feature is on: as it was set, or all of its kind were, or as it is by default.
    pub fn is_on(&self, name: &str) -> bool {
        let is_beta = FEATURE_GATES.iter().any(|gate| gate.name == name && gate.is_beta);
        let kind = if is_beta { "AllBeta" } else { "AllAlpha" };
        let said = self.values.get(name).or_else(|| self.values.get(kind));
        said.copied().unwrap_or(is_beta)
    }

    /// A warning for each gate that was set by name and has another state here.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        FEATURE_GATES.iter().filter_map(|gate| {
            let said = *self.values.get(gate.name)?;
            match gate.effect {
                Fixed(is, why) if is != said => {
                    let name = gate.name;
                    Some(format!("--feature-gates: {name}={said} is not honoured: {why}"))
                }
                _ => None,
            }
        })
    }
}

/// The part of the page of flags that lists them.
pub(super) fn table() -> String {
    let mut out = String::from("\n## Feature gates\n\n| gate | default | |\n|---|---|---|\n");
    for FeatureGate { name, is_beta, effect } in FEATURE_GATES {
        let says = match effect {
            Switchable(what) => format!("On: {what}."),
            Fixed(true, why) => format!("As if always on: {why}."),
            Fixed(false, why) => format!("As if always off: {why}."),
        };
        let kind = if is_beta { "on, beta" } else { "off, alpha" };
        let _ = writeln!(out, "| `{name}` | {kind} | {says} |");
    }
    out + "\n`AllAlpha` and `AllBeta` are all of their kind that are not named themselves.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_goes_before_its_kind() {
        let gates =
            FeatureGates::parse("LeaseCheckpoint=false,AllAlpha=true, AllBeta = F,").unwrap();
        assert!(gates.is_on("InitialCorruptCheck") && !gates.is_on("LeaseCheckpoint"));
        assert!(!gates.is_on("FastLeaseKeepAlive"));
        let gates = FeatureGates::parse("").unwrap();
        assert!(!gates.is_on("InitialCorruptCheck") && gates.is_on("FastLeaseKeepAlive"));
        let gates = FeatureGates::parse("InitialCorruptCheck=1,InitialCorruptCheck=0").unwrap();
        assert!(!gates.is_on("InitialCorruptCheck"), "the last one counts");
    }

    #[test]
    fn what_is_not_so_is_told() {
        let said = FeatureGates::parse("PriorityRequest=true,CompactHashCheck=true").unwrap();
        let warnings: Vec<String> = said.warnings().collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("PriorityRequest=true is not honoured"), "{warnings:?}");
        assert_eq!(FeatureGates::parse("PriorityRequest=false").unwrap().warnings().count(), 0);
    }
}
