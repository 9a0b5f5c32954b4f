//! Curves over a number, in a terminal and as a picture.
//!
//! Latencies of one sweep easily lie three powers of ten apart. Where they do, the axis shows
//! powers; an axis of equal distances would show one curve, and a floor.

use std::fmt::Write as _;

use crate::sweep::{Point, Sweep};

/// Marks of curves, in a terminal: they differ without a colour.
const MARKS: [char; 6] = ['o', 'x', '+', '*', '#', '@'];
/// Colours of curves, as pictures of timelines have them, and for eyes that see no red or no green.
const COLOURS: [&str; 6] = ["#b8322a", "#333333", "#e0a83a", "#2b8a5f", "#8d6bb8", "#1f5fa8"];
/// With less between the lowest and the highest, an axis of equal distances shows more.
const POWERS_FROM: f64 = 20.0;

/// From a number to a place between 0 and 1.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: f64,
    to: f64,
    is_of_powers: bool,
}

impl Axis {
    fn over(numbers: impl Iterator<Item = f64> + Clone) -> Option<Axis> {
        let lowest = numbers.clone().min_by(f64::total_cmp)?;
        let highest = numbers.max_by(f64::total_cmp)?;
        let is_of_powers = lowest > 0.0 && highest / lowest >= POWERS_FROM;
        Some(Axis {
            from: if is_of_powers { lowest } else { lowest.min(0.0) },
            to: highest,
            is_of_powers,
        })
    }

    fn place(self, number: f64) -> f64 {
        let at = |number: f64| if self.is_of_powers { number.ln() } else { number };
        let whole = at(self.to) - at(self.from);
        if whole > 0.0 { (at(number) - at(self.from)) / whole } else { 0.0 }
    }

    fn number(self, place: f64) -> f64 {
        match self.is_of_powers {
            true => self.from * (self.to / self.from).powf(place),
            false => self.from + (self.to - self.from) * place,
        }
    }
}

/// Where the points of a sweep lie.
struct Plot<'s> {
    sweep: &'s Sweep,
    y: Axis,
}

impl<'s> Plot<'s> {
    /// None if there is no point.
    fn of(sweep: &'s Sweep) -> Option<Plot<'s>> {
        let all = 0..sweep.eras.len();
        let latencies = all.flat_map(|era| curve(sweep, era)).map(|(_, _, ms)| ms);
        Some(Plot { sweep, y: Axis::over(latencies)? })
    }

    fn title(&self) -> String {
        let Sweep { class, metric, .. } = self.sweep;
        let powers = if self.y.is_of_powers { ", by powers" } else { "" };
        format!("{} of {class}, ms{powers}", metric.0)
    }
}

/// The points of an era that are there: where they stand, from 0 to 1, the value, and the latency.
/// Values stand at equal distances, whether they grow by sums or by factors.
fn curve(sweep: &Sweep, era: usize) -> impl Iterator<Item = (f64, f64, f64)> + Clone {
    let last = sweep.rows.len().saturating_sub(1).max(1) as f64;
    let rows = sweep.rows.iter().enumerate();
    rows.filter_map(move |(row, (value, points))| match points.get(era) {
        Some(Point::Latency(Some(ms))) => Some((row as f64 / last, *value, *ms)),
        _ => None,
    })
}

/// The first value and the last.
fn ends(sweep: &Sweep) -> [f64; 2] {
    [sweep.rows.first(), sweep.rows.last()].map(|row| row.map_or(0.0, |(value, _)| *value))
}

/// In characters: so many columns and rows for the curves, and the axes beside them.
pub fn terminal(sweep: &Sweep, columns: usize, rows: usize) -> String {
    let Some(plot) = Plot::of(sweep) else { return String::new() };
    let mut cells = vec![vec![' '; columns]; rows];
    // The newest is drawn last, so that it is seen where curves meet.
    for (era, mark) in (0..sweep.eras.len()).zip(MARKS) {
        for (place, _, ms) in curve(sweep, era) {
            let column = (place * (columns - 1) as f64).round() as usize;
            let row = (plot.y.place(ms) * (rows - 1) as f64).round() as usize;
            cells[rows - 1 - row][column] = mark;
        }
    }
    let keys = sweep.eras.iter().zip(MARKS).map(|(era, mark)| format!("{mark} {era}"));
    let mut drawn = format!("{}   {}\n", plot.title(), keys.collect::<Vec<_>>().join("   "));
    for (row, cells) in cells.into_iter().enumerate() {
        let is_labelled = row % 4 == 0 || row == rows - 1;
        let label = plot.y.number((rows - 1 - row) as f64 / (rows - 1) as f64);
        let label = if is_labelled { short(label) } else { String::new() };
        let line = format!("{label:>9} │{}", cells.into_iter().collect::<String>());
        let _ = writeln!(drawn, "{}", line.trim_end());
    }
    let _ = writeln!(drawn, "{:>9} └{}", "", "─".repeat(columns));
    let [from, to] = ends(sweep).map(short);
    let between = columns.saturating_sub(from.len() + to.len());
    let middle = format!("{:^between$}", sweep.parameter);
    let _ = writeln!(drawn, "{:>9}  {from}{middle}{to}", "");
    drawn
}

fn short(number: f64) -> String {
    match number {
        n if n >= 100.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n if n >= 1.0 => format!("{n:.1}"),
        n => format!("{n:.3}"),
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;

/// As a picture.
pub fn svg(sweep: &Sweep) -> String {
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    if let Some(plot) = Plot::of(sweep) {
        axes(&mut picture, &plot);
        for (era, colour) in (0..sweep.eras.len()).zip(COLOURS) {
            draw_curve(&mut picture, &plot, era, colour);
        }
    }
    picture + "</svg>\n"
}

fn at(plot: &Plot<'_>, place: f64, ms: f64) -> (f64, f64) {
    let x = LEFT + place * (WIDTH - LEFT - RIGHT);
    let y = HEIGHT - BOTTOM - plot.y.place(ms) * (HEIGHT - TOP - BOTTOM);
    (x, y)
}

fn axes(picture: &mut String, plot: &Plot<'_>) {
    let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let _ = writeln!(picture, r#"<text x="{LEFT}" y="20">{}</text>"#, escaped(&plot.title()));
    let _ = writeln!(
        picture,
        r##"<path d="M{LEFT} {TOP}V{floor}H{end}" fill="none" stroke="#333333"/>"##
    );
    for tick in 0..5 {
        let ms = plot.y.number(f64::from(tick) / 4.0);
        let (_, y) = at(plot, 0.0, ms);
        let _ = writeln!(
            picture,
            r##"<path d="M{LEFT} {y:.1}H{end}" stroke="#dddddd"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
            LEFT - 6.0,
            y + 4.0,
            short(ms)
        );
    }
    for ((place, anchor), value) in [(0.0, "start"), (1.0, "end")].into_iter().zip(ends(plot.sweep))
    {
        let (x, _) = at(plot, place, plot.y.from);
        let (y, value) = (floor + 18.0, short(value));
        let _ = writeln!(
            picture,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{value}</text>"#
        );
    }
    let _ = writeln!(
        picture,
        r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        f64::midpoint(LEFT, end),
        floor + 36.0,
        escaped(&plot.sweep.parameter)
    );
}

fn draw_curve(picture: &mut String, plot: &Plot<'_>, era: usize, colour: &str) {
    let points: Vec<_> = curve(plot.sweep, era).collect();
    let places = points.iter().map(|(place, _, ms)| at(plot, *place, *ms));
    let line = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
    let _ = writeln!(
        picture,
        r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>"#
    );
    let parameter = escaped(&plot.sweep.parameter);
    let name = plot.sweep.eras[era].name();
    for (place, value, ms) in &points {
        let (x, y) = at(plot, *place, *ms);
        let _ = writeln!(
            picture,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"><title>{name}, {parameter} = {value}: {ms:.2} ms</title></circle>"#
        );
    }
    let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 20.0 * era as f64 + 8.0);
    let _ = writeln!(
        picture,
        r#"<circle cx="{x}" cy="{:.1}" r="4" fill="{colour}"/><text x="{:.1}" y="{y:.1}">{name}</text>"#,
        y - 4.0,
        x + 10.0
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
