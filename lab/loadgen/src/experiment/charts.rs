//! Draws tables and plots of [`Measurements`].

use super::measurements::Measurements;
use super::number::number;
use super::plan::Column;
use crate::page::Section;
use crate::plot::{Axis, BarGroup, Bars, Better, Line, Plot, era_colour};

/// Returns the name of a server in tables.
pub(super) fn label(server: &str) -> String {
    if server.starts_with(|first: char| first.is_ascii_digit()) {
        format!("era {server}")
    } else {
        server.to_owned()
    }
}

/// Returns a table with a row for each server.
pub(super) fn table(measured: &Measurements, columns: &[Column]) -> Section {
    let headings = columns.iter().map(|column| column[0].clone());
    let row = |server: &String| {
        let cells = columns.iter().map(|column| measured.ratio(server, &column[1..]));
        [label(server)].into_iter().chain(cells.map(shown)).collect()
    };
    Section::Table {
        columns: ["server".to_owned()].into_iter().chain(headings).collect(),
        rows: measured.servers().iter().map(row).collect(),
    }
}

/// Returns a table with a row for each point of a curve. It has all columns for each server.
pub(super) fn table_by_point(
    measured: &Measurements,
    point: &str,
    of_server: &[Column],
) -> Section {
    let mut columns = vec![point.to_owned()];
    for server in measured.servers() {
        let headings = of_server.iter().map(|column| format!("{} {}", label(server), column[0]));
        columns.extend(headings);
    }
    let points = of_server.first().map_or_else(Vec::new, |column| measured.points(&column[1]));
    let row = |at: f64| {
        let mut row = vec![number(at)];
        for server in measured.servers() {
            let cells = of_server.iter().map(|column| measured.median_at(server, &column[1], at));
            row.extend(cells.map(shown));
        }
        row
    };
    Section::Table { columns, rows: points.into_iter().map(row).collect() }
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Returns a bar chart with a group for each server, and a bar for each `(label, figure)`.
pub(super) fn bars(
    measured: &Measurements,
    title: &str,
    y: Axis,
    better: Better,
    figures: &[(String, String)],
) -> Section {
    let group = |server: &String| {
        let bar = |(label, figure): &(String, String)| {
            let value = measured.median(server, figure)?;
            Some((label.clone(), era_colour(server), value))
        };
        BarGroup { label: label(server), bars: figures.iter().filter_map(bar).collect() }
    };
    let groups = measured.servers().iter().map(group).collect();
    let svg = Bars { title: title.to_owned(), y, better, groups }.svg();
    Section::Figure { svg, caption: title.to_owned() }
}

/// Returns a plot with a line for each server, over the points of the figure.
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
