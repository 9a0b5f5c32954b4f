//! The picture: latency by percentile during the expensive read, with one curve for each era.
//!
//! Both axes are logarithmic, so that the tail is visible. Latencies to the right are rarer (50 %,
//! 90 %, 99 %, 99.9 %), and each step up is ten times slower. Solid and dashed curves distinguish
//! the eras without colours. The title and the labels are for readers who do not know the bench.

use std::fmt::Write as _;

use clearlane_backend::Era;
use clearlane_contention::era_colours::era_colour;

use crate::bench_config::BenchConfig;
use crate::load::{Class, Load};
use crate::summary::{CURVE, Cell, Summary};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 470.0;
const PANEL_WIDTH: f64 = 310.0;
const PANEL_HEIGHT: f64 = 290.0;
const PANEL_TOP: f64 = 78.0;
const PANEL_BOTTOM: f64 = PANEL_TOP + PANEL_HEIGHT;
const LEGEND_LEFT: f64 = 770.0;
/// The range of the vertical axis, in microseconds.
const FROM_US: f64 = 1.0;
const TO_US: f64 = 10_000_000.0;
/// The highest percentile on the horizontal axis.
const RAREST: f64 = 0.999;
/// The percentile at which values are printed.
const NAMED: f64 = 0.99;

/// Draws the two panels.
pub(crate) fn draw(summary: &Summary, settings: &BenchConfig) -> String {
    let eras = &settings.eras[..];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"18\" font-weight=\"bold\">How long a request takes \
         while another one reads {}, again and again</text>\n",
        settings.expensive_read
    );
    let panels = [(Class::Put, "a put", 70.0), (Class::CheapRead, "a read of 10 records", 440.0)];
    for (class, title, left) in panels {
        panel(&mut svg, summary, eras, class, title, left);
    }
    legend(&mut svg, eras);
    caption(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn caption(svg: &mut String) {
    let lines = [
        "Where a curve crosses the line “99 %”, it shows within what time 99 of 100 requests \
         were answered;",
        "lower is better, and each horizontal line is ten times as long as the one below it.",
    ];
    for (line, y) in lines.iter().zip([HEIGHT - 30.0, HEIGHT - 12.0]) {
        let _ = writeln!(svg, "<text x=\"20\" y=\"{y}\" fill=\"#555\">{line}</text>");
    }
}

fn panel(svg: &mut String, summary: &Summary, eras: &[Era], class: Class, title: &str, left: f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{title}</text>",
        PANEL_TOP - 14.0,
    );
    axes(svg, left);
    let cell_of = |era: &Era| summary.cell(*era, Load::Expensive, class);
    for cell in eras.iter().filter_map(cell_of) {
        curve(svg, cell, left);
    }
    let slowness = |cell: &&Cell| cell.latency_us(NAMED);
    let slowest =
        eras.iter().filter_map(cell_of).max_by(|a, b| slowness(a).total_cmp(&slowness(b)));
    let named = [(slowest, -10.0), (cell_of(&Era::Clearlane), 22.0)];
    for (cell, below) in named {
        if let Some(cell) = cell {
            value(svg, cell, left, below);
        }
    }
}

/// Draws a dot on the curve, with its value.
fn value(svg: &mut String, cell: &Cell, left: f64, below: f64) {
    let us = cell.latency_us(NAMED);
    let (x, y) = (left + offset_of(NAMED), height_of(us));
    let (colour, _) = style(cell.era);
    let _ = writeln!(
        svg,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"bold\" fill=\"{colour}\">{}</text>",
        x + 6.0,
        y + below,
        readable_time(us),
    );
}

fn axes(svg: &mut String, left: f64) {
    let right = left + PANEL_WIDTH;
    let decades = std::iter::successors(Some(FROM_US), |us| Some(us * 10.0));
    for us in decades.take_while(|us| *us <= TO_US) {
        let y = height_of(us);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"12\">{}</text>",
            left - 6.0,
            y + 4.0,
            readable_time(us),
        );
    }
    for (quantile, label) in
        [(0.0, ""), (0.5, "50 %"), (0.9, "90 %"), (NAMED, "99 %"), (RAREST, "99.9 %")]
    {
        let x = left + offset_of(quantile);
        let colour = if quantile == NAMED { "#888" } else { "#eee" };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{PANEL_TOP}\" y2=\"{PANEL_BOTTOM}\" \
             stroke=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\">\
             {label}</text>",
            PANEL_BOTTOM + 18.0,
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">\
         share of requests answered by then</text>",
        left + PANEL_WIDTH / 2.0,
        PANEL_BOTTOM + 38.0,
    );
}

fn curve(svg: &mut String, cell: &Cell, left: f64) {
    let points: Vec<String> = CURVE
        .into_iter()
        .filter(|quantile| *quantile <= RAREST)
        .map(|quantile| {
            let (x, y) = (left + offset_of(quantile), height_of(cell.latency_us(quantile)));
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let (colour, dashes) = style(cell.era);
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" \
         stroke-dasharray=\"{dashes}\"/>",
        points.join(" "),
    );
}

fn legend(svg: &mut String, eras: &[Era]) {
    for (row, era) in eras.iter().enumerate() {
        let y = PANEL_TOP + 14.0 + row as f64 * 50.0;
        let (colour, dashes) = style(*era);
        let (name, how) = words(*era);
        let text = LEGEND_LEFT + 42.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{LEGEND_LEFT}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>\
             <text x=\"{text:.1}\" y=\"{:.1}\" font-weight=\"bold\">{name}</text>\
             <text x=\"{text:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"#555\">{how}</text>",
            LEGEND_LEFT + 34.0,
            y + 4.0,
            y + 21.0,
        );
    }
}

/// Returns the name of an era in the picture, and a few words about the locks of its reads.
fn words(era: Era) -> (&'static str, &'static str) {
    match era {
        Era::V3_0 => ("as etcd 3.0", "one lock for everything"),
        Era::V3_1 => ("as etcd 3.1", "one lock for everything"),
        Era::V3_2 => ("as etcd 3.2", "reads share a lock"),
        Era::V3_4 => ("as etcd 3.4", "each read makes a copy"),
        Era::V3_5 => ("as etcd 3.5", "reads share a copy"),
        Era::Clearlane => ("Clearlane", "a read takes no lock"),
    }
}

/// Returns the colour of an era, and a pattern of dashes for print.
fn style(era: Era) -> (&'static str, &'static str) {
    let dashes = match era {
        Era::V3_0 | Era::V3_1 => "2 3",
        Era::V3_2 => "9 3",
        Era::V3_4 => "9 3 2 3",
        Era::V3_5 => "5 3",
        Era::Clearlane => "none",
    };
    (era_colour(era.name()).map_or("#222", |(light, _)| light), dashes)
}

/// Formats a time in a suitable unit. A number below 10 has one digit after the decimal point,
/// unless it is less than 0.05 above a whole number. Other numbers are rounded to whole numbers.
pub(crate) fn readable_time(us: f64) -> String {
    let (number, unit) = match us {
        ..1e3 => (us, "µs"),
        ..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let is_whole = number.fract() < 0.05;
    if number < 10.0 && !is_whole {
        format!("{number:.1} {unit}")
    } else {
        format!("{number:.0} {unit}")
    }
}

fn offset_of(quantile: f64) -> f64 {
    let rarity = |quantile: f64| -(1.0 - quantile).log10();
    PANEL_WIDTH * rarity(quantile) / rarity(RAREST)
}

fn height_of(us: f64) -> f64 {
    let share = (us.clamp(FROM_US, TO_US) / FROM_US).log10() / (TO_US / FROM_US).log10();
    PANEL_TOP + PANEL_HEIGHT * (1.0 - share)
}
