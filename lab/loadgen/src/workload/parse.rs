//! Parses a workload file. Each error is one line.
//!
//! The bounds keep requests within etcd's default limits: a request has at most 1.5 MiB, and a
//! transaction at most 128 operations.

use toml::{Table, Value};

use super::fields::Fields;
use super::{Class, Operation, Workload};
use crate::arrivals::Spacing;
use crate::keys::{Distribution, KeySpace, Sizes};
use crate::{Error, Result};

pub(super) const SECONDS_MAX: u64 = 86_400;
/// Maximum number of keys. More keys do not fit into the store size that etcd recommends.
const KEYS_MAX: u64 = 100_000_000;
const KEY_SIZE_MAX: u64 = 64 << 10;
const VALUE_SIZE_MAX: u64 = 1 << 20;
const RATE_MAX: f64 = 1e6;
const CONNECTIONS_MAX: u64 = 1000;
/// etcd's default for `--max-txn-ops`.
pub(crate) const TXN_OPERATIONS_MAX: u64 = 128;
/// Maximum size of all keys and values in one transaction. It is well below etcd's limit for a
/// request.
pub(crate) const TXN_BYTES_MAX: u64 = 1 << 20;

const EVENTS_MAX: u64 = 1_000_000_000;
const LEASE_TTL_DEFAULT: u64 = 60;
/// etcd's limit for the TTL of a lease.
const LEASE_TTL_MAX: u64 = 9_000_000_000;

const CLASS_FIELDS: [&str; 5] = ["name", "operation", "rate", "arrivals", "connections"];

/// The operations, and the fields that a class has in addition to the common ones.
const OPERATIONS: [(&str, &[&str]); 8] = [
    ("range", &["keys", "limit", "consistency", "distribution"]),
    ("count", &["keys", "consistency", "distribution"]),
    ("put", &["value", "distribution"]),
    ("delete", &["keys", "distribution"]),
    ("txn", &["keys", "value", "distribution"]),
    ("watch", &["events"]),
    ("lease", &["ttl"]),
    ("authenticate", &[]),
];

impl Workload {
    pub fn parse(text: &str) -> Result<Workload> {
        let file: Table = text.parse().map_err(|error| not_toml(text, &error))?;
        // `[model]` describes machines for the simulator. It is ignored here.
        let allowed = ["seconds", "keys", "class", "model"];
        let fields = Fields::new("workload", &file, &allowed)?;
        let seconds = fields.required("seconds", fields.integer("seconds", 1..=SECONDS_MAX)?)?;
        let keys = fields.required("keys", file.get("keys"))?.as_table();
        let space = space(keys.ok_or_else(|| fields.error("`keys` must be a table, [keys]"))?)?;
        let tables = fields.required("class", file.get("class"))?.as_array();
        let tables =
            tables.filter(|tables| !tables.is_empty() && tables.iter().all(Value::is_table));
        let tables = tables
            .ok_or_else(|| fields.error("`class` must be a list of tables, each [[class]]"))?;
        let mut classes: Vec<Class> = Vec::new();
        for (place, table) in (0..).zip(tables.iter().filter_map(Value::as_table)) {
            let class = class(place, table, &space)?;
            if classes.iter().any(|other| other.name == class.name) {
                let name = class.name;
                return Err(fields.error(format!("two classes have the name \"{name}\"")));
            }
            classes.push(class);
        }
        Ok(Workload { seconds, space, classes })
    }
}

fn not_toml(text: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    Error::Workload(format!("workload: line {line} is not TOML: {message}"))
}

pub(super) fn space(table: &Table) -> Result<KeySpace> {
    let fields = Fields::new("[keys]", table, &["count", "size", "value", "prefix"])?;
    let prefix = fields.text("prefix")?.unwrap_or(KeySpace::DEFAULT_PREFIX).to_owned();
    let count = fields.required("count", fields.integer("count", 1..=KEYS_MAX)?)?;
    let shortest = KeySpace::min_key_size(&prefix, count);
    if shortest > KEY_SIZE_MAX {
        return Err(
            fields.error(format!("`prefix` is too long: a key has at most {KEY_SIZE_MAX} bytes"))
        );
    }
    let key_size = fields.required("size", fields.integer("size", shortest..=KEY_SIZE_MAX)?)?;
    let value = fields.required("value", fields.sizes("value", 0..=VALUE_SIZE_MAX)?)?;
    Ok(KeySpace { prefix, count, key_size, value })
}

pub(super) fn class(place: u64, table: &Table, space: &KeySpace) -> Result<Class> {
    let name = table.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let called = name.map_or(format!("class {}", place + 1), |name| format!("class \"{name}\""));
    let asked = table.get("operation").and_then(Value::as_str);
    // If the operation is unknown or missing, all fields are allowed here, so that the reported
    // error is about the operation.
    let allowed = asked.and_then(class_fields);
    let allowed = allowed.unwrap_or_else(|| table.keys().map(String::as_str).collect());
    let fields = Fields::new(&called, table, &allowed)?;
    let name = fields.required("name", name)?.to_owned();
    let operation = operation(&fields, space)?;
    let spacings = [("constant", Spacing::Constant), ("poisson", Spacing::Poisson)];
    let spacing = fields.one_of("arrivals", &spacings)?.unwrap_or(Spacing::Constant);
    let connections = fields.integer("connections", 1..=CONNECTIONS_MAX)?.unwrap_or(1);
    let rate = fields.rate("rate", RATE_MAX)?;
    let distribution = fields.one_of("distribution", &Distribution::WORDS)?.unwrap_or_default();
    Ok(Class { name, index: place, operation, rate, spacing, connections, distribution })
}

/// Returns the fields that a class may have. `None` if there is no such operation.
pub(super) fn class_fields(operation: &str) -> Option<Vec<&'static str>> {
    let (_, further) = OPERATIONS.iter().find(|(known, _)| *known == operation)?;
    Some([&CLASS_FIELDS, *further].concat())
}

fn operation(fields: &Fields<'_>, space: &KeySpace) -> Result<Operation> {
    let words = OPERATIONS.map(|(word, _)| (word, word));
    let operation = fields.required("operation", fields.one_of("operation", &words)?)?;
    let value = || Ok(fields.sizes("value", 0..=VALUE_SIZE_MAX)?.unwrap_or(space.value));
    let keys = |most| Ok(fields.integer("keys", 1..=most)?.unwrap_or(1));
    match operation {
        "range" => {
            let keys = keys(space.count)?;
            let limit = fields.integer("limit", 1..=keys)?;
            Ok(Operation::Range { keys, limit, serializable: serializable(fields)? })
        }
        "count" => {
            let keys = fields.integer("keys", 1..=space.count)?.unwrap_or(space.count);
            Ok(Operation::Count { keys, serializable: serializable(fields)? })
        }
        "watch" => {
            Ok(Operation::Watch { events: fields.integer("events", 0..=EVENTS_MAX)?.unwrap_or(0) })
        }
        "lease" => {
            let ttl = fields.integer("ttl", 1..=LEASE_TTL_MAX)?.unwrap_or(LEASE_TTL_DEFAULT);
            Ok(Operation::Lease { ttl })
        }
        "authenticate" => Ok(Operation::Authenticate),
        "put" => Ok(Operation::Put { value: value()? }),
        "delete" => Ok(Operation::Delete { keys: keys(space.count)? }),
        _ => txn(fields, space, keys(space.count.min(TXN_OPERATIONS_MAX))?, value()?),
    }
}

fn serializable(fields: &Fields<'_>) -> Result<bool> {
    let words = [("linearizable", false), ("serializable", true)];
    Ok(fields.one_of("consistency", &words)?.unwrap_or(false))
}

fn txn(fields: &Fields<'_>, space: &KeySpace, keys: u64, value: Sizes) -> Result<Operation> {
    let bytes = keys * (space.key_size + value.max);
    if keys > 1 && bytes > TXN_BYTES_MAX {
        return Err(fields.error(format!(
            "`keys` is {keys}, which is up to {bytes} bytes; at most {TXN_BYTES_MAX} are allowed"
        )));
    }
    Ok(Operation::Txn { keys, value })
}

/// Returns a key space that is not from a workload file. The same bounds apply. Its prefix differs
/// from the default prefix of workloads.
pub fn key_space(count: u64, key_size: u64, value_size: u64) -> Result<KeySpace> {
    let (prefix, value) = ("/keys/".to_owned(), Sizes::constant(value_size));
    let unchecked = KeySpace { prefix, count, key_size, value };
    let table = Table::try_from(unchecked);
    space(&table.map_err(|error| Error::Workload(format!("[keys]: {error}")))?)
}
