//! The colour of each era in every picture: plots, timelines, pages.
//!
//! On the same background, any two colours differ clearly, even for a reader whose eyes lack one
//! kind of cone. Each colour has a contrast of at least 3 to 1 against its background.

/// One colour for a white background, and one for a dark background.
pub type ColourPair = (&'static str, &'static str);

/// The colours of the eras, and of the servers that they are compared with.
const COLOURS: [(&str, ColourPair); 8] = [
    ("3.0", ("#5e1900", "#d94f1e")),
    ("3.1", ("#a84300", "#e8ab78")),
    ("3.2", ("#c48500", "#f6ecc4")),
    ("3.4", ("#1263b0", "#b5d8ff")),
    ("3.5", ("#08234f", "#6a93f7")),
    ("clearlane", ("#1ba56c", "#1c8a58")),
    ("etcd", ("#ea45ea", "#c437b4")),
    ("redis", ("#525252", "#9f9f9f")),
];

/// Returns the colours of an era, of `etcd` or of `redis`; `None` for any other name.
pub fn era_colour(name: &str) -> Option<ColourPair> {
    COLOURS.iter().find(|(known, _)| *known == name).map(|(_, colours)| *colours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices that turn linear red, green and blue into the colours that a reader sees: first a
    /// reader with all kinds of cones, then readers who lack one kind (Machado, Oliveira and
    /// Fernandes 2009, at full severity).
    const VISIONS: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.01182, 0.04294, 0.968_881],
        ],
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.3039],
        ],
    ];
    const GROUNDS: [&str; 2] = ["#ffffff", "#14161a"];
    const CONTRAST_MIN: f64 = 3.0;
    /// Minimum distance of two colours in CIE L*a*b*. If two colours are side by side, a distance
    /// of 2.3 is just noticeable.
    const DISTANCE_MIN: f64 = 18.0;

    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let part = u8::from_str_radix(&colour[at..at + 2], 16).expect("#rrggbb");
            let part = f64::from(part) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn product(matrix: [[f64; 3]; 3], [r, g, b]: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| (row[0] * r + row[1] * g + row[2] * b).clamp(0.0, 1.0))
    }

    fn luminance([r, g, b]: [f64; 3]) -> f64 {
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn lab([r, g, b]: [f64; 3]) -> [f64; 3] {
        let x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505;
        let z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089;
        let root = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let [x, y, z] = [x, luminance([r, g, b]), z].map(root);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(one: &str, other: &str, vision: [[f64; 3]; 3]) -> f64 {
        let [one, other] = [one, other].map(|colour| lab(product(vision, linear(colour))));
        (0..3).map(|at| (one[at] - other[at]).powi(2)).sum::<f64>().sqrt()
    }

    fn pick((light, dark): ColourPair, ground: usize) -> &'static str {
        [light, dark][ground]
    }

    #[test]
    fn every_two_eras_differ_for_every_reader() {
        for (place, (name, colours)) in COLOURS.iter().enumerate() {
            for (other, others) in &COLOURS[..place] {
                for (ground, vision) in (0..2).flat_map(|ground| VISIONS.map(|v| (ground, v))) {
                    let distance = distance(pick(*colours, ground), pick(*others, ground), vision);
                    assert!(distance >= DISTANCE_MIN, "{name} and {other}: {distance}, {vision:?}");
                }
            }
        }
    }

    #[test]
    fn each_stands_out_from_its_ground() {
        for (name, colours) in COLOURS {
            for (number, ground) in GROUNDS.into_iter().enumerate() {
                let [one, other] =
                    [pick(colours, number), ground].map(|it| luminance(linear(it)) + 0.05);
                let contrast = one.max(other) / one.min(other);
                assert!(contrast >= CONTRAST_MIN, "{name} on {ground}: {contrast}");
            }
        }
        assert_eq!(era_colour("3.3"), None);
    }
}
