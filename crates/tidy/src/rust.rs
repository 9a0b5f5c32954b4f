//! Rust source with the parts blanked out that a rule must not look at.
//!
//! A rule that looks for `tokio` must not find the word in a comment, nor its own pattern in a
//! string. Blanked characters become spaces and line breaks stay, so that line numbers remain:
//!
//! ```text
//!   text                      let a = "rand::"; // no tokio here
//!   code                      let a =         ;
//!   code without tests        the same, and `#[cfg(test)]` items blanked
//! ```
//!
//! The lexer knows where comments, strings and characters begin and end, and matches brackets. It
//! does not parse, and does not handle nested block comments.

#[derive(Debug)]
pub struct SourceViews {
    /// Without comments, strings and characters.
    pub code: String,
    /// `code` without the items that exist in test builds only.
    pub code_without_tests: String,
    pub lines_in_tests: usize,
    /// Modules of other files that exist in tests only: `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
}

impl SourceViews {
    pub fn of(text: &str) -> Self {
        let code = blank(text);
        let (mut rest, mut done) = (String::with_capacity(code.len()), 0);
        let (mut lines_in_tests, mut test_modules) = (0, Vec::new());
        for (start, attribute) in attributes(&code) {
            if start < done || !is_for_tests(attribute) {
                continue;
            }
            let behind = start + attribute.len();
            let is_whole_file = attribute.starts_with("#!");
            let end = if is_whole_file { code.len() } else { end_of_item(&code, behind) };
            test_modules.extend(module_file(&code[behind..end]));
            lines_in_tests += code[start..end].lines().count();
            rest.push_str(&code[done..start]);
            rest.extend(code[start..end].chars().map(blanked));
            done = end;
        }
        rest.push_str(&code[done..]);
        Self { code, code_without_tests: rest, lines_in_tests, test_modules }
    }
}

/// The numbers of the lines with `word` as a whole word.
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

pub fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The directory of the child modules of the file at `path`.
pub fn directory_of_children(path: &str) -> &str {
    let stem = path.trim_end_matches(".rs");
    match stem.rsplit_once('/') {
        Some((directory, "lib" | "main" | "mod")) => directory,
        _ => stem,
    }
}

fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = length_of_no_code(rest);
        if length == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(blanked));
            rest = &rest[length..];
        }
    }
    code
}

/// The length of the comment, string or character that begins here; 0 for code.
fn length_of_no_code(rest: &str) -> usize {
    let length = match rest.as_bytes()[0] {
        b'/' if rest.starts_with("//") => rest.find('\n'),
        b'/' if rest.starts_with("/*") => rest[2..].find("*/").map(|at| at + 4),
        b'"' => closing_quote(rest, '"'),
        b'\'' if rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'') => {
            closing_quote(rest, '\'')
        }
        b'r' => match rest[1..].trim_start_matches('#') {
            inside if inside.starts_with('"') => {
                let hashes = rest.len() - 1 - inside.len();
                let close = format!("\"{}", "#".repeat(hashes));
                inside[1..].find(&close).map(|at| hashes + 2 + at + close.len())
            }
            _ => return 0,
        },
        // A lifetime, a division, and all else.
        _ => return 0,
    };
    length.unwrap_or(rest.len())
}

/// The offset behind the closing quote. A character may itself be a quote.
fn closing_quote(rest: &str, quote: char) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => _ = characters.next(),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn blanked(c: char) -> char {
    if c == '\n' { '\n' } else { ' ' }
}

/// The attributes `#[cfg(...)]` and `#![cfg(...)]`, each with its offset.
fn attributes(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices('#').filter_map(|(at, _)| {
        let open = at + 1 + usize::from(code[at + 1..].starts_with('!'));
        code[open..].starts_with("[cfg(").then(|| (at, &code[at..end_of_group(code, open)]))
    })
}

fn is_for_tests(attribute: &str) -> bool {
    contains_word(attribute, "test") && !attribute.contains("not(test")
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

/// The offset behind the bracket that closes the one at `open`.
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
    fn comments_strings_and_characters_are_blanked() {
        assert_eq!(code("a // b\nc / d"), "a c / d");
        assert_eq!(code("a /* b\n */ e /***/ f"), "a e f");
        assert_eq!(code(r#"f("b // c") + g("a\"b", c)"#), "f( ) + g( , c)");
        assert_eq!(code("f(r##\"a\"# b\"##, br\"\\\", r#type)"), "f( , b , r#type)");
        assert_eq!(
            code("f('\"', b'\\'', '\\u{1F600}', 'é') + 'b: loop"),
            "f( , b , , ) + 'b: loop"
        );
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
