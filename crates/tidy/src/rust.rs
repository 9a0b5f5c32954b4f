//! Rust source with the parts blanked out that a rule must not look at.
//!
//! A rule that looks for `tokio` must not be upset by the word in a comment, nor by its own pattern
//! in a string. So each file is looked at in three ways. Blanked characters become spaces and line
//! breaks stay, so that line numbers are the same in all of them:
//!
//! ```text
//!   text                      let a = "rand::"; // no tokio here
//!   without strings           let a = "      "; // no tokio here
//!   code                      let a = "      ";
//!   code without tests        the same, and `#[cfg(test)]` items blanked
//! ```
//!
//! This is a lexer of the smallest kind: it knows where comments, strings and characters begin and
//! end, and matches brackets. It does not parse.

use std::iter::Peekable;
use std::str::Chars;

/// One Rust file, seen in three ways.
#[derive(Debug)]
pub struct SourceViews {
    /// Code and comments.
    pub without_strings: String,
    /// Code alone.
    pub code: String,
    /// Code that is there in a build that is not a test.
    pub code_without_tests: String,
    /// How many lines those test items take.
    pub lines_in_tests: usize,
    /// Modules of other files that exist in tests only: `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
}

impl SourceViews {
    /// Looks at the text of a Rust file.
    pub fn of(text: &str) -> Self {
        let (without_strings, code) = blank(text);
        let mut views = Self {
            without_strings,
            code_without_tests: String::with_capacity(code.len()),
            code,
            lines_in_tests: 0,
            test_modules: Vec::new(),
        };
        views.blank_tests();
        views
    }

    /// Copies the code without the items that exist in tests only.
    fn blank_tests(&mut self) {
        let code = &self.code;
        let mut done = 0;
        for (start, attribute) in attributes(code) {
            if start < done || !is_for_tests(attribute) {
                continue;
            }
            let behind = start + attribute.len();
            let end = match attribute.starts_with("#!") {
                true => code.len(),
                false => end_of_item(code, behind),
            };
            self.test_modules.extend(module_file(&code[behind..end]));
            self.lines_in_tests += code[start..end].lines().count();
            self.code_without_tests.push_str(&code[done..start]);
            self.code_without_tests.extend(code[start..end].chars().map(blanked));
            done = end;
        }
        self.code_without_tests.push_str(&code[done..]);
    }
}

/// Every place where `word` stands in `text` and is not the tail of a longer name, as line numbers.
pub fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.lines().zip(1..).filter(move |(line, _)| contains_word(line, word)).map(|(_, at)| at)
}

/// Whether `word` stands in `line`, and neither end of it continues a longer name.
pub fn contains_word(line: &str, word: &str) -> bool {
    let continues = |c: Option<char>| c.is_some_and(is_name);
    line.match_indices(word).any(|(at, _)| {
        let before = word.starts_with(is_name) && continues(line[..at].chars().next_back());
        let after = word.ends_with(is_name) && continues(line[at + word.len()..].chars().next());
        !before && !after
    })
}

/// The number of the line on which the byte `at` lies.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The attributes of a file, each with the place where it starts: `#[...]` and `#![...]`.
pub fn attributes(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices('#').filter_map(|(at, _)| {
        let rest = &code[at + 1..];
        let open = at + 1 + usize::from(rest.starts_with('!'));
        code[open..].starts_with('[').then(|| (at, &code[at..end_of_group(code, open)]))
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without the insides of strings; and without comments, too.
fn blank(text: &str) -> (String, String) {
    let mut out = Blanker::new(text);
    while let Some(c) = out.rest.next() {
        match c {
            '/' if out.rest.peek() == Some(&'/') => out.line_comment(),
            '/' if out.rest.peek() == Some(&'*') => out.block_comment(),
            '"' => out.string(),
            'r' if !out.after_name => out.maybe_raw_string(),
            'b' if !out.after_name => out.maybe_bytes(),
            '\'' => out.character_or_lifetime(),
            _ => out.code(c),
        }
    }
    (out.without_strings, out.code)
}

/// Walks over the text and writes both views.
struct Blanker<'a> {
    rest: Peekable<Chars<'a>>,
    without_strings: String,
    code: String,
    /// The last character belonged to a name, so an `r` here does not start a raw string.
    after_name: bool,
}

impl<'a> Blanker<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text.chars().peekable(),
            without_strings: String::with_capacity(text.len()),
            code: String::with_capacity(text.len()),
            after_name: false,
        }
    }

    fn code(&mut self, c: char) {
        self.without_strings.push(c);
        self.code.push(c);
        self.after_name = is_name(c);
    }

    fn comment(&mut self, c: char) {
        self.without_strings.push(c);
        self.code.push(blanked(c));
        self.after_name = false;
    }

    fn inside_string(&mut self, c: char) {
        self.code(blanked(c));
    }

    fn line_comment(&mut self) {
        self.comment('/');
        while let Some(c) = self.rest.next_if(|c| *c != '\n') {
            self.comment(c);
        }
    }

    /// Block comments nest. The slash was read, the star is next.
    fn block_comment(&mut self) {
        self.comment('/');
        let mut depth = 0;
        let mut c = '/';
        loop {
            let other = match c {
                '/' => '*',
                '*' => '/',
                _ => '\0',
            };
            if let Some(second) = self.rest.next_if_eq(&other) {
                self.comment(second);
                depth += if second == '*' { 1 } else { -1 };
            }
            if depth == 0 {
                return;
            }
            let Some(next) = self.rest.next() else { return };
            self.comment(next);
            c = next;
        }
    }

    /// A string whose opening quote was read.
    fn string(&mut self) {
        self.code('"');
        while let Some(c) = self.rest.next() {
            match c {
                '"' => return self.code('"'),
                '\\' => {
                    self.inside_string(c);
                    if let Some(escaped) = self.rest.next() {
                        self.inside_string(escaped);
                    }
                }
                _ => self.inside_string(c),
            }
        }
    }

    /// `r"..."` or `r##"..."##`, or a raw name like `r#type`, or just the letter.
    fn maybe_raw_string(&mut self) {
        self.code('r');
        let mut hashes = 0;
        while self.rest.next_if_eq(&'#').is_some() {
            self.code('#');
            hashes += 1;
        }
        if self.rest.next_if_eq(&'"').is_none() {
            return;
        }
        self.code('"');
        while let Some(c) = self.rest.next() {
            let closes = c == '"' && {
                let mut ahead = self.rest.clone();
                (0..hashes).all(|_| ahead.next() == Some('#'))
            };
            if closes {
                return self.code('"');
            }
            self.inside_string(c);
        }
    }

    /// `b"..."` and `b'x'` need no care; `br"..."` is a raw string.
    fn maybe_bytes(&mut self) {
        self.code('b');
        if self.rest.next_if_eq(&'r').is_some() {
            self.maybe_raw_string();
        }
    }

    /// `'x'` and `'\n'` are characters, `'a` is a lifetime.
    fn character_or_lifetime(&mut self) {
        self.code('\'');
        let mut ahead = self.rest.clone();
        let first = ahead.next();
        if first == Some('\\') {
            self.rest.next();
            self.inside_string('\\');
            self.rest.next();
            self.inside_string(' ');
            while let Some(c) = self.rest.next_if(|c| *c != '\'' && *c != '\n') {
                self.inside_string(c);
            }
        } else if ahead.next() == Some('\'') {
            self.rest.next();
            self.inside_string(' ');
        } else {
            return;
        }
        self.rest.next();
        self.code('\'');
    }
}

fn blanked(c: char) -> char {
    if c == '\n' { '\n' } else { ' ' }
}

fn is_for_tests(attribute: &str) -> bool {
    attribute.contains("cfg(")
        && contains_word(attribute, "test")
        && !attribute.contains("not(test")
        && !attribute.contains("cfg_attr(")
}

/// Where the item ends that begins at `start`: with its block, or with a semicolon.
fn end_of_item(code: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(c) = code[at..].chars().next() {
        match c {
            '{' => return end_of_group(code, at),
            '(' | '[' => at = end_of_group(code, at),
            ';' => return at + 1,
            _ => at += c.len_utf8(),
        }
    }
    code.len()
}

/// Just behind the bracket that closes the one at `open`.
fn end_of_group(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + at + 1;
        }
    }
    code.len()
}

fn module_file(item: &str) -> Option<String> {
    let (_, name) = item.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    name.chars().all(is_name).then(|| name.to_owned())
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
    fn comments_are_blanked() {
        assert_eq!(code("a // b\nc"), "a c");
        assert_eq!(code("a /* b /* c */ d\n */ e"), "a e");
        assert_eq!(code("a /**/ b /***/ c"), "a b c");
        assert_eq!(code("a / b"), "a / b");
    }

    #[test]
    fn strings_are_emptied() {
        assert_eq!(code(r#"f("b // c") + g"#), r#"f(" ") + g"#);
        assert_eq!(code(r#"f("a\"b", c)"#), r#"f(" ", c)"#);
        assert_eq!(code("f(r##\"a\"# b\"##, c)"), "f(r##\" \"##, c)");
        assert_eq!(code(r#"f(b"x", br"\", c"x")"#), r#"f(b" ", br" ", c" ")"#);
        assert_eq!(code("r#type.for_each"), "r#type.for_each");
    }

    #[test]
    fn characters_and_lifetimes_are_told_apart() {
        assert_eq!(
            code("f('\"', b'\\'', '\\u{1F600}') /* a */ + 'b: loop"),
            "f(' ', b' ', ' ') + 'b: loop"
        );
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn comments_stay_in_the_other_view() {
        let views = SourceViews::of("let a = \"b\"; // c\n");
        assert_eq!(views.without_strings, "let a = \" \"; // c\n");
    }

    #[test]
    fn test_items_are_blanked_and_counted() {
        let views = SourceViews::of("a();\n#[cfg(test)]\nmod tests {\n    f([1; 2]);\n}\nb();\n");
        let rest: Vec<_> = views.code_without_tests.split_whitespace().collect();
        assert_eq!(rest, ["a();", "b();"]);
        assert_eq!(views.lines_in_tests, 4);

        let views =
            SourceViews::of("#[cfg(all(test, unix))]\nmod sim;\n#[cfg(not(test))]\nmod real;\n");
        assert_eq!(views.test_modules, ["sim"]);
        assert_eq!(views.code_without_tests.trim(), "#[cfg(not(test))]\nmod real;");

        assert_eq!(SourceViews::of("//! A\n#![cfg(test)]\nf();\n").code_without_tests.trim(), "");
    }

    #[test]
    fn words_are_whole() {
        assert!(contains_word("use rand::rng;", "rand::"));
        assert!(!contains_word("strand::rng", "rand::"));
        assert!(contains_word("use tokio;", "tokio"));
        assert!(!contains_word("tokio_like", "tokio"));
        assert_eq!(lines_with("a\nb a\nab\n", "a").collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn attributes_are_found_whole() {
        let found: Vec<_> = attributes("#![a]\n#[b(c[1])] fn f() {}\n# [x]").collect();
        assert_eq!(found, [(0, "#![a]"), (6, "#[b(c[1])]")]);
    }
}
