//! The config file: YAML, and so JSON too.
//!
//! ```text
//!   name: one
//!   listen-client-urls: http://127.0.0.1:2379        a list is text with commas
//!   grpc-keepalive-timeout: 20000000000              durations are nanoseconds, or 20s
//!   log-outputs: [stderr, clearlane.log]             but these are lists
//!   peer-transport-security: {cert-file: peer.crt}   and these stand for flags
//! ```
//!
//! With a file nothing else counts, neither flags nor variables. An unknown key is reported.

use saphyr::{LoadableYamlNode, Mapping, Scalar, Yaml};

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::table::{self, Flag};
use super::value::ValueKind;

/// Keys that hold keys, and the flags that these stand for.
const NESTED: [(&str, &[(&str, &str)]); 4] = [
    (
        "client-transport-security",
        &[
            ("cert-file", "cert-file"),
            ("key-file", "key-file"),
            ("client-cert-file", "client-cert-file"),
            ("client-key-file", "client-key-file"),
            ("client-cert-auth", "client-cert-auth"),
            ("trusted-ca-file", "trusted-ca-file"),
            ("auto-tls", "auto-tls"),
            ("allowed-cn", "client-cert-allowed-cn"),
            ("allowed-hostname", "client-cert-allowed-hostname"),
        ],
    ),
    (
        "peer-transport-security",
        &[
            ("cert-file", "peer-cert-file"),
            ("key-file", "peer-key-file"),
            ("client-cert-file", "peer-client-cert-file"),
            ("client-key-file", "peer-client-key-file"),
            ("client-cert-auth", "peer-client-cert-auth"),
            ("trusted-ca-file", "peer-trusted-ca-file"),
            ("auto-tls", "peer-auto-tls"),
            ("allowed-cn", "peer-cert-allowed-cn"),
            ("allowed-hostname", "peer-cert-allowed-hostname"),
            ("skip-client-san-verification", "peer-skip-client-san-verification"),
        ],
    ),
    ("discovery-config", &[("token", "discovery-token"), ("endpoints", "discovery-endpoints")]),
    (
        "socket-options",
        &[("reuse-port", "socket-reuse-port"), ("reuse-address", "socket-reuse-address")],
    ),
];

pub(super) fn read(text: &str, warnings: &mut Vec<String>) -> Result<FlagValues, ConfigError> {
    let mut values = FlagValues::new();
    let documents = Yaml::load_from_str(text);
    let documents =
        documents.map_err(|error| ConfigError::fatal(format!("config file: {error}")))?;
    let document = match documents.first() {
        None => return Ok(values),
        Some(document) if document.is_null() => return Ok(values),
        Some(document) => document.as_mapping(),
    };
    let not_keys = || ConfigError::fatal("config file: it must be a list of keys and values");
    for (key, value) in document.ok_or_else(not_keys)? {
        let key = key.as_str().ok_or_else(not_keys)?;
        let nested = NESTED.iter().find(|(name, _)| *name == key);
        match (nested, value.as_mapping()) {
            (Some((_, names)), Some(inner)) => {
                read_nested(key, names, inner, &mut values, warnings)?;
            }
            (Some(_), None) if value.is_null() => {}
            (Some(_), None) => {
                return Err(ConfigError::fatal(format!("config file: {key} must hold keys")));
            }
            (None, _) => match table::find(key) {
                Some(flag) => put(&mut values, flag, key, value)?,
                None => warnings.push(format!("config file: unknown key {key}")),
            },
        }
    }
    Ok(values)
}

fn read_nested(
    outer: &str,
    names: &[(&str, &str)],
    inner: &Mapping<'_>,
    values: &mut FlagValues,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    for (key, value) in inner {
        let key = key.as_str().unwrap_or_default();
        let flag = names.iter().find(|(name, _)| *name == key);
        match flag.and_then(|(_, flag)| table::find(flag)) {
            Some(flag) => put(values, flag, &format!("{outer}.{key}"), value)?,
            None => warnings.push(format!("config file: unknown key {outer}.{key}")),
        }
    }
    Ok(())
}

fn put(
    values: &mut FlagValues,
    flag: &'static Flag,
    key: &str,
    value: &Yaml<'_>,
) -> Result<(), ConfigError> {
    if value.is_null() {
        return Ok(());
    }
    let text = match value.as_sequence() {
        Some(list) => {
            list.iter().map(scalar).collect::<Option<Vec<_>>>().map(|list| list.join(","))
        }
        None => scalar(value),
    };
    let many = || ConfigError::fatal(format!("config file: {key} must be one value, or a list"));
    let mut text = text.ok_or_else(many)?;
    if flag.kind == ValueKind::Duration && text.parse::<i64>().is_ok() {
        text += "ns";
    }
    check_value(flag, &text, &format!("key {key} of the config file"))?;
    values.insert(flag.name, text);
    Ok(())
}

fn scalar(value: &Yaml<'_>) -> Option<String> {
    match value {
        Yaml::Value(Scalar::Boolean(value)) => Some(value.to_string()),
        Yaml::Value(Scalar::Integer(value)) => Some(value.to_string()),
        // `era: 3.0` keeps its zero.
        Yaml::Value(Scalar::FloatingPoint(value)) => Some(format!("{:?}", value.into_inner())),
        Yaml::Value(Scalar::String(value)) => Some(value.to_string()),
        _ => None,
    }
}
