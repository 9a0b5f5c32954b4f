//! The log: one line for each event, as JSON or as text.
//!
//! Tools for etcd's log look for four keys. All other fields follow them:
//!
//! ```text
//!   {"level":"info","ts":"2026-02-03T04:05:06.789012Z","caller":"src/run.rs:120",
//!    "msg":"ready to serve client requests","address":"127.0.0.1:2379"}
//! ```
//!
//! All code logs through `tracing`. The subscriber in this module supports no spans and no filters
//! by module. Lines of different threads never mix. Events of other libraries are logged only if
//! they are warnings or errors.

mod rotation;

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::config::{LogConfig, LogFormat, LogOutput};
use rotation::RotatedFile;
pub use rotation::RotationConfig;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--log-outputs: {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("a log is written already")]
    AlreadyStarted,
}

pub fn start(config: &LogConfig) -> Result<(), Error> {
    let log = LogSubscriber::open(config)?;
    tracing::subscriber::set_global_default(log).map_err(|_| Error::AlreadyStarted)
}

struct LogSubscriber {
    level: LevelFilter,
    format: LogFormat,
    outputs: Mutex<Vec<Box<dyn Write + Send>>>,
}

impl LogSubscriber {
    fn open(config: &LogConfig) -> Result<LogSubscriber, Error> {
        let level = match config.level.as_str() {
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warn" => LevelFilter::WARN,
            _ => LevelFilter::ERROR,
        };
        let open = |output| open_output(output, config.rotation);
        let outputs = config.outputs.iter().map(open).collect::<Result<_, _>>()?;
        Ok(LogSubscriber { level, format: config.format, outputs: Mutex::new(outputs) })
    }
}

fn open_output(
    output: &LogOutput,
    rotation: Option<RotationConfig>,
) -> Result<Box<dyn Write + Send>, Error> {
    Ok(match output {
        LogOutput::Stderr => Box::new(io::stderr()),
        LogOutput::Stdout => Box::new(io::stdout()),
        LogOutput::File(path) => {
            let failed = |source| Error::File { path: path.clone(), source };
            match rotation {
                None => Box::new(append_to(path).map_err(failed)?),
                Some(config) => Box::new(RotatedFile::open(path, config).map_err(failed)?),
            }
        }
    })
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with("clearlane");
        *metadata.level() <= self.level && (is_ours || *metadata.level() <= Level::WARN)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = EventFields::default();
        event.record(&mut words);
        let (metadata, now) = (event.metadata(), timestamp(OffsetDateTime::now_utc()));
        let line = match self.format {
            LogFormat::Json => json(metadata, words, now),
            LogFormat::Console => console(metadata, words, now),
        };
        for output in self.outputs.lock().iter_mut() {
            // The result is ignored, because there is no other place to report a failed output.
            let _ = output.write_all(line.as_bytes()).and_then(|()| output.flush());
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct EventFields {
    message: String,
    fields: Map<String, Value>,
}

impl EventFields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.put(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.put(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

fn json(metadata: &Metadata<'_>, words: EventFields, now: String) -> String {
    let text = |text: String| Value::String(text).to_string();
    let mut line = format!(
        "{{\"level\":\"{}\",\"ts\":\"{now}\",\"caller\":{},\"msg\":{}",
        name(*metadata.level()),
        text(caller(metadata)),
        text(words.message),
    );
    for (name, value) in words.fields {
        let _ = write!(line, ",{}:{value}", text(name));
    }
    line + "}\n"
}

fn console(metadata: &Metadata<'_>, words: EventFields, now: String) -> String {
    let level = name(*metadata.level());
    let mut line = format!("{now}\t{level}\t{}\t{}", caller(metadata), words.message);
    if !words.fields.is_empty() {
        let _ = write!(line, "\t{}", Value::Object(words.fields));
    }
    // One event is always one line, even if the message contains line breaks.
    line.replace('\n', "\\n") + "\n"
}

fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// Returns the file and line of an event, such as `src/run.rs:120`. The path keeps only the last
/// directory.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or("unknown");
    let end = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    format!("{}:{}", &file[end..], metadata.line().unwrap_or(0))
}

fn timestamp(now: OffsetDateTime) -> String {
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second, micros) = now.to_hms_micro();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn logged(level: &str, format: LogFormat, speak: impl FnOnce()) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let outputs = vec![LogOutput::File(path.clone())];
        let config = LogConfig { level: level.to_owned(), format, outputs, rotation: None };
        let log = LogSubscriber::open(&config).unwrap();
        tracing::subscriber::with_default(log, speak);
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_timestamp_has_all_its_digits() {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::new(951_827_696, 7_000);
        assert_eq!(timestamp(at), "2000-02-29T12:34:56.000007Z");
    }

    #[test]
    fn a_line_is_an_object_with_etcds_keys() {
        let text = logged("info", LogFormat::Json, || {
            tracing::info!(address = "a\"b", count = 7, took = ?Duration::from_millis(3), "a\nb");
            tracing::debug!("too little");
            tracing::info!(target: "hyper", "about itself");
        });
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{text}");
        let line = lines[0].as_object().unwrap();
        assert_eq!(line["level"], "info");
        assert_eq!(line["msg"], "a\nb");
        assert!(line["caller"].as_str().unwrap().starts_with("logging/mod.rs:"), "{text}");
        assert_eq!(
            (&line["address"], &line["count"], &line["took"]),
            (&"a\"b".into(), &7.into(), &"3ms".into())
        );
        assert!(text.starts_with("{\"level\":\"info\",\"ts\":\"2"), "{text}");
    }

    #[test]
    fn for_people_it_is_one_line_too() {
        let text = logged("warn", LogFormat::Console, || tracing::warn!(a = 1, "one\ntwo"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("\twarn\t") && text.ends_with("\tone\\ntwo\t{\"a\":1}\n"), "{text}");
    }
}
