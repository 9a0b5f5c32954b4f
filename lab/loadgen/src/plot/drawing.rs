//! Writes the SVG of a plot, element by element.
//!
//! Colours are variables of the style sheet, which have different values on a dark screen. A
//! program that cannot read the style uses the attributes of the elements, which have the colours
//! for a light background.

use std::fmt::Write as _;

use itertools::Itertools as _;

use super::Colour;

const STYLE: &str = include_str!("style.css");
const GRID: &str = "#e4e5e9";
const EDGE: &str = "#5f6168";
const INK: &str = "#1c1d20";

/// The width of every plot.
pub(super) const WIDTH: f64 = 520.0;

pub(super) type Point = (f64, f64);

/// These constants select the part of a text that is at its coordinates: its start, middle or end.
pub(super) const START: &str = "";
pub(super) const MIDDLE: &str = "middle";
pub(super) const END: &str = "end";

#[derive(Debug)]
pub(super) struct Drawing {
    svg: String,
}

impl Drawing {
    /// Starts a drawing. `name` is for screen readers.
    pub(super) fn new(height: f64, name: &str) -> Drawing {
        let name = escaped(name);
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" \
             aria-label=\"{name}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <style>\n{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        Drawing { svg }
    }

    pub(super) fn finish(self) -> String {
        self.svg + "</svg>\n"
    }

    pub(super) fn text(&mut self, class: &str, (x, y): Point, anchor: &str, words: &str) {
        let (class, anchor) = (attribute("class", class), attribute("text-anchor", anchor));
        let words = escaped(words);
        self.write(format_args!(
            "<text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor} fill=\"{INK}\">{words}</text>"
        ));
    }

    /// Draws a line of the frame. The class is `grid`, `minor` for a minor tick, or `edge`.
    pub(super) fn rule(&mut self, class: &str, [(x1, y1), (x2, y2)]: [Point; 2]) {
        let stroke = if class == "edge" { EDGE } else { GRID };
        self.write(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"{stroke}\"/>"
        ));
    }

    /// Draws the elements of one line or bar, which all have this colour.
    pub(super) fn series(&mut self, colour: Colour, draw: impl FnOnce(&mut Drawing)) {
        let Colour { light, dark } = colour;
        self.write(format_args!("<g class=\"series\" style=\"--light:{light};--dark:{dark}\">"));
        draw(self);
        self.write(format_args!("</g>"));
    }

    /// Draws a line. The class is `curve`, or `leader` for a line from a curve to its label.
    pub(super) fn polyline(&mut self, class: &str, colour: Colour, dashes: &str, points: &[Point]) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).join(" ");
        let (stroke, dashes) = (colour.light, attribute("stroke-dasharray", dashes));
        self.write(format_args!(
            "<polyline class=\"{class}\" points=\"{points}\" fill=\"none\" stroke=\"{stroke}\"{dashes}/>"
        ));
    }

    /// Draws a dot. `words` are shown when the pointer is over the dot.
    pub(super) fn dot(&mut self, colour: Colour, (x, y): Point, words: &str) {
        let (fill, words) = (colour.light, escaped(words));
        self.write(format_args!(
            "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\">\
             <title>{words}</title></circle>"
        ));
    }

    pub(super) fn bar(&mut self, colour: Colour, (x, y): Point, (width, height): Point) {
        let fill = colour.light;
        self.write(format_args!(
            "<rect class=\"dot\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    fn write(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.svg, "{element}");
    }
}

/// Returns an attribute, or nothing for an empty value.
fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{value}\"") }
}

/// Escapes a text for HTML and XML, as content or as an attribute. Characters that are not allowed
/// there, such as most control characters, are replaced.
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
