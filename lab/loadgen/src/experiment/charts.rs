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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Scale;

    fn measured() -> Measurements {
        let mut measured = Measurements::new(vec!["3.2".to_owned(), "etcd".to_owned()]);
        measured.add("3.2", "calm/p99", 2.0);
        measured.add("3.2", "beside/p99", 50.0);
        measured.add_at("3.2", "rate", 1000.0, 8.0);
        measured.add_at("etcd", "rate", 0.5, 7000.0);
        measured
    }

    fn column(words: &[&str]) -> Column {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_table_has_a_row_for_each_server_and_says_what_is_missing() {
        let columns =
            [column(&["calm, ms", "calm/p99"]), column(&["times", "beside/p99", "calm/p99"])];
        let Section::Table { columns, rows } = table(&measured(), &columns) else { panic!() };
        assert_eq!(columns, ["server", "calm, ms", "times"]);
        assert_eq!(rows, [["era 3.2", "2", "25"], ["etcd", "-", "-"]]);
    }

    #[test]
    fn a_table_by_point_has_a_column_for_each_server() {
        let table = table_by_point(&measured(), "clients", &[column(&["puts/s", "rate"])]);
        let Section::Table { columns, rows } = table else { panic!() };
        assert_eq!(columns, ["clients", "era 3.2 puts/s", "etcd puts/s"]);
        assert_eq!(rows, [["0.50", "-", "7,000"], ["1,000", "8", "-"]]);
    }

    #[test]
    fn plots_have_each_server_that_was_measured() {
        let measured = measured();
        let axis = |label: &str| Axis::new(label, Scale::Log);
        let axes = [Axis::new("clients", Scale::Linear), axis("puts per second")];
        let of_lines = lines(&measured, "rates", axes, Better::Higher, "rate");
        let labels = ["calm", "beside"].map(|phase| (phase.to_owned(), format!("{phase}/p99")));
        let of_bars = bars(&measured, "p99", axis("p99, ms"), Better::Lower, &labels);
        for section in [of_lines, of_bars] {
            let Section::Figure { svg, .. } = section else { panic!() };
            assert!(svg.contains("era 3.2") && svg.contains("<svg"), "{svg}");
        }
    }
}
