//! Rust source with blanks in place of the parts that a rule must ignore.
//!
//! A rule that searches for the word `tokio` must find it neither in a comment nor in a string,
//! such as the rule's own pattern. Blanked characters become spaces and line breaks stay, so that
//! line numbers do not change:
//!
//! ```text
//!   text                      let a = "rand::"; // no tokio here
//!   code                      let a =         ;
//!   code without tests        the same, and `#[cfg(test)]` items blanked
//! ```
//!
//! [`proc_macro2`] splits the text into tokens. A token is code unless it is a string, a character,
//! or a doc comment.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

#[derive(Debug)]
pub struct SourceViews {
    /// The text without comments, strings and characters.
    pub code: String,
    /// `code` without the items that exist only in test builds.
    pub code_without_tests: String,
    pub lines_in_tests: usize,
    /// The modules in other files that exist only in tests: `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
}

impl SourceViews {
    /// Parses the text. Panics if it is not Rust.
    pub fn of(text: &str) -> Self {
        let tokens = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut code =
            Code { text, tokens: Vec::new(), lines_in_tests: 0, test_modules: Vec::new() };
        code.visit(&trees(tokens), false);
        let (all, without_tests) = (code.view(|_| true), code.view(|is_test| !is_test));
        let Code { lines_in_tests, test_modules, .. } = code;
        Self { code: all, code_without_tests: without_tests, lines_in_tests, test_modules }
    }
}

fn trees(tokens: TokenStream) -> Vec<TokenTree> {
    tokens.into_iter().collect()
}

struct Code<'t> {
    text: &'t str,
    /// The byte range of each token in `text`. The flag is true if the token exists only in tests.
    tokens: Vec<(Range<usize>, bool)>,
    lines_in_tests: usize,
    test_modules: Vec<String>,
}

impl Code<'_> {
    fn visit(&mut self, mut rest: &[TokenTree], is_test: bool) {
        while let Some((tree, behind)) = rest.split_first() {
            let length = if is_test { 0 } else { length_of_test_item(rest) };
            if length == 0 {
                self.push(tree, is_test);
                rest = behind;
            } else {
                let item;
                (item, rest) = rest.split_at(length);
                let end = item[length - 1].span().byte_range().end;
                let text = &self.text[tree.span().byte_range().start..end];
                self.lines_in_tests += text.lines().count();
                if let [.., TokenTree::Ident(word), name, TokenTree::Punct(_)] = item
                    && word == "mod"
                {
                    self.test_modules.push(name.to_string());
                }
                self.visit(item, true);
            }
        }
    }

    fn push(&mut self, tree: &TokenTree, is_test: bool) {
        let place = tree.span().byte_range();
        let text = &self.text[place.clone()];
        match tree {
            // A doc comment is an attribute token whose text is the comment.
            _ if text.starts_with("//") || text.starts_with("/*") => {}
            TokenTree::Group(group) => {
                self.tokens.push((group.span_open().byte_range(), is_test));
                self.visit(&trees(group.stream()), is_test);
                self.tokens.push((group.span_close().byte_range(), is_test));
            }
            TokenTree::Literal(_) if !text.starts_with(|c: char| c.is_ascii_digit()) => {}
            _ => self.tokens.push((place, is_test)),
        }
    }

    /// Returns the text with everything blanked except the wanted tokens. The argument of
    /// `is_wanted` is true for a token that exists only in tests.
    fn view(&self, is_wanted: impl Fn(bool) -> bool) -> String {
        let blanked = |c| if c == '\n' { '\n' } else { ' ' };
        let (mut view, mut done) = (String::with_capacity(self.text.len()), 0);
        for (place, _) in self.tokens.iter().filter(|(_, is_test)| is_wanted(*is_test)) {
            view.extend(self.text[done..place.start].chars().map(blanked));
            view.push_str(&self.text[place.clone()]);
            done = place.end;
        }
        view.extend(self.text[done..].chars().map(blanked));
        view
    }
}

/// Returns the number of tokens from `#[cfg(test)]` to the end of its item, or from `#![cfg(test)]`
/// to the end of the file. Returns 0 if neither is at the start of `trees`. An item ends with its
/// block or with a semicolon.
fn length_of_test_item(trees: &[TokenTree]) -> usize {
    let (is_whole_file, group) = match trees {
        [hash, TokenTree::Group(group), ..] if is_punct(hash, '#') => (false, group),
        [hash, bang, TokenTree::Group(group), ..] if is_punct(hash, '#') && is_punct(bang, '!') => {
            (true, group)
        }
        _ => return 0,
    };
    let attribute = group.stream().to_string().replace(' ', "");
    let is_for_tests = attribute.starts_with("cfg(") && contains_word(&attribute, "test");
    if !is_for_tests || attribute.contains("not(test") {
        return 0;
    }
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => is_punct(tree, ';'),
    };
    let end = trees.iter().position(is_end).filter(|_| !is_whole_file);
    end.map_or(trees.len(), |end| end + 1)
}

fn is_punct(tree: &TokenTree, c: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == c)
}

/// Returns the numbers of the lines that contain `word` as a whole word.
pub fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.lines().zip(1..).filter(move |(line, _)| contains_word(line, word)).map(|(_, at)| at)
}

/// Returns whether `line` contains `word`, not as a part of a longer name.
pub fn contains_word(line: &str, word: &str) -> bool {
    let continues = |c: Option<char>| c.is_some_and(is_name);
    line.match_indices(word).any(|(at, _)| {
        let before = word.starts_with(is_name) && continues(line[..at].chars().next_back());
        let after = word.ends_with(is_name) && continues(line[at + word.len()..].chars().next());
        !before && !after
    })
}

pub fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the directory of the child modules of the file at `path`.
pub fn directory_of_children(path: &str) -> &str {
    let stem = path.trim_end_matches(".rs");
    match stem.rsplit_once('/') {
        Some((directory, "lib" | "main" | "mod")) => directory,
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let views = SourceViews::of(text);
        assert_eq!(views.code.lines().count(), text.lines().count());
        views.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_strings_and_characters_are_blanked() {
        assert_eq!(code("a // b\nc / d"), "a c / d");
        assert_eq!(code("a /* b\n */ e /***/ f"), "a e f");
        assert_eq!(code(r#"f("b // c") + g("a\"b", c)"#), "f( ) + g( , c)");
        assert_eq!(code("f(r##\"a\"# b\"##, br\"\\\", r#type)"), "f( , , r#type)");
        assert_eq!(code("f('\"', b'\\'', '\\u{1F600}', 'é') + 'b: loop"), "f( , , , ) + 'b: loop");
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn test_items_are_blanked_and_counted() {
        let views = SourceViews::of("a();\n#[cfg(test)]\nmod tests {\n    f([1; 2]);\n}\nb();\n");
        let rest: Vec<_> = views.code_without_tests.split_whitespace().collect();
        assert_eq!(rest, ["a();", "b();"]);
        assert_eq!(views.lines_in_tests, 4);

        let text = "#[cfg(all(test, unix))]\nmod sim;\n#[cfg(not(test))]\nmod real;\n";
        let views = SourceViews::of(text);
        assert_eq!(views.test_modules, ["sim"]);
        assert_eq!(views.code_without_tests.trim(), "#[cfg(not(test))]\nmod real;");

        assert_eq!(SourceViews::of("//! A\n#![cfg(test)]\nf();\n").code_without_tests.trim(), "");
    }

    #[test]
    fn words_are_whole() {
        assert!(contains_word("use rand::rng;", "rand::"));
        assert!(!contains_word("strand::rng", "rand::"));
        assert!(!contains_word("tokio_like", "tokio"));
        assert_eq!(lines_with("a\nb a\nab\n", "a").collect::<Vec<_>>(), [1, 2]);
    }
}
