//! A page of metrics, in Prometheus' text form.
//!
//! ```text
//!   # TYPE grpc_server_handled_total counter
//!   grpc_server_handled_total{grpc_code="OK",grpc_method="Range"} 2215
//!   etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 1899
//!   └─ name ───────────────────────────────────┘└ labels ─┘ └ value, and perhaps a time
//! ```

use std::collections::BTreeMap;

/// What is on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    samples: BTreeMap<String, Vec<Sample>>,
}

/// A sample: one line of a page of metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    labels: Vec<(String, String)>,
    /// What it says.
    pub value: f64,
}

impl Sample {
    /// What a label says; nothing if it is not there.
    pub fn label(&self, name: &str) -> &str {
        let label = self.labels.iter().find(|(known, _)| known == name);
        label.map_or("", |(_, value)| value)
    }
}

/// What was read is no page of metrics, or not one of etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Another program answers there.
    #[error("a web page is there, and no metrics; the path should be /metrics")]
    Html,
    /// There are other lines than those that metrics have.
    #[error("line {0} is none of metrics: {1}")]
    Line(usize, String),
    /// Nothing is there.
    #[error("the page is empty")]
    Empty,
    /// These are another program's metrics.
    #[error("these are metrics, but not of etcd: none begins with `etcd_`")]
    NotEtcd,
}

impl Page {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Page, PageError> {
        if text.trim_start().starts_with('<') {
            return Err(PageError::Html);
        }
        let mut page = Page::default();
        for (line, number) in text.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let begin = || line.chars().take(40).collect();
            let (name, sample) = sample(line).ok_or_else(|| PageError::Line(number, begin()))?;
            page.samples.entry(name.to_owned()).or_default().push(sample);
        }
        match page.samples.keys().any(|name| name.starts_with("etcd_")) {
            true => Ok(page),
            false if page.samples.is_empty() => Err(PageError::Empty),
            false => Err(PageError::NotEtcd),
        }
    }

    /// All of that name.
    pub fn all(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of all of that name that are wanted; nothing if there is none of that name at all.
    pub fn sum(&self, name: &str, is_wanted: impl Fn(&Sample) -> bool) -> Option<f64> {
        let samples = self.samples.get(name)?;
        Some(samples.iter().filter(|sample| is_wanted(sample)).map(|sample| sample.value).sum())
    }

    /// The one of that name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.all(name).first().map(|sample| sample.value)
    }
}

fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.is_empty() || !name.chars().all(is_of_name) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_whitespace();
    // Rust reads `+Inf` and `NaN` as Prometheus writes them.
    let value = words.next()?.parse().ok()?;
    // A time may follow.
    let is_end = words.next().is_none_or(|time| time.parse::<f64>().is_ok());
    (is_end && words.next().is_none()).then_some((name, Sample { labels, value }))
}

type Labels = Vec<(String, String)>;

/// What is behind a brace, and what is behind the other one.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, behind) = rest.split_once("=\"")?;
        let (value, behind) = quoted(behind)?;
        labels.push((name.trim().to_owned(), value));
        rest = behind;
    }
}

/// Up to the quotation mark that has no backslash before it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => {
                value.push(if c == 'n' { '\n' } else { c });
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return Some((value, &text[at + 1..])),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_labels() {
        let page = Page::parse(
            "# TYPE etcd_a counter\netcd_a{m=\"Range\",s=\"x \\\"}\\\\ y\"} 2 1712\n\netcd_a{m=\"Put\",} 3.5e+06\netcd_b +Inf\n",
        )
        .expect("it is a page");
        let labels = page.all("etcd_a")[0].clone();
        assert_eq!(
            (labels.label("m"), labels.label("s"), labels.label("t")),
            ("Range", "x \"}\\ y", "")
        );
        assert_eq!(page.sum("etcd_a", |_| true), Some(3_500_002.0));
        assert_eq!(page.sum("etcd_a", |sample| sample.label("m") == "Put"), Some(3_500_000.0));
        assert_eq!((page.value("etcd_b"), page.value("etcd_c")), (Some(f64::INFINITY), None));
    }

    #[test]
    fn what_is_no_page_is_told_apart() {
        let told = |text: &str| Page::parse(text).expect_err(text);
        assert_eq!(told("\n<!DOCTYPE html><html>"), PageError::Html);
        assert_eq!(told("# only a comment\n"), PageError::Empty);
        assert_eq!(told("node_load1 0.5\n"), PageError::NotEtcd);
        for line in [
            "{\"health\":\"true\"}",
            "404 page not found",
            "etcd_a",
            "etcd_a{b=\"c} 1",
            "etcd_a 1 2 3",
            "etcd_a one",
        ] {
            assert_eq!(told(&format!("etcd_x 1\n{line}\n")), PageError::Line(2, line.to_owned()));
        }
    }
}
