//! Feature gates, which switch features on or off: `--feature-gates=A=true,B=false`.
//!
//! In etcd each new feature has a gate until it is stable. An alpha feature is off by default, and
//! a beta feature is on. `AllAlpha` and `AllBeta` set all gates of their stage, except gates that
//! the list also names:
//!
//! ```text
//!   AllAlpha=true,InitialCorruptCheck=false     all alpha features except one
//! ```
//!
//! Every gate of etcd is known. Some gates have no effect, because Clearlane's behaviour is fixed.
//! If the list names such a gate with the opposite value, a warning is logged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::suggestion::did_you_mean;
use super::value;

struct FeatureGate {
    name: &'static str,
    /// If true, the gate is beta and on by default. Otherwise it is alpha and off by default.
    is_beta: bool,
    /// The value that matches Clearlane's fixed behaviour. `None` if the gate can be switched.
    fixed: Option<bool>,
    /// The effect of the gate, or the reason why it is fixed.
    says: &'static str,
}

/// All gates except `AllAlpha` and `AllBeta`.
const FEATURE_GATES: [FeatureGate; 9] = [
    gate("CompactHashCheck", false, None, "members compare hashes after compactions"),
    gate(
        "FastLeaseKeepAlive",
        true,
        None,
        "the leader renews a lease that it has without waiting for its applied index; no effect \
         with `LeaseCheckpoint`",
    ),
    gate("InitialCorruptCheck", false, None, "a member compares hashes before it serves"),
    gate("LeaseCheckpoint", false, None, "members share the remaining time of leases"),
    gate("LeaseCheckpointPersist", false, Some(true), "a checkpoint is written to disk"),
    gate(
        "PriorityRequest",
        false,
        None,
        "a lease revocation is rejected later than other writes while the store is behind the log",
    ),
    gate(
        "SetMemberLocalAddr",
        false,
        None,
        "connections to members start from --initial-advertise-peer-urls",
    ),
    gate(
        "StopGRPCServiceOnDefrag",
        false,
        None,
        "gRPC is reported as not serving during a defragmentation",
    ),
    gate("TxnModeWriteWithSharedBuffer", true, Some(true), "the era decides, see --era"),
];

type Str = &'static str;

const fn gate(name: Str, is_beta: bool, fixed: Option<bool>, says: Str) -> FeatureGate {
    FeatureGate { name, is_beta, fixed, says }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    values: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Parses the value of the flag. Errors have etcd's text.
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
            let names = FEATURE_GATES.iter().map(|gate| gate.name).chain(["AllAlpha", "AllBeta"]);
            let known = names.clone().find(|known| *known == name).ok_or_else(|| {
                let tip = did_you_mean(name, names, str::to_owned);
                format!("unrecognized feature gate: {name}{tip}")
            })?;
            said.insert(known, is_on);
        }
        Ok(FeatureGates { values: said })
    }

    /// Fails if `LeaseCheckpointPersist` is on although `LeaseCheckpoint` is off, because the
    /// former needs the latter.
    pub fn check_dependencies(&self) -> Result<(), String> {
        let (persist, checkpoint) = ("LeaseCheckpointPersist", "LeaseCheckpoint");
        if self.is_on(persist) && !self.is_on(checkpoint) {
            return Err(format!(
                "enabling feature gate {persist} requires enabling feature gate {checkpoint}"
            ));
        }
        Ok(())
    }

    /// Returns whether a gate is on. The gate's own setting takes precedence over the setting of
    /// its stage, and the stage's setting over the default.
    pub fn is_on(&self, name: &str) -> bool {
        let is_beta = FEATURE_GATES.iter().any(|gate| gate.name == name && gate.is_beta);
        let kind = if is_beta { "AllBeta" } else { "AllAlpha" };
        let said = self.values.get(name).or_else(|| self.values.get(kind));
        said.copied().unwrap_or(is_beta)
    }

    /// Returns a warning for each gate that was set by name to a value that Clearlane does not
    /// honour.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        FEATURE_GATES.iter().filter_map(|FeatureGate { name, fixed, says, .. }| {
            let said = *self.values.get(name)?;
            let is_ignored = fixed.is_some_and(|fixed| fixed != said);
            is_ignored.then(|| format!("--feature-gates: {name}={said} is not honoured: {says}"))
        })
    }
}

/// Returns the section about feature gates for `docs/flags.md`.
pub(super) fn table() -> String {
    let mut out = String::from("\n## Feature gates\n\n| gate | default | |\n|---|---|---|\n");
    for FeatureGate { name, is_beta, fixed, says } in FEATURE_GATES {
        let kind = if is_beta { "on, beta" } else { "off, alpha" };
        let state = match fixed {
            None => "On",
            Some(true) => "As if always on",
            Some(false) => "As if always off",
        };
        let _ = writeln!(out, "| `{name}` | {kind} | {state}: {says}. |");
    }
    out + "\n`AllAlpha` and `AllBeta` set all gates of their stage, except gates that the flag also names.\n"
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
}
