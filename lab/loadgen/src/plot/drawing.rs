//! The SVG of a plot, element by element.
//!
//! Colours are variables of the style, which a dark screen sets anew. What cannot read the style
//! takes the attributes of an element: they are those of a light ground.

use std::fmt::Write as _;

use super::Colour;

const STYLE: &str = include_str!("style.css");
const GRID: &str = "#e4e5e9";
const EDGE: &str = "#5f6168";
const INK: &str = "#1c1d20";

/// Of every plot.
pub(super) const WIDTH: f64 = 520.0;

pub(super) type Point = (f64, f64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    Grid,
    Minor,
    Edge,
}

#[derive(Debug)]
pub(super) struct Drawing {
    svg: String,
}

impl Drawing {
    /// `name` is for those who hear the page read.
    pub(super) fn new(height: f64, name: &str) -> Drawing {
        let mut drawing = Drawing { svg: String::new() };
        drawing.write(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" \
             aria-label=\"{}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <style>\n{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>",
            escaped(name)
        ));
        drawing
    }

    pub(super) fn finish(self) -> String {
        self.svg + "</svg>\n"
    }

    pub(super) fn text(&mut self, class: &str, (x, y): Point, anchor: Anchor, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.write(format_args!(
            "<text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor} fill=\"{INK}\">{}</text>",
            escaped(words)
        ));
    }

    pub(super) fn rule(&mut self, rule: Rule, (x1, y1): Point, (x2, y2): Point) {
        let (class, stroke) = match rule {
            Rule::Grid => ("grid", GRID),
            Rule::Minor => ("minor", GRID),
            Rule::Edge => ("edge", EDGE),
        };
        self.write(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"{stroke}\"/>"
        ));
    }

    /// What is drawn until [`Drawing::end_series`] can have this colour.
    pub(super) fn begin_series(&mut self, Colour { light, dark }: Colour) {
        self.write(format_args!("<g class=\"series\" style=\"--light:{light};--dark:{dark}\">"));
    }

    pub(super) fn end_series(&mut self) {
        self.write(format_args!("</g>"));
    }

    pub(super) fn curve(&mut self, colour: Colour, dashes: &str, points: &[Point]) {
        self.polyline("curve", colour, dashes, points);
    }

    /// From a line to its label.
    pub(super) fn leader(&mut self, colour: Colour, points: &[Point]) {
        self.polyline("leader", colour, "", points);
    }

    fn polyline(&mut self, class: &str, colour: Colour, dashes: &str, points: &[Point]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = if dashes.is_empty() {
            String::new()
        } else {
            format!(" stroke-dasharray=\"{dashes}\"")
        };
        self.write(format_args!(
            "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"{}\"{dashes}/>",
            points.join(" "),
            colour.light
        ));
    }

    /// `words` are shown when it is pointed at.
    pub(super) fn dot(&mut self, colour: Colour, (x, y): Point, words: &str) {
        self.write(format_args!(
            "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\">\
             <title>{}</title></circle>",
            colour.light,
            escaped(words)
        ));
    }

    pub(super) fn bar(&mut self, colour: Colour, (x, y): Point, (width, height): Point) {
        self.write(format_args!(
            "<rect class=\"dot\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" fill=\"{}\"/>",
            colour.light
        ));
    }

    fn write(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.svg, "{element}");
    }
}

/// As text or as an attribute of HTML and XML. Control characters are not allowed there at all.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let text = "<a href=\"x\"> & \u{0}\n";
        assert_eq!(escaped(text), "&lt;a href=&quot;x&quot;&gt; &amp; \u{fffd}\n");
    }
}
