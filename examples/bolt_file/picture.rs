//! Draws the file as a picture, with a box for each page in the order of the file. Arrows above
//! lead from the newest meta page to the leaves, and arrows below from the other meta page. Dotted
//! arrows above lead to the checksums. The colour, the kind of border and a word show the role of a
//! page in the newest commit.

use std::fmt::Write as _;

use crate::list::{children, keys};
use crate::look::{Kind, Look};
use crate::story::{Moment, Use};

const BOX: f64 = 74.0;
const STEP: f64 = 78.0;
const LEFT: f64 = 16.0;
/// The vertical position of the boxes.
const TOP: f64 = 240.0;
const HEIGHT: f64 = 108.0;
const BOTTOM: f64 = TOP + HEIGHT;
/// The height of an arrow to the next page, and the additional height for each page in between.
const ARC: f64 = 30.0;
const ARC_STEP: f64 = 11.0;
const LEGEND: f64 = BOTTOM + 132.0;
const INK: &str = "#222222";
const BLUE: &str = "#0072b2";
const GREY: &str = "#767676";

const HATCHED: &str = "<pattern id=\"older\" width=\"7\" height=\"7\" \
                       patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
                       <rect width=\"7\" height=\"7\" fill=\"#f3f8fc\"/>\
                       <rect width=\"2\" height=\"7\" fill=\"#c3ddef\"/></pattern>";

/// How a box is drawn, and the word that explains it.
struct Style {
    fill: &'static str,
    border: &'static str,
    width: f64,
    dashes: &'static str,
    word: &'static str,
}

const WRITTEN: Style =
    Style { fill: "#fbd9a0", border: "#a85a00", width: 3.0, dashes: "", word: "written" };
const IN_USE: Style =
    Style { fill: "#ffffff", border: "#444444", width: 1.2, dashes: "", word: "as it was" };
const OLDER: Style =
    Style { fill: "url(#older)", border: BLUE, width: 1.6, dashes: "", word: "state before" };
const KEPT: Style = Style { word: "for the reader", ..OLDER };
const FREE: Style =
    Style { fill: "#f4f4f4", border: "#8a8a8a", width: 1.2, dashes: "5 3", word: "free" };
const NEVER_USED: Style =
    Style { fill: "#ffffff", border: "#b4b4b4", width: 1.0, dashes: "1.5 3", word: "not used" };

fn style(moment: &Moment, id: u64) -> Style {
    match moment.uses.get(id as usize) {
        None => NEVER_USED,
        Some(Use::Written) => WRITTEN,
        Some(Use::Unchanged) if id < 2 => Style { word: "", ..IN_USE },
        Some(Use::Unchanged) => IN_USE,
        Some(Use::Kept) => KEPT,
        Some(Use::Before) => OLDER,
        Some(Use::Free) => FREE,
    }
}

/// Draws the file after a commit. Its older meta page leads to the state of `before`.
pub(crate) fn draw(moment: &Moment, before: &Moment, title: &str) -> String {
    let look = &moment.look;
    let pages = look.bytes().len() as u64 / look.page_size();
    let width = 2.0 * LEFT + STEP * pages as f64 - (STEP - BOX);
    let height = LEGEND + 54.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"{INK}\">\n\
         <defs>{HATCHED}{}{}{}</defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"17\" font-weight=\"bold\">{title}</text>\n",
        marker("newest", INK),
        marker("other", BLUE),
        marker("sums", GREY),
    );
    arcs(&mut svg, look, Side::Above);
    arcs(&mut svg, &before.look, Side::Below);
    (0..pages).for_each(|id| page(&mut svg, moment, before, id));
    notes(&mut svg, moment, before);
    legend(&mut svg, moment);
    svg + "</svg>\n"
}

fn marker(id: &str, colour: &str) -> String {
    format!(
        "<marker id=\"{id}\" markerWidth=\"8\" markerHeight=\"7\" refX=\"7\" refY=\"3.5\" \
         orient=\"auto\"><path d=\"M0,0 L8,3.5 L0,7 z\" fill=\"{colour}\"/></marker>"
    )
}

fn left_of(id: u64) -> f64 {
    LEFT + STEP * id as f64
}

/// Returns the lines of a box: the kind of the page, and a description of its contents.
fn lines(look: &Look, id: u64) -> Vec<String> {
    if let Some(meta) = look.metas().iter().find(|meta| meta.place == id) {
        return vec!["meta".to_owned(), format!("txid {}", meta.txid)];
    }
    let page = look.page(id);
    let mut lines = match &page.kind {
        Kind::Overflow(of) => vec!["overflow".to_owned(), format!("of page {of}")],
        Kind::Table => vec!["checksums".to_owned(), format!("up to {}", id - 1)],
        Kind::TableRoot => vec!["checksums".to_owned(), "root".to_owned()],
        Kind::Free => Vec::new(),
        Kind::Leaf if page.tree.is_empty() => {
            let stored = page.elements.iter().filter_map(|element| {
                let name = String::from_utf8_lossy(&element.key);
                element.root().map(|root| format!("{name} ▶ {root}"))
            });
            let inline = page.elements.iter().filter(|element| element.is_inline()).count();
            let mut lines = vec!["buckets".to_owned()];
            lines.extend(stored);
            lines.push(format!("{inline} inline"));
            lines
        }
        Kind::Leaf => vec![format!("leaf of {}", page.tree), keys(page)],
        Kind::Branch => {
            let mut lines = vec!["branch".to_owned()];
            lines.extend(children(page));
            lines
        }
    };
    // A longer list ends with dots.
    if lines.len() > 4 {
        lines.truncate(3);
        lines.push("…".to_owned());
    }
    lines
}

fn page(svg: &mut String, moment: &Moment, before: &Moment, id: u64) {
    let style = style(moment, id);
    let (x, centre) = (left_of(id), left_of(id) + BOX / 2.0);
    let dashes = match style.dashes {
        "" => String::new(),
        dashes => format!(" stroke-dasharray=\"{dashes}\""),
    };
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{TOP}\" width=\"{BOX}\" height=\"{HEIGHT}\" rx=\"3\" fill=\"{}\" \
         stroke=\"{}\" stroke-width=\"{}\"{dashes}/>",
        style.fill, style.border, style.width
    );
    let mut text = |y: f64, attributes: &str, words: &str| {
        let _ = writeln!(
            svg,
            "<text x=\"{centre}\" y=\"{y}\" text-anchor=\"middle\"{attributes}>{words}</text>"
        );
    };
    text(TOP + 19.0, " font-size=\"15\" font-weight=\"bold\"", &id.to_string());
    text(TOP + HEIGHT - 8.0, " font-size=\"10\" font-style=\"italic\"", style.word);
    // The contents of an old page are shown only if a state still leads to it.
    let shown = match moment.uses.get(id as usize) {
        None | Some(Use::Free) => Vec::new(),
        Some(Use::Kept | Use::Before) => lines(&before.look, id),
        Some(_) => lines(&moment.look, id),
    };
    for (line, row) in shown.iter().zip(0..) {
        let size = if line.chars().count() > 11 { "10" } else { "11" };
        text(TOP + 38.0 + 14.0 * f64::from(row), &format!(" font-size=\"{size}\""), line);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

/// Draws arrows from the newest meta page of `look` to its leaves. Above the boxes, also draws
/// arrows to the checksums.
fn arcs(svg: &mut String, look: &Look, side: Side) {
    let meta = look.newest();
    let (tree, mark) = match side {
        Side::Above => (INK, "newest"),
        Side::Below => (BLUE, "other"),
    };
    let mut draw = |from: u64, to: u64, colour: &str, mark: &str, dashes: &str| {
        let (is_right, distance) = (to > from, from.abs_diff(to) as f64);
        let (out, into) = if is_right { (0.72, 0.44) } else { (0.28, 0.56) };
        let (x1, x2) = (left_of(from) + BOX * out, left_of(to) + BOX * into);
        let height = ARC + ARC_STEP * (distance - 1.0);
        let (y, top) = match side {
            Side::Above => (TOP - 2.0, TOP - height / 0.75),
            Side::Below => (BOTTOM + 2.0, BOTTOM + height / 0.75),
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{x1:.1},{y} C{x1:.1},{top:.1} {x2:.1},{top:.1} {x2:.1},{y}\" fill=\"none\" \
             stroke=\"{colour}\" stroke-width=\"1.4\"{dashes} marker-end=\"url(#{mark})\"/>"
        );
    };
    if side == Side::Above {
        let dashes = " stroke-dasharray=\"2 3\"";
        draw(meta.place, meta.table_root, GREY, "sums", dashes);
        draw(meta.table_root, look.table_page(), GREY, "sums", dashes);
    }
    let dashes = if side == Side::Above { "" } else { " stroke-dasharray=\"7 3\"" };
    draw(meta.place, meta.root, tree, mark, dashes);
    let mut next = vec![meta.root];
    while let Some(id) = next.pop() {
        for element in &look.page(id).elements {
            if let Some(child) = element.child.or(element.root()) {
                draw(id, child, tree, mark, dashes);
                next.push(child);
            }
        }
    }
}

fn notes(svg: &mut String, moment: &Moment, before: &Moment) {
    let (newest, other) = (moment.txid(), before.txid());
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"48\" font-size=\"12\" fill=\"#555555\">arrows above: the newest state, of txid \
         {newest}; dotted: its checksums</text>"
    );
    let reader = match moment.reader {
        Some(_) => ", which an open snapshot shows",
        None => ", which no snapshot shows",
    };
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"12\" fill=\"{BLUE}\">arrows below: the state of txid \
         {other}{reader}</text>",
        LEGEND - 8.0
    );
}

fn legend(svg: &mut String, moment: &Moment) {
    let older = match moment.reader {
        Some(_) => (KEPT, "only the snapshot needs it"),
        None => (OLDER, "only the state before needs it"),
    };
    let written = format!("written by txid {}", moment.txid());
    let entries = [
        (WRITTEN, written.as_str()),
        (IN_USE, "in use, as it was"),
        (older.0, older.1),
        (FREE, "free: the next commit may write it"),
        (NEVER_USED, "behind the high-water mark"),
    ];
    let mut x = LEFT + 1.5;
    for (style, words) in entries {
        let dashes = match style.dashes {
            "" => String::new(),
            dashes => format!(" stroke-dasharray=\"{dashes}\""),
        };
        let (y, text_y) = (LEGEND + 14.0, LEGEND + 28.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"26\" height=\"18\" rx=\"2\" fill=\"{}\" \
             stroke=\"{}\" stroke-width=\"{}\"{dashes}/><text x=\"{}\" y=\"{text_y}\" \
             font-size=\"12\">{words}</text>",
            style.fill,
            style.border,
            style.width,
            x + 34.0
        );
        x += 58.0 + 6.3 * words.len() as f64;
    }
}
