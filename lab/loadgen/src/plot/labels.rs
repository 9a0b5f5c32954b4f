//! The texts of a plot: how wide they are, and where to place labels that would overlap.

pub(super) const TITLE_CHARACTERS_MAX: usize = 56;
pub(super) const NOTE_CHARACTERS_MAX: usize = 74;
pub(super) const LABEL_CHARACTERS_MAX: usize = 22;
/// Approximate width of a character.
const CHARACTER_WIDTH: f64 = 7.2;

/// Returns a height near each wanted height, in the same order. The heights are at least `gap`
/// apart, and between `low` and `high`. If there is too little space for all labels, the gap is
/// smaller.
pub(super) fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let gaps = wanted.len().saturating_sub(1) as f64;
    let gap = if gaps > 0.0 { gap.min((high - low) / gaps) } else { gap };
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|one, other| wanted[*one].total_cmp(&wanted[*other]));

    // First the gaps below each label are subtracted from its height. After that, the only
    // condition is that heights do not decrease. Neighbours that would decrease form a group, and
    // the group gets its mean height.
    let mut together: Vec<(f64, usize)> = Vec::new();
    for (below, label) in order.iter().enumerate() {
        let (mut sum, mut count) = (wanted[*label] - gap * below as f64, 1);
        while let Some(&(sum_before, before)) = together.last() {
            if sum_before / before as f64 <= sum / count as f64 {
                break;
            }
            together.pop();
            (sum, count) = (sum + sum_before, count + before);
        }
        together.push((sum, count));
    }
    let highest = (high - gap * gaps).max(low);
    let means = together.into_iter().flat_map(|(sum, count)| {
        std::iter::repeat_n((sum / count as f64).clamp(low, highest), count)
    });
    let mut heights = vec![0.0; wanted.len()];
    for (below, (label, mean)) in order.into_iter().zip(means).enumerate() {
        heights[label] = mean + gap * below as f64;
    }
    heights
}

/// Returns the width of the longest label, after it is shortened.
pub(super) fn width_of<'a>(labels: impl Iterator<Item = &'a String>) -> f64 {
    let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    longest.min(LABEL_CHARACTERS_MAX) as f64 * CHARACTER_WIDTH
}

/// Returns a label with at most this number of characters. A longer label is cut off and ends with
/// `…`.
pub(super) fn shortened(label: &str, characters_max: usize) -> String {
    if label.chars().count() <= characters_max {
        return label.to_owned();
    }
    label.chars().take(characters_max - 1).chain(['…']).collect()
}

/// Splits a text into lines of at most this number of characters. A longer word has its own line.
pub(super) fn wrapped(text: &str, characters_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= characters_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stay_or_are_spread_around_their_mean() {
        for (wanted, gap, heights) in [
            (&[][..], 15.0, &[][..]),
            (&[50.0, 10.0, 30.0], 15.0, &[50.0, 10.0, 30.0]),
            (&[50.0, 50.0, 50.0], 10.0, &[40.0, 50.0, 60.0]),
            // Three labels that push each other away, and a fourth with enough space.
            (&[52.0, 90.0, 48.0, 50.0], 10.0, &[60.0, 90.0, 40.0, 50.0]),
            // At the edges.
            (&[99.0, 100.0], 10.0, &[90.0, 100.0]),
            (&[0.0, 0.0, 0.0], 10.0, &[0.0, 10.0, 20.0]),
            // There is too little space for all labels, so they use the largest possible gap.
            (&[3.0; 5], 50.0, &[0.0, 25.0, 50.0, 75.0, 100.0]),
        ] {
            assert_eq!(spread(wanted, gap, 0.0, 100.0), heights, "{wanted:?}");
        }
    }

    #[test]
    fn all_labels_are_apart_wherever_their_lines_end() {
        for seed in 0..200_u64 {
            let wanted: Vec<f64> = (0..seed % 12)
                .map(|label| ((seed * 7919 + label * label * 104_729) % 1000) as f64 / 4.0)
                .collect();
            let mut heights = spread(&wanted, 15.0, 0.0, 250.0);
            heights.sort_by(f64::total_cmp);
            let apart = heights.windows(2).all(|pair| pair[1] - pair[0] >= 15.0 - 1e-9);
            let inside = heights.iter().all(|height| (-1e-9..=250.0 + 1e-9).contains(height));
            assert!(apart && inside, "{wanted:?}: {heights:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_or_wrapped() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
        assert_eq!(wrapped("a title of five words", 10), ["a title of", "five words"]);
        assert!(wrapped("", 10).is_empty());
    }
}
