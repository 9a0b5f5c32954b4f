//! The text that Prometheus reads: families of samples, one sample per line.
//!
//! ```text
//!   # HELP etcd_server_has_leader Whether or not a leader exists.
//!   # TYPE etcd_server_has_leader gauge
//!   etcd_server_has_leader 1
//! ```
//!
//! A histogram has one counter per bound, which counts all values up to that bound. The sum and the
//! number of all values follow the counters.

use std::fmt::{Display, Write as _};

use clearlane_server::threads::DurationHistogram;

#[derive(Debug, Default)]
pub(super) struct MetricsPage {
    text: String,
}

type Label<'a> = (&'a str, &'a str);

impl MetricsPage {
    pub(super) fn into_text(self) -> String {
        self.text
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help).sample(&[], value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help).sample(&[], value);
    }

    pub(super) fn seconds(&mut self, name: &str, help: &str, buckets: &DurationHistogram) {
        self.family(name, "histogram", help).histogram(&[], &PrometheusHistogram::merge([buckets]));
    }

    pub(super) fn family<'p>(&'p mut self, name: &'p str, kind: &str, help: &str) -> Family<'p> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { text: &mut self.text, name }
    }
}

pub(super) struct Family<'p> {
    text: &'p mut String,
    name: &'p str,
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: impl Display) {
        self.line("", labels, None, value);
    }

    pub(super) fn histogram(&mut self, labels: &[Label<'_>], sums: &PrometheusHistogram) {
        let mut below = 0;
        for (bound, count) in &sums.counts {
            below += count;
            self.line("_bucket", labels, Some(&go_float(*bound)), below);
        }
        self.line("_bucket", labels, Some("+Inf"), sums.count);
        self.line("_sum", labels, None, sums.sum);
        self.line("_count", labels, None, sums.count);
    }

    fn line(
        &mut self,
        ending: &str,
        labels: &[Label<'_>],
        bound: Option<&str>,
        value: impl Display,
    ) {
        let _ = write!(self.text, "{}{ending}", self.name);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        for (number, (label, value)) in all.enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if number == 0 { '{' } else { ',' });
        }
        let close = if labels.is_empty() && bound.is_none() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}

#[derive(Debug, Default)]
pub(super) struct PrometheusHistogram {
    /// The bounds, each with the number of values in the bucket that ends at it.
    counts: Vec<(f64, u64)>,
    /// Number of values, including the values above all bounds.
    count: u64,
    pub(super) sum: f64,
}

impl PrometheusHistogram {
    /// Merges histograms with the same buckets. The bounds and the sum of the result are in
    /// seconds.
    pub(super) fn merge<'b>(
        histograms: impl IntoIterator<Item = &'b DurationHistogram>,
    ) -> PrometheusHistogram {
        let mut sums = PrometheusHistogram::default();
        for buckets in histograms {
            let counts = buckets.counts();
            if sums.counts.is_empty() {
                let bounds = doubling(buckets.first_bound().as_secs_f64(), counts.len() as i32 - 1);
                sums.counts = bounds.map(|bound| (bound, 0)).collect();
            }
            for (k, count) in counts.enumerate() {
                sums.counts.get_mut(k).into_iter().for_each(|(_, below)| *below += count);
                sums.count += count;
            }
            sums.sum += buckets.sum().as_secs_f64();
        }
        sums
    }

    /// Makes a histogram with these bounds from values that were counted in other buckets. `values`
    /// has the largest value of each bucket and the bucket's count.
    pub(super) fn rounded_up(
        bounds: impl IntoIterator<Item = f64>,
        values: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
    ) -> PrometheusHistogram {
        let counts = bounds.into_iter().map(|bound| (bound, 0)).collect();
        let mut sums = PrometheusHistogram { counts, count: 0, sum };
        for (value, count) in values {
            let bucket = sums.counts.iter_mut().find(|(bound, _)| value <= *bound);
            bucket.into_iter().for_each(|(_, below)| *below += count);
            sums.count += count;
        }
        sums
    }

    /// Returns each bound with the count of its own bucket (not cumulative). The last bound is
    /// infinity.
    pub(super) fn values(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let above = self.count - self.counts.iter().map(|(_, count)| count).sum::<u64>();
        self.counts.iter().copied().chain([(f64::INFINITY, above)])
    }
}

/// Returns `count` bounds, each twice the previous one. Doubling changes only the exponent of a
/// float, so the bounds equal etcd's.
pub(super) fn doubling(first: f64, count: i32) -> impl Iterator<Item = f64> {
    (0..count).map(move |k| first * 2f64.powi(k))
}

/// Formats a bound. From 0.0001 on, the text is the same as in Go. Go writes smaller bounds with an
/// exponent, and this function does not. A bound is a label, and labels are compared as text.
fn go_float(value: f64) -> String {
    if value.abs() < 1e6 {
        return value.to_string();
    }
    let text = format!("{value:e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}e+{power:0>2}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_reads_as_prometheus_wants_it() {
        let mut page = MetricsPage::default();
        page.gauge("a", "one\\two\nthree", -1);
        let buckets = DurationHistogram::new(Duration::from_millis(1), 2);
        [1, 2, 2, 9].into_iter().for_each(|ms| buckets.record(Duration::from_millis(ms)));
        page.seconds("b", "times", &buckets);
        page.family("c", "counter", "labels").sample(&[("x", "\"\\\n"), ("y", "2")], 1.5);
        let text = "\
            # HELP a one\\\\two\\nthree\n# TYPE a gauge\na -1\n\
            # HELP b times\n# TYPE b histogram\n\
            b_bucket{le=\"0.001\"} 1\nb_bucket{le=\"0.002\"} 3\nb_bucket{le=\"+Inf\"} 4\n\
            b_sum 0.014\nb_count 4\n\
            # HELP c labels\n# TYPE c counter\nc{x=\"\\\"\\\\\\n\",y=\"2\"} 1.5\n";
        assert_eq!(page.into_text(), text);
    }

    #[test]
    fn bounds_are_written_as_go_does() {
        let bounds: Vec<String> = doubling(0.0001, 14).map(go_float).collect();
        assert_eq!(bounds[..4], ["0.0001", "0.0002", "0.0004", "0.0008"]);
        assert_eq!(bounds[13], "0.8192");
        assert_eq!(go_float(524_288.0), "524288");
        assert_eq!(go_float(8_388_608.0), "8.388608e+06");
    }
}
