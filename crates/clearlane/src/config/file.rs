//! The config file, in YAML or JSON.
//!
//! ```text
//!   name: one
//!   listen-client-urls: http://127.0.0.1:2379        a list is text with commas
//!   grpc-keepalive-timeout: 20000000000              durations are nanoseconds, or 20s
//!   log-outputs: [stderr, clearlane.log]             a YAML list works as well
//!   peer-transport-security: {cert-file: peer.crt}   nested keys stand for flags
//! ```
//!
//! If there is a config file, all other flags and environment variables have no effect. If other
//! flags are set, a warning is logged. Errors in the file, and warnings about a key, start with the
//! file's path. Errors that are found while the file is read also name the line. Errors of the
//! later checks in `from_flags.rs` do not. An unknown key causes a warning, and a repeated key an
//! error.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::suggestion::did_you_mean;
use super::table;
use super::value::ValueKind;

/// The nested keys, and the flags that they stand for.
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

struct ConfigFile<'a> {
    path: &'a str,
    values: FlagValues,
    warnings: &'a mut Vec<String>,
}

pub(super) fn read(
    path: &str,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<FlagValues, ConfigError> {
    let mut file = ConfigFile { path, values: FlagValues::new(), warnings };
    let documents = MarkedYaml::load_from_str(text).map_err(|error| {
        ConfigError::fatal(format!("{path}:{}: {}", error.marker().line(), error.info()))
    })?;
    // A file with only comments has one empty document.
    let is_something = |node: &&Node<'_>| !node.data.is_null() && !node.data.is_badvalue();
    if let Some(document) = documents.first().filter(is_something) {
        for (key, name, value) in file.entries(document, "the file")? {
            file.read_entry(key, name, value)?;
        }
    }
    Ok(file.values)
}

type Node<'a> = MarkedYaml<'a>;

impl ConfigFile<'_> {
    fn at(&self, node: &Node<'_>, what: &str) -> String {
        format!("{}:{}: {what}", self.path, node.span.start.line())
    }

    fn error(&self, node: &Node<'_>, what: &str) -> ConfigError {
        ConfigError::fatal(self.at(node, what))
    }

    /// Returns the entries of a mapping: each key, the key's text, and the value. Fails if the node
    /// is not a mapping, or if a key is not text. The error calls the node `holder`.
    fn entries<'n>(
        &self,
        node: &'n Node<'n>,
        holder: &str,
    ) -> Result<Vec<(&'n Node<'n>, &'n str, &'n Node<'n>)>, ConfigError> {
        let not_keys = |at| self.error(at, &format!("{holder} must hold keys and values"));
        let entries = node.data.as_mapping().ok_or_else(|| not_keys(node))?;
        let named = entries.iter().map(|(key, value)| match key.data.as_str() {
            Some(name) => Ok((key, name, value)),
            None => Err(not_keys(key)),
        });
        named.collect()
    }

    fn read_entry(
        &mut self,
        key: &Node<'_>,
        name: &str,
        value: &Node<'_>,
    ) -> Result<(), ConfigError> {
        let sections = NESTED.iter().filter_map(|(path, _)| path.split_once('.'));
        let inner: Vec<&str> = sections
            .clone()
            .filter(|(section, _)| *section == name)
            .map(|(_, inner)| inner)
            .collect();
        if inner.is_empty() {
            let known = table::all().map(|flag| flag.name);
            let known = known.chain(sections.map(|(section, _)| section));
            return self.put(key, name, name, value, known);
        }
        if value.data.is_null() {
            return Ok(());
        }
        for (key, word, value) in self.entries(value, name)? {
            let path = format!("{name}.{word}");
            let flag = NESTED.iter().find(|(known, _)| *known == path).map(|(_, flag)| *flag);
            let known = inner.iter().copied();
            self.put(key, &path, flag.unwrap_or_default(), value, known)?;
        }
        Ok(())
    }

    /// Sets the value of `flag`, which the key `path` stands for. A key that stands for no flag
    /// adds a warning, which may suggest one of the `known` keys. A value of null sets nothing.
    /// Fails if the flag does not accept the value, or if the file sets the flag twice.
    fn put<'k>(
        &mut self,
        key: &Node<'_>,
        path: &str,
        flag: &str,
        value: &Node<'_>,
        known: impl Iterator<Item = &'k str>,
    ) -> Result<(), ConfigError> {
        let Some(flag) = table::find(flag) else {
            let tip = did_you_mean(key.data.as_str().unwrap_or_default(), known, str::to_owned);
            self.warnings.push(self.at(key, &format!("unknown key {path}{tip}")));
            return Ok(());
        };
        if value.data.is_null() {
            return Ok(());
        }
        let text = match value.data.as_sequence() {
            Some(list) => list.iter().map(scalar).collect::<Option<Vec<_>>>(),
            None => scalar(value).map(|text| vec![text]),
        };
        let not_one = || self.error(value, &format!("{path} must be one value, or a list"));
        let mut text = text.ok_or_else(not_one)?.join(",");
        if flag.kind == ValueKind::Duration && text.parse::<i64>().is_ok() {
            text += "ns";
        }
        let text = check_value(flag, text.as_ref(), &format!("key {path}"))
            .map_err(|error| ConfigError::usage(self.at(value, &error.to_string())))?;
        match self.values.insert(flag.name, text) {
            Some(_) => Err(self.error(key, &format!("{path} is set twice"))),
            None => Ok(()),
        }
    }
}

fn scalar(node: &Node<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::Boolean(value)) => Some(value.to_string()),
        YamlData::Value(Scalar::Integer(value)) => Some(value.to_string()),
        // A float keeps its decimals: `era: 3.0` stays `3.0`.
        YamlData::Value(Scalar::FloatingPoint(value)) => Some(format!("{:?}", value.into_inner())),
        YamlData::Value(Scalar::String(value)) => Some(value.to_string()),
        _ => None,
    }
}
