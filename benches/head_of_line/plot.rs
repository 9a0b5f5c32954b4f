//! The picture: latency by percentile beside the expensive read, one curve per era.
//!
//! Both axes are stretched so that the tail gets room: each step to the right is ten times rarer
//! (50 %, 90 %, 99 %, 99.9 %), each step up is ten times slower. Solid and dashed curves keep the
//! eras apart without their colours.

use std::fmt::Write as _;

use clearlane_backend::Era;

use crate::load::{Class, Load};
use crate::summary::{CURVE, Cell, Summary};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const PANEL_WIDTH: f64 = 330.0;
const PANEL_HEIGHT: f64 = 280.0;
const PANEL_TOP: f64 = 70.0;
/// The vertical axis, in microseconds.
const FROM_US: f64 = 1.0;
const TO_US: f64 = 10_000_000.0;
/// The horizontal axis ends at this percentile.
const RAREST: f64 = 0.999;

/// Draws the two panels.
pub(crate) fn draw(summary: &Summary, eras: &[Era]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"17\">Beside a looping read of 20,000 records: \
         latency by percentile, five eras</text>\n"
    );
    let panels = [(Class::Put, "put", 60.0), (Class::CheapRead, "read of 10 records", 450.0)];
    for (class, title, left) in panels {
        panel(&mut svg, summary, eras, class, title, left);
    }
    legend(&mut svg, eras, 810.0);
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, summary: &Summary, eras: &[Era], class: Class, title: &str, left: f64) {
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"56\" font-size=\"14\">{title}</text>");
    axes(svg, left);
    for era in eras {
        let cell = summary.cell(*era, Load::Expensive, class);
        if let Some(cell) = cell {
            curve(svg, cell, left);
        }
    }
}

fn axes(svg: &mut String, left: f64) {
    let right = left + PANEL_WIDTH;
    let bottom = PANEL_TOP + PANEL_HEIGHT;
    let levels = [
        (1.0, "1 µs"),
        (10.0, "10 µs"),
        (100.0, "100 µs"),
        (1e3, "1 ms"),
        (1e4, "10 ms"),
        (1e5, "100 ms"),
        (1e6, "1 s"),
        (1e7, "10 s"),
    ];
    for (us, label) in levels {
        let y = height_of(us);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\">{label}</text>",
            left - 6.0,
            y + 4.0,
        );
    }
    for (quantile, label) in
        [(0.0, "min"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")]
    {
        let x = left + offset_of(quantile);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{PANEL_TOP}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{label}</text>",
            bottom + 18.0,
        );
    }
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

fn legend(svg: &mut String, eras: &[Era], left: f64) {
    for (row, era) in eras.iter().enumerate() {
        let y = PANEL_TOP + 20.0 + row as f64 * 26.0;
        let (colour, dashes) = style(*era);
        let name = match era {
            Era::Clearlane => "clearlane".to_owned(),
            old => format!("era {old}"),
        };
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            left + 34.0,
            left + 42.0,
            y + 4.0,
        );
    }
}

/// Colours that stay apart for colour-blind readers, and a pattern of dashes for print.
fn style(era: Era) -> (&'static str, &'static str) {
    match era {
        Era::V3_0 | Era::V3_1 => ("#d55e00", "2 3"),
        Era::V3_2 => ("#e69f00", "9 3"),
        Era::V3_4 => ("#56b4e9", "9 3 2 3"),
        Era::V3_5 => ("#0072b2", "5 3"),
        Era::Clearlane => ("#009e73", "none"),
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
