//! Tables and plots of [`Measurements`].

use super::measurements::Measurements;
use super::number::number;
use crate::page::Section;
use crate::plot::{Axis, BarGroup, Bars, Better, Line, Plot, Scale, era_colour};

/// A column of a table with a row for each server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column<'a> {
    pub(super) heading: &'a str,
    pub(super) cell: Cell<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Median(&'a str),
    /// Of all rounds.
    Max(&'a str),
    /// One median over another.
    Times(&'a str, &'a str),
}

impl<'a> Column<'a> {
    pub(super) fn median(heading: &'a str, figure: &'a str) -> Column<'a> {
        Column { heading, cell: Cell::Median(figure) }
    }

    pub(super) fn max(heading: &'a str, figure: &'a str) -> Column<'a> {
        Column { heading, cell: Cell::Max(figure) }
    }

    pub(super) fn times(heading: &'a str, figure: &'a str, of: &'a str) -> Column<'a> {
        Column { heading, cell: Cell::Times(figure, of) }
    }
}

/// How a table names a server.
pub(super) fn label(server: &str) -> String {
    if server.starts_with(|first: char| first.is_ascii_digit()) {
        format!("era {server}")
    } else {
        server.to_owned()
    }
}

/// A row for each server.
pub(super) fn table(measured: &Measurements, columns: &[Column<'_>]) -> Section {
    let headings = columns.iter().map(|column| column.heading.to_owned());
    let row = |server: &String| {
        let cells = columns.iter().map(|column| match column.cell {
            Cell::Median(figure) => measured.median(server, figure),
            Cell::Max(figure) => measured.max(server, figure),
            Cell::Times(figure, of) => measured.times(server, figure, of),
        });
        [label(server)].into_iter().chain(cells.map(shown)).collect()
    };
    Section::Table {
        columns: ["server".to_owned()].into_iter().chain(headings).collect(),
        rows: measured.servers().iter().map(row).collect(),
    }
}

/// A row for each point, with a column for each server and figure: `(heading, figure)`.
pub(super) fn table_by_point(
    measured: &Measurements,
    point: &str,
    figures: &[(&str, &str)],
) -> Section {
    let mut columns = vec![point.to_owned()];
    for server in measured.servers() {
        columns.extend(figures.iter().map(|(heading, _)| format!("{} {heading}", label(server))));
    }
    let points = figures.first().map_or_else(Vec::new, |(_, figure)| measured.points(figure));
    let row = |at: f64| {
        let mut row = vec![number(at)];
        for server in measured.servers() {
            row.extend(figures.iter().map(|(_, name)| shown(measured.median_at(server, name, at))));
        }
        row
    };
    Section::Table { columns, rows: points.into_iter().map(row).collect() }
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// A group for each server, with a bar for each `(label, figure)`.
pub(super) fn bars(
    measured: &Measurements,
    title: &str,
    y: Axis,
    better: Better,
    figures: &[(&str, &str)],
) -> Section {
    let group = |server: &String| {
        let bar = |(label, figure): &(&str, &str)| {
            let value = measured.median(server, figure)?;
            Some(((*label).to_owned(), era_colour(server), value))
        };
        BarGroup { label: label(server), bars: figures.iter().filter_map(bar).collect() }
    };
    let groups = measured.servers().iter().map(group).collect();
    let svg = Bars { title: title.to_owned(), y, better, groups }.svg();
    Section::Figure { svg, caption: title.to_owned() }
}

/// A line for each server, over the points of the figure.
pub(super) fn lines(
    measured: &Measurements,
    title: &str,
    [x, y]: [Axis; 2],
    better: Better,
    figure: &str,
) -> Section {
    let line = |server: &String| Line {
        label: label(server),
        colour: era_colour(server),
        points: measured.line(server, figure),
    };
    let lines = measured.servers().iter().map(line).filter(|line| !line.points.is_empty());
    let (title, lines) = (title.to_owned(), lines.collect());
    let svg = Plot { title: title.clone(), x, y, better, lines }.svg();
    Section::Figure { svg, caption: title }
}

/// Of the percentiles of a class in a phase, a line for each server.
pub(super) fn percentiles(measured: &Measurements, title: &str, phase_and_class: &str) -> Section {
    let x = Axis { label: "percentile".to_owned(), scale: Scale::Nines };
    let figure = format!("{phase_and_class}/latency by percentile");
    lines(measured, title, [x, log("latency, ms")], Better::Lower, &figure)
}

pub(super) fn linear(label: &str) -> Axis {
    Axis { label: label.to_owned(), scale: Scale::Linear }
}

pub(super) fn log(label: &str) -> Axis {
    Axis { label: label.to_owned(), scale: Scale::Log }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measurements {
        let mut measured = Measurements::new(vec!["3.2".to_owned(), "etcd".to_owned()]);
        measured.add("3.2", "calm/p99", 2.0);
        measured.add("3.2", "beside/p99", 50.0);
        measured.add_at("3.2", "rate", 1000.0, 8.0);
        measured.add_at("etcd", "rate", 0.5, 7000.0);
        measured
    }

    #[test]
    fn a_table_has_a_row_for_each_server_and_says_what_is_missing() {
        let columns = [
            Column::median("calm, ms", "calm/p99"),
            Column::times("times", "beside/p99", "calm/p99"),
        ];
        let Section::Table { columns, rows } = table(&measured(), &columns) else { panic!() };
        assert_eq!(columns, ["server", "calm, ms", "times"]);
        assert_eq!(rows, [["era 3.2", "2", "25"], ["etcd", "-", "-"]]);
    }

    #[test]
    fn a_table_by_point_has_a_column_for_each_server() {
        let table = table_by_point(&measured(), "clients", &[("puts/s", "rate")]);
        let Section::Table { columns, rows } = table else { panic!() };
        assert_eq!(columns, ["clients", "era 3.2 puts/s", "etcd puts/s"]);
        assert_eq!(rows, [["0.50", "-", "7,000"], ["1,000", "8", "-"]]);
    }

    #[test]
    fn plots_have_each_server_that_was_measured() {
        let measured = measured();
        let axes = [linear("clients"), log("puts per second")];
        let of_lines = lines(&measured, "rates", axes, Better::Higher, "rate");
        let labels = [("calm", "calm/p99"), ("beside", "beside/p99")];
        let of_bars = bars(&measured, "p99", log("p99, ms"), Better::Lower, &labels);
        for section in [of_lines, of_bars] {
            let Section::Figure { svg, .. } = section else { panic!() };
            assert!(svg.contains("era 3.2") && svg.contains("<svg"), "{svg}");
        }
    }
}
