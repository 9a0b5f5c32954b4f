//! The suggestion "did you mean": the known word that is most similar to an unknown one.

/// The similarity that a suggested word must exceed, in Jaro's measure, which is 1 for equal words.
const SIMILARITY_MIN: f64 = 0.75;
/// Maximum length of a word that gets a suggestion. All known words are much shorter.
const WORD_BYTES_MAX: usize = 100;

/// Returns text such as `; did you mean name?`, or empty text if no word is similar or two words
/// are equally similar. `show` formats a known word as a user would write it.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    show: impl Fn(&str) -> String,
) -> String {
    if word.len() > WORD_BYTES_MAX {
        return String::new();
    }
    // etcd 3.6 removed this prefix from most of the flags that had it.
    let word = word.strip_prefix("experimental-").unwrap_or(word);
    let scored = known.into_iter().map(|known| (strsim::jaro(word, known), known));
    let mut similar: Vec<_> = scored.filter(|(score, _)| *score > SIMILARITY_MIN).collect();
    similar.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    match similar[..] {
        // If two words are equally similar, a suggestion would be a guess.
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
