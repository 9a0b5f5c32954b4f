//! "Did you mean": the known word that is most like one that is not known.

/// Of Jaro's measure, which is 1 for equal words.
const SIMILARITY_MIN: f64 = 0.75;
/// No known word is nearly so long.
const WORD_BYTES_MAX: usize = 100;

/// A question behind a semicolon, or nothing. `show` writes a known word as a user would.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    show: impl Fn(&str) -> String,
) -> String {
    if word.len() > WORD_BYTES_MAX {
        return String::new();
    }
    // Most flags that had this before etcd 3.6 have lost it.
    let word = word.strip_prefix("experimental-").unwrap_or(word);
    let scored = known.into_iter().map(|known| (strsim::jaro(word, known), known));
    let mut similar: Vec<_> = scored.filter(|(score, _)| *score > SIMILARITY_MIN).collect();
    similar.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    match similar[..] {
        // Of two that are equally similar, each would be a guess.
        [(best, _), (next, _), ..] if next >= best => String::new(),
        [(_, known), ..] => format!("; did you mean {}?", show(known)),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table;

    #[test]
    fn a_misspelt_flag_is_recognized() {
        for (word, wanted) in [
            ("nmae", "; did you mean name?"),
            ("listen-client-url", "; did you mean listen-client-urls?"),
            ("datadir", "; did you mean data-dir?"),
            ("experimental-corrupt-check-time", "; did you mean corrupt-check-time?"),
            ("bogus", ""),
            ("x", ""),
            ("discovery-keep-time", "; did you mean discovery-keepalive-time?"),
            ("", ""),
        ] {
            let known = table::all().map(|flag| flag.name);
            assert_eq!(did_you_mean(word, known, str::to_owned), wanted, "{word}");
        }
        assert_eq!(did_you_mean("3.3", ["3.0", "3.1", "3.2"], str::to_owned), "");
        let long = "name".repeat(1_000_000);
        assert_eq!(did_you_mean(&long, ["name"], str::to_owned), "");
    }
}
