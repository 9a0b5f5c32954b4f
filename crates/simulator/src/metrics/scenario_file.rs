//! A scenario out of a reading, with a remark beside each number: was it counted, estimated, or is
//! it a default?
//!
//! ```text
//!   rate = 221.4                  # counted
//!   keys = 9                      # estimated: 5,190 bytes were sent for each
//!   consistency = "linearizable"  # default: metrics do not tell
//! ```
//!
//! The file is for a user that knows more about the cluster than its metrics do, and will change
//! it.

use std::fmt::Write as _;

use super::delta::{MeasuredDistribution, MetricsDelta, Rates};
use crate::spread::P99_MAX;

/// A cluster that is asked for nothing else has so many keys.
const KEYS: f64 = 10_000.0;
const KEYS_MAX: f64 = 100_000_000.0;
const KEY_BYTES: f64 = 64.0;
/// As short as keys can be, with the prefix of a workload and as many digits as there may be.
const KEY_BYTES_MIN: f64 = 16.0;
const VALUE_BYTES: f64 = 512.0;
const VALUE_BYTES_MAX: f64 = 1_048_576.0;
/// What an answer has beside key and value, for each record and once.
const RECORD_REST_BYTES: f64 = 24.0;
const ANSWER_REST_BYTES: f64 = 40.0;
/// With fewer, what else is put is within what puts were miscounted by.
const ELSEWHERE_MIN: f64 = 0.05;
/// A read that takes longer is an expensive one: a bound of the histogram in question.
const LONG_S: f64 = 0.1024;
const RATE_MAX: f64 = 1e6;
/// A model has no more.
const MEMBERS_MAX: usize = 9;
const WATCHERS_MAX: f64 = 1e6;
const LOGINS_MAX: f64 = 1e6;
/// Remarks begin here.
const REMARKS: usize = 42;

/// Writes the scenario of what was read there.
pub fn scenario_toml(reading: &MetricsDelta, place: &str) -> String {
    let stored = Stored::of(reading);
    let parts = [head(reading, place), stored.keys_table(reading)]
        .into_iter()
        .chain(classes(reading, &stored))
        .chain([expensive(reading, &stored), model(reading)]);
    parts.collect::<Vec<_>>().join("\n")
}

/// A line with a remark behind it.
fn line(setting: &str, remark: &str) -> String {
    format!("{setting:REMARKS$} # {remark}\n")
}

fn head(reading: &MetricsDelta, place: &str) -> String {
    let version = reading.version.as_deref().unwrap_or("of an unknown version");
    let (program, era) = match &reading.era {
        Some(era) => (format!("Clearlane (etcd {version})"), era.as_str()),
        None => (format!("etcd {version}"), era_of(reading.version.as_deref())),
    };
    let against =
        if era == "clearlane" { "3.5,clearlane".to_owned() } else { format!("{era},clearlane") };
    let mut head = format!(
        "# The load of {program} at {place}, as its metrics told it within {:.1} s.\n#\n\
         # Behind each number stands whether it was counted, estimated, or is a default. Change what you know\n\
         # better, and ask:\n#   clearlane-sim compare THIS-FILE --era {against}\n",
        reading.seconds
    );
    let mut remark = |text: String| head.push_str(&format!("#\n# {text}\n"));
    if let Some(applies) = reading.slow_applies.filter(|applies| *applies > 0.0) {
        remark(format!("It said of {applies:.0} applies that they were slow."));
    }
    if let Some(busy) = reading.cores_busy.filter(|busy| *busy > 0.0) {
        remark(format!("It kept {busy:.2} cores busy."));
    }
    if let Some(bytes) = reading.db_bytes {
        let in_use = reading
            .db_in_use_bytes
            .map_or(String::new(), |bytes| format!(", {} of it in use", mb(bytes)));
        remark(format!("Its database has {}{in_use}.", mb(bytes)));
    }
    if let Some(watchers) = reading.watchers.filter(|watchers| *watchers > 0.0) {
        let events = reading.events.unwrap_or_default();
        remark(format!("Watchers: {watchers:.0}, which were sent {events:.1} events per second."));
    }
    head + "\nseconds = 30\n"
}

fn mb(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

/// The read path of a version.
fn era_of(version: Option<&str>) -> &'static str {
    let minor =
        version.and_then(|version| version.strip_prefix("3.")?.split('.').next()?.parse().ok());
    match minor {
        Some(0u32) => "3.0",
        Some(1) => "3.1",
        Some(2 | 3) => "3.2",
        Some(4) => "3.4",
        _ => "3.5",
    }
}

/// What is in the store, as far as it is known.
struct Stored {
    count: f64,
    key_bytes: f64,
    value_bytes: f64,
}

impl Stored {
    fn of(reading: &MetricsDelta) -> Stored {
        let count = reading.keys.filter(|keys| *keys >= 1.0).unwrap_or(KEYS).min(KEYS_MAX);
        let both = both_bytes(reading).unwrap_or(KEY_BYTES + VALUE_BYTES);
        let key_bytes = KEY_BYTES.min(both / 2.0).max(KEY_BYTES_MIN).round();
        let value_bytes = (both - key_bytes).clamp(0.0, VALUE_BYTES_MAX).round();
        Stored { count, key_bytes, value_bytes }
    }

    fn keys_table(&self, reading: &MetricsDelta) -> String {
        let Stored { count, key_bytes, value_bytes } = self;
        let counted = if reading.keys.is_some_and(|keys| keys >= 1.0) {
            "counted"
        } else {
            "default: it has none, or does not say"
        };
        let value = match (reading.put_bytes, both_bytes(reading)) {
            (Some(bytes), _) => {
                format!("estimated: a put had {bytes:.0} bytes of key and value on average")
            }
            (None, Some(bytes)) => {
                format!("estimated: {bytes:.0} bytes of the database are in use for each key")
            }
            (None, None) => "default: metrics do not tell".to_owned(),
        };
        let key = "default: metrics do not tell how long keys are";
        let sizes = "# value = { min = 64, max = 65536 }";
        format!(
            "[keys]\n{}{}{}{}",
            line(&format!("count = {count:.0}"), counted),
            line(&format!("size = {key_bytes:.0}"), key),
            line(&format!("value = {value_bytes:.0}"), &value),
            line(sizes, "nor how sizes are distributed"),
        )
    }

    fn record_bytes(&self) -> f64 {
        self.key_bytes + self.value_bytes + RECORD_REST_BYTES
    }

    /// How many keys a range brings, on average, if it is known.
    fn keys_per_range(&self, reading: &MetricsDelta) -> Option<f64> {
        let bytes = reading.sent_per_range? - ANSWER_REST_BYTES;
        Some((bytes / self.record_bytes()).round().clamp(1.0, self.count))
    }
}

/// Key and value together, on average.
fn both_bytes(reading: &MetricsDelta) -> Option<f64> {
    let in_use = || {
        let bytes = reading.db_in_use_bytes.or(reading.db_bytes)?;
        let keys = reading.keys.filter(|keys| *keys >= 1.0)?;
        Some(bytes / keys - RECORD_REST_BYTES)
    };
    reading.put_bytes.or_else(in_use).filter(|bytes| *bytes >= 1.0)
}

/// A number as it would be written down: four figures of it.
fn figures(number: f64) -> String {
    let digits = 3 - number.abs().log10().floor() as i32;
    let rounded = match u32::try_from(digits) {
        Ok(digits) => format!("{number:.*}", digits.min(9) as usize),
        Err(_) => format!("{number:.0}"),
    };
    match rounded.contains('.') {
        true => rounded.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => rounded,
    }
}

fn classes(reading: &MetricsDelta, stored: &Stored) -> Vec<String> {
    let rates = &reading.rates;
    let Rates { range, put, delete, txn, .. } = *rates;
    let counted = if rates.are_requests {
        "counted"
    } else {
        "counted in the store: it does not count requests"
    };
    let mut classes = Vec::new();
    let mut class = |name: &str, operation: &str, rate: f64, remark: &str, rest: String| {
        if rate > 0.0 {
            let rate = line(&format!("rate = {}", figures(rate.min(RATE_MAX))), remark);
            let arrivals = line("arrivals = \"poisson\"", "default: as independent clients do");
            let head = format!("[[class]]\nname = \"{name}\"\noperation = \"{operation}\"\n");
            classes.push(head + &rate + &arrivals + &rest);
        }
    };
    class("range", "range", range, counted, range_rest(reading, stored));
    class("put", "put", put, counted, String::new());
    class("delete", "delete", delete, counted, String::new());
    let txn_rest = line("keys = 1", "default: metrics do not tell how many keys each puts");
    class("txn", "txn", txn, counted, txn_rest);
    let elsewhere = rates.puts_applied.map_or(0.0, |applied| applied - put - txn);
    if rates.are_requests && elsewhere > ELSEWHERE_MIN * (put + txn) {
        let remark = "counted in the store: sent to other members, or several in a transaction";
        class("put-elsewhere", "put", elsewhere, remark, String::new());
    }
    classes
}

fn range_rest(reading: &MetricsDelta, stored: &Stored) -> String {
    let keys = match (stored.keys_per_range(reading), reading.sent_per_range) {
        (Some(keys), Some(bytes)) => {
            let remark = format!("estimated: {bytes:.0} bytes were sent to clients for each");
            line(&format!("keys = {keys:.0}"), &remark)
        }
        _ => line("keys = 1", "default: metrics do not tell how large ranges are"),
    };
    let consistency = line("consistency = \"linearizable\"", "default: metrics do not tell");
    keys + &line("# limit = 1", "default: none") + &consistency
}

/// The question that such a file is made for.
fn expensive(reading: &MetricsDelta, stored: &Stored) -> String {
    let long = reading.range.as_ref().and_then(|range| {
        let long = range.buckets.longer_than(LONG_S)?;
        let since = if range.is_since_start { " since it was started" } else { "" };
        Some(format!(
            "# Of {:.0} reads{since}, {long:.0} took longer than 0.1 s.\n",
            range.buckets.count
        ))
    });
    format!(
        "# Whether a few reads are much larger than the others, metrics do not tell. If they are, or if you wonder\n\
         # what would be:\n{}# [[class]]\n# name = \"expensive\"\n# operation = \"range\"\n# rate = 0.5\n# keys = {:.0}\n",
        long.unwrap_or_default(),
        stored.count.min(20_000.0)
    )
}

fn model(reading: &MetricsDelta) -> String {
    let cores = match reading.cores.filter(|cores| (1.0..=1024.0).contains(cores)) {
        Some(cores) => line(&format!("cores = {cores:.0}"), "counted: as many threads run at once"),
        None => line("cores = 4", "default: metrics do not tell"),
    };
    let mut model = format!("[model]\n{cores}");
    let mut spread = |name: &str, what: &str, measured: &Option<MeasuredDistribution>| {
        let text = measured.as_ref().map_or_else(
            || line(&format!("# {name} = 1"), &format!("default: of {what} nothing was measured")),
            |measured| spread_line(name, what, measured),
        );
        model.push_str(&text);
    };
    spread("sync_ms", "syncs of the log", &reading.sync);
    spread("commit_sync_ms", "commits of the backend", &reading.commit);
    model.push_str(&line("clients_apart = true", "default: they have machines of their own"));
    model + &background(reading) + &members(reading)
}

/// The watchers that are notified of writes, and the logins.
fn background(reading: &MetricsDelta) -> String {
    let mut text = String::new();
    let writes = reading.rates.puts_applied.unwrap_or(0.0) + reading.rates.delete;
    let notified =
        reading.events.filter(|_| writes > 0.0).map_or(0.0, |events| (events / writes).round());
    if notified >= 1.0 {
        let remark = "estimated: events to watchers, by writes";
        text += &line(&format!("watchers.synced = {:.0}", notified.min(WATCHERS_MAX)), remark);
    }
    if reading.logins > 0.0 {
        text += &line("auth.enabled = true", "there were logins");
        let rate = figures(reading.logins.min(LOGINS_MAX));
        text += &line(&format!("auth.logins_per_s = {rate}"), "counted");
    }
    text
}

/// Those of the cluster, if there are others.
fn members(reading: &MetricsDelta) -> String {
    if reading.peers == 0 {
        return String::new();
    }
    let members = (reading.peers + 1).min(MEMBERS_MAX);
    let mut text =
        line(&format!("members = {members}"), "counted: those that it sends to, and itself");
    if let Some(measured) = &reading.round_trip {
        text += &spread_line("round_trip_ms", "round trips to other members", measured);
    }
    let rates = &reading.rates;
    let asked =
        [("range", rates.range), ("put", rates.put), ("delete", rates.delete), ("txn", rates.txn)];
    if reading.is_leader == Some(false) {
        text += "# It does not lead, and these were its requests. Those of other members are not here.\n";
        for (name, _) in asked.into_iter().filter(|(_, rate)| *rate > 0.0) {
            let _ = writeln!(text, "connect.{name} = 2");
        }
    } else {
        text += "# Requests to other members are not here.\n";
    }
    text
}

fn spread_line(name: &str, what: &str, measured: &MeasuredDistribution) -> String {
    let buckets = &measured.buckets;
    let mean = buckets.mean_ms().clamp(1e-3, 3_600_000.0);
    let p99 = buckets.quantile_ms(0.99).clamp(mean, 0.99 * P99_MAX * mean);
    let since = if measured.is_since_start { ", since it was started" } else { "" };
    let remark = format!("counted: {:.0} {what}{since}", buckets.count);
    line(&format!("{name} = {{ mean = {}, p99 = {} }}", figures(mean), figures(p99)), &remark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_figures() {
        let numbers = [221.437, 0.012_345_6, 7.0, 123_456.7, 99.999_9, 1234.4];
        assert_eq!(numbers.map(figures), ["221.4", "0.01235", "7", "123457", "100", "1234"]);
    }

    #[test]
    fn a_version_has_an_era() {
        let versions =
            ["3.0.1", "3.1.20", "3.2.0", "3.3.27", "3.4.30", "3.5.9", "3.12.1", "4.0.0", "odd"];
        let eras = versions.map(|version| era_of(Some(version)));
        assert_eq!(eras, ["3.0", "3.1", "3.2", "3.2", "3.4", "3.5", "3.5", "3.5", "3.5"]);
    }
}
