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

use saphyr::{LoadableYamlNode, Scalar, Yaml};

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::table;
use super::value::ValueKind;

/// Keys in keys, and the flags that they stand for.
const NESTED: [(&str, &str); 23] = [
    ("client-transport-security.cert-file", "cert-file"),
    ("client-transport-security.key-file", "key-file"),
    ("client-transport-security.client-cert-file", "client-cert-file"),
    ("client-transport-security.client-key-file", "client-key-file"),
    ("client-transport-security.client-cert-auth", "client-cert-auth"),
    ("client-transport-security.trusted-ca-file", "trusted-ca-file"),
    ("client-transport-security.auto-tls", "auto-tls"),
    ("client-transport-security.allowed-cn", "client-cert-allowed-cn"),
    ("client-transport-security.allowed-hostname", "client-cert-allowed-hostname"),
    ("peer-transport-security.cert-file", "peer-cert-file"),
    ("peer-transport-security.key-file", "peer-key-file"),
    ("peer-transport-security.client-cert-file", "peer-client-cert-file"),
    ("peer-transport-security.client-key-file", "peer-client-key-file"),
    ("peer-transport-security.client-cert-auth", "peer-client-cert-auth"),
    ("peer-transport-security.trusted-ca-file", "peer-trusted-ca-file"),
    ("peer-transport-security.auto-tls", "peer-auto-tls"),
    ("peer-transport-security.allowed-cn", "peer-cert-allowed-cn"),
    ("peer-transport-security.allowed-hostname", "peer-cert-allowed-hostname"),
    ("peer-transport-security.skip-client-san-verification", "peer-skip-client-san-verification"),
    ("discovery-config.token", "discovery-token"),
    ("discovery-config.endpoints", "discovery-endpoints"),
    ("socket-options.reuse-port", "socket-reuse-port"),
    ("socket-options.reuse-address", "socket-reuse-address"),
];

fn fatal(what: String) -> ConfigError {
    ConfigError::fatal(format!("config file: {what}"))
}

pub(super) fn read(text: &str, warnings: &mut Vec<String>) -> Result<FlagValues, ConfigError> {
    let mut values = FlagValues::new();
    let documents = Yaml::load_from_str(text).map_err(|error| fatal(error.to_string()))?;
    let Some(document) = documents.first().filter(|document| !document.is_null()) else {
        return Ok(values);
    };
    let not_keys = || fatal("it must be a list of keys and values".to_owned());
    for (key, value) in document.as_mapping().ok_or_else(not_keys)? {
        let key = key.as_str().ok_or_else(not_keys)?;
        let holds_keys = NESTED.iter().any(|(path, _)| path.split('.').next() == Some(key));
        match value.as_mapping() {
            Some(inner) if holds_keys => {
                for (name, value) in inner {
                    let path = format!("{key}.{}", name.as_str().unwrap_or_default());
                    let flag = NESTED.iter().find(|(known, _)| *known == path);
                    put(&mut values, flag.map(|(_, flag)| *flag), &path, value, warnings)?;
                }
            }
            None if holds_keys && value.is_null() => {}
            None if holds_keys => return Err(fatal(format!("{key} must hold keys"))),
            _ => put(&mut values, Some(key), key, value, warnings)?,
        }
    }
    Ok(values)
}

/// The value of `key`, which stands for `flag`.
fn put(
    values: &mut FlagValues,
    flag: Option<&str>,
    key: &str,
    value: &Yaml<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Some(flag) = flag.and_then(table::find) else {
        warnings.push(format!("config file: unknown key {key}"));
        return Ok(());
    };
    if value.is_null() {
        return Ok(());
    }
    let text = match value.as_sequence() {
        Some(list) => {
            list.iter().map(scalar).collect::<Option<Vec<_>>>().map(|list| list.join(","))
        }
        None => scalar(value),
    };
    let mut text = text.ok_or_else(|| fatal(format!("{key} must be one value, or a list")))?;
    if flag.kind == ValueKind::Duration && text.parse::<i64>().is_ok() {
        text += "ns";
    }
    let source = format!("key {key} of the config file");
    values.insert(flag.name, check_value(flag, text.as_ref(), &source)?);
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
