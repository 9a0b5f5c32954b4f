//! Combines windows into a table of medians over the repetitions, and writes it as JSON.

use std::path::PathBuf;

use clearlane_backend::Era;
use clearlane_benches::store::results_directory;
use clearlane_contention::timeline::{Timeline, TimelineHeader};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::bench_config::BenchConfig;
use crate::bench_store::Window;
use crate::load::{Class, Load};
use crate::plot;

/// The percentiles of the curve in the picture.
pub(crate) const CURVE: [f64; 12] =
    [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0];

/// The results of one class of operations, of one era under one load.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) era: Era,
    pub(crate) load: Load,
    pub(crate) class: Class,
    repetitions: Vec<Repetition>,
    /// Every latency of every repetition.
    pub(crate) latencies_ns: Vec<u64>,
    /// `latencies_ns` as a histogram, for percentiles that are too rare for one repetition.
    pooled: Histogram<u64>,
    served: u64,
    /// Number of expensive reads in all windows.
    expensive_reads: u64,
}

/// The figures of one window.
#[derive(Debug)]
struct Repetition {
    curve_ns: [u64; CURVE.len()],
    lock_wait_p99_ns: u64,
    longest_hold_ns: u64,
}

impl Cell {
    /// Returns the median of a figure over the repetitions, in microseconds.
    fn median_us(&self, figure: impl Fn(&Repetition) -> u64) -> f64 {
        let mut figures: Vec<u64> = self.repetitions.iter().map(figure).collect();
        figures.sort_unstable();
        figures.get(figures.len() / 2).map_or(0.0, |ns| *ns as f64 / 1e3)
    }

    /// Returns a percentile of the latency, in microseconds. Up to 99 % it is the median over the
    /// repetitions. For higher percentiles one repetition has too few operations, so all
    /// repetitions are combined.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        if quantile > 0.99 {
            return at(&self.pooled, quantile) as f64 / 1e3;
        }
        let index = CURVE.iter().position(|q| *q == quantile).expect("a quantile of the curve");
        self.median_us(|repetition| repetition.curve_ns[index])
    }

    pub(crate) fn lock_wait_p99_us(&self) -> f64 {
        self.median_us(|repetition| repetition.lock_wait_p99_ns)
    }

    /// Returns the percentage of due operations that were started before their window ended.
    pub(crate) fn served_percent(&self) -> f64 {
        100.0 * self.served as f64 / self.latencies_ns.len().max(1) as f64
    }

    /// Returns the number of completed operations for each expensive read. Zero if there were no
    /// such reads.
    pub(crate) fn served_per_read(&self) -> f64 {
        if self.expensive_reads == 0 {
            0.0
        } else {
            self.served as f64 / self.expensive_reads as f64
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "era": self.era.name(),
            "load": self.load.name(),
            "class": self.class.name(),
            "curve_us": CURVE.map(|quantile| json!([quantile, self.latency_us(quantile)])),
            "p50_us": self.latency_us(0.5),
            "p99_us": self.latency_us(0.99),
            "p999_us": self.latency_us(0.999),
            "max_us": self.latency_us(1.0),
            "lock_wait_p99_us": self.lock_wait_p99_us(),
            "longest_hold_us": self.median_us(|repetition| repetition.longest_hold_ns),
            "operations": self.latencies_ns.len(),
            "served": self.served,
            "expensive_reads": self.expensive_reads,
            "repetitions": self.repetitions.len(),
        })
    }
}

/// The results of the bench: one cell for each class, era and load.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    cells: Vec<Cell>,
    windows: usize,
}

/// Returns the directory of the results. A test run must not replace the results of a real run.
fn directory(settings: &BenchConfig) -> PathBuf {
    let name = if settings.quick { "head_of_line_test" } else { "head_of_line" };
    results_directory(env!("CARGO_TARGET_TMPDIR"), name)
}

/// Writes the timeline of a window, for `clearlane-sim show`.
pub(crate) fn write_timeline(settings: &BenchConfig, era: Era, timeline: &Timeline) {
    let file = directory(settings).join(format!("timeline-{}.jsonl", era.name()));
    let header = TimelineHeader {
        recorded: "the backend alone".to_owned(),
        era: Some(era.to_string()),
        ..TimelineHeader::default()
    };
    std::fs::write(&file, format!("{header}{timeline}")).expect("the target directory is writable");
    eprintln!("{}", file.display());
}

impl Summary {
    pub(crate) fn windows(&self) -> usize {
        self.windows
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter()
    }

    pub(crate) fn cell(&self, era: Era, load: Load, class: Class) -> Option<&Cell> {
        let same = |cell: &&Cell| (cell.era, cell.load, cell.class) == (era, load, class);
        self.cells.iter().find(same)
    }

    pub(crate) fn add(&mut self, era: Era, load: Load, window: Window) {
        self.windows += 1;
        for class in Class::ALL {
            let met = window.class(class);
            let repetition = Repetition {
                curve_ns: CURVE.map(|quantile| at(&met.latency, quantile)),
                lock_wait_p99_ns: at(&met.lock_wait, 0.99),
                longest_hold_ns: met.longest_hold_ns,
            };
            let cell = self.cell_mut(era, load, class);
            cell.repetitions.push(repetition);
            cell.latencies_ns.extend_from_slice(&met.latencies_ns);
            cell.pooled.add(&met.latency).expect("all histograms have the same bounds");
            cell.served += met.served_count;
            cell.expensive_reads += window.expensive_reads;
        }
    }

    fn cell_mut(&mut self, era: Era, load: Load, class: Class) -> &mut Cell {
        let same = |cell: &Cell| (cell.era, cell.load, cell.class) == (era, load, class);
        let index = self.cells.iter().position(same).unwrap_or_else(|| {
            self.cells.push(Cell {
                era,
                load,
                class,
                repetitions: Vec::new(),
                latencies_ns: Vec::new(),
                pooled: Histogram::new(3).expect("three digits are allowed"),
                served: 0,
                expensive_reads: 0,
            });
            self.cells.len() - 1
        });
        &mut self.cells[index]
    }

    /// Prints the table, and writes the table and the picture into files. Returns the picture's
    /// path.
    pub(crate) fn write(&self, settings: &BenchConfig) -> PathBuf {
        let directory = directory(settings);
        let cells: Vec<Value> = self.cells.iter().map(Cell::to_json).collect();
        let text = serde_json::to_string_pretty(&cells).expect("numbers and names are JSON");
        let table = directory.join("summary.json");
        std::fs::write(&table, text).expect("the target directory is writable");
        let picture = directory.join("head_of_line.svg");
        let svg = plot::draw(self, settings);
        std::fs::write(&picture, svg).expect("the target directory is writable");
        self.print(settings);
        picture
    }

    fn print(&self, settings: &BenchConfig) {
        eprintln!("\nmilliseconds    load       p50      p99      p99.9    lock wait p99   served");
        for class in Class::ALL {
            for era in &settings.eras {
                for load in Load::ALL {
                    let Some(cell) = self.cell(*era, load, class) else { continue };
                    let ms = |quantile| cell.latency_us(quantile) / 1e3;
                    eprintln!(
                        "{:10} {:9} {:9} {:8.3} {:8.3} {:8.3}   {:8.3}   {:10.0} %",
                        class.name(),
                        era.name(),
                        load.name(),
                        ms(0.5),
                        ms(0.99),
                        ms(0.999),
                        cell.lock_wait_p99_us() / 1e3,
                        cell.served_percent(),
                    );
                }
            }
        }
    }
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> u64 {
    if quantile == 0.0 { histogram.min() } else { histogram.value_at_quantile(quantile) }
}
