//! Colours of lines and bars: the colours of the eras, and a few others for other names.

use clearlane_contention::era_colours;

/// Two variants of a colour, for a light and for a dark background, as `#rrggbb`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Colour {
    pub light: &'static str,
    pub dark: &'static str,
}

/// Colours for names without a fixed colour. No era has one of these hues.
const PALETTE: [Colour; 5] = [
    Colour { light: "#0086a3", dark: "#35c6d6" },
    Colour { light: "#cc1038", dark: "#ff6b81" },
    Colour { light: "#7a8500", dark: "#b9c53a" },
    Colour { light: "#7a3fd0", dark: "#b49aff" },
    Colour { light: "#a0657a", dark: "#e6a8bd" },
];

/// Returns the colour for a name. An era (`3.2` or `era 3.2`), `clearlane`, `etcd` and `redis` have
/// fixed colours. Any other name gets one of a few colours, always the same one.
pub fn era_colour(name: &str) -> Colour {
    own_colour(name).unwrap_or_else(|| {
        let sum = name.bytes().fold(0_usize, |sum, byte| sum * 31 % 1009 + usize::from(byte));
        PALETTE[sum % PALETTE.len()]
    })
}

/// Like [`era_colour`], but names without a fixed colour get different colours. If there are more
/// such names than colours, the colours repeat.
pub fn distinct_colours<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Colour> {
    let mut others = PALETTE.into_iter().cycle();
    let choose = |name| own_colour(name).or_else(|| others.next());
    names.into_iter().filter_map(choose).collect()
}

fn own_colour(name: &str) -> Option<Colour> {
    let era = name.strip_prefix("era ").unwrap_or(name);
    era_colours::era_colour(era).map(|(light, dark)| Colour { light, dark })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_colour_of_their_own_get_different_ones() {
        let colours = distinct_colours(["before", "era 3.2", "after", "3.2"]);
        assert_eq!((colours[1], colours[3]), (era_colour("3.2"), era_colour("3.2")));
        assert_ne!(colours[0], colours[2]);
        assert_eq!(distinct_colours(["x"; 20]).len(), 20);
        assert_eq!(era_colour("mine"), era_colour("mine"));
        assert_ne!(era_colour("3.2"), era_colour("clearlane"));
    }
}
