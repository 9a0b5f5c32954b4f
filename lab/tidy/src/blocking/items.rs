//! Everything in a source file that may block a thread: locks, queues, channels and threads. Each
//! item has a name:
//!
//! | in the source | name of the item |
//! |---|---|
//! | `Mutex::new(&registry, "store", ...)` | `store` |
//! | a field or `static`: another lock, a condition variable, a semaphore or `Once` | its name |
//! | a type with a `VecDeque` or `BinaryHeap`, or called a queue, pool or channel | type's name |
//! | `let (sender, receiver) = channel()`, except `watch` and `oneshot` channels | sender's name |
//! | `Builder::new().name(..)`, `spawn("name", ..)` of a helper | thread's name, a number as `N` |
//! | `thread::spawn`, `thread::scope`, `spawn_blocking` | function's name |

use std::collections::BTreeSet;
use std::ops::Range;

use crate::File;
use crate::rust::{SourceViews, contains_word, is_name};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    /// The offset of the item in the file's code, in bytes.
    at: usize,
    pub(super) name: String,
}

/// The code and the text of a file. Strings are blanked in the code; the text still has them. Both
/// have the same number of characters, and the code is ASCII. So an offset into one is an offset
/// into the other.
struct Source<'s> {
    code: &'s str,
    text: Vec<char>,
}

pub(super) fn items(file: &File, views: &SourceViews) -> Vec<Item> {
    let source = Source { code: &views.code_without_tests, text: file.text.chars().collect() };
    let mut items = source.named_locks();
    items.extend(source.lock_fields());
    items.extend(source.queues());
    items.extend(source.channels());
    items.extend(source.threads());
    items.sort();
    let mut seen = BTreeSet::new();
    items.retain(|item| seen.insert(item.name.clone()));
    items
}

impl Item {
    fn new(at: usize, name: impl Into<String>) -> Item {
        Item { at, name: name.into() }
    }

    /// Returns the number of the item's line, from 1.
    pub(super) fn line(&self, views: &SourceViews) -> usize {
        1 + views.code_without_tests[..self.at].matches('\n').count()
    }
}

impl Source<'_> {
    fn named_locks(&self) -> Vec<Item> {
        let calls = ["Mutex::new(", "RwLock::new("].into_iter().flat_map(|name| self.calls(name));
        calls.filter_map(|(at, arguments)| Some(Item::new(at, self.literal(arguments)?))).collect()
    }

    fn lock_fields(&self) -> Vec<Item> {
        // The locks of our crate `contention` have names. [`Self::named_locks`] finds them, so they
        // are skipped here.
        let imports = self.code.split("use ").skip(1);
        let mut imports = imports.filter_map(|import| import.split(';').next());
        let has_named_locks = imports.any(|import| {
            import.starts_with("clearlane_contention::")
                && (contains_word(import, "Mutex") || contains_word(import, "RwLock"))
        });
        let mut items = Vec::new();
        for word in ["Mutex", "RwLock", "Condvar", "Semaphore", "Once"] {
            for at in self.words(word) {
                let (before, behind) = (&self.code[..at], &self.code[at + word.len()..]);
                let is_lock = behind.starts_with('<') && matches!(word, "Mutex" | "RwLock");
                let is_other = !behind.starts_with(['<', ':', '(']) && !is_lock;
                let is_named = is_lock && has_named_locks && !before.ends_with("::");
                if (is_lock && !is_named) || (is_other && !matches!(word, "Mutex" | "RwLock")) {
                    items.extend(self.field_at(at).map(|name| Item::new(at, name)));
                }
            }
        }
        items
    }

    fn queues(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for word in ["VecDeque", "BinaryHeap"] {
            let is_type = |at: &usize| self.code[at + word.len()..].starts_with('<');
            let fields = self.words(word).filter(is_type);
            let fields = fields.filter(|at| self.field_at(*at).is_some());
            items.extend(fields.filter_map(|at| Some(Item::new(at, self.type_at(at)?))));
        }
        for (at, name) in self.types() {
            if ["Queue", "Pool", "Channel"].iter().any(|end| name.ends_with(end)) {
                items.push(Item::new(at, name));
            }
        }
        items
    }

    fn channels(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for word in ["channel", "unbounded_channel", "sync_channel"] {
            for at in self.words(word) {
                let (before, behind) = (&self.code[..at], &self.code[at + word.len()..]);
                let others = ["watch::", "oneshot::", "fn ", "."];
                let is_call = behind.starts_with('(') || behind.starts_with("::<");
                if !is_call || others.iter().any(|other| before.ends_with(other)) {
                    continue;
                }
                let statement = before.rsplit([';', '{', '}']).next().unwrap_or_default();
                let sender = statement.split_once("let (").map(|(_, names)| {
                    names.trim_start_matches("mut ").split(|c| !is_name(c)).next().unwrap_or(word)
                });
                items.push(Item::new(at, sender.unwrap_or(word)));
            }
        }
        items
    }

    fn threads(&self) -> Vec<Item> {
        let mut items = Vec::new();
        let built = self.calls(".name(");
        let built = built.filter(|(at, _)| self.code[..*at].trim_end().ends_with("Builder::new()"));
        let helped = self.calls("spawn(");
        let helped = helped.filter(|(_, arguments)| self.begins_with_literal(arguments.clone()));
        let named = built.chain(helped);
        let named = named.filter_map(|(at, arguments)| Some((at, self.literal(arguments)?)));
        items.extend(named.map(|(at, name)| Item::new(at, without_number(&name))));
        for callee in ["thread::spawn", "thread::scope", "spawn_blocking"] {
            let calls = self.words(callee);
            let calls = calls.filter(|at| self.code[at + callee.len()..].starts_with('('));
            items.extend(calls.map(|at| Item::new(at, callee)));
        }
        items
    }

    fn words<'w>(&self, word: &'w str) -> impl Iterator<Item = usize> + use<'_, 'w> {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |at| {
            let before = self.code[..*at].chars().next_back();
            let behind = self.code[at + word.len()..].chars().next();
            !before.is_some_and(is_name) && !behind.is_some_and(is_name)
        })
    }

    /// Returns the offset of each call of `callee`, and the range of its arguments. `callee` ends
    /// with a parenthesis.
    fn calls<'w>(
        &self,
        callee: &'w str,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<'_, 'w> {
        self.code.match_indices(callee).filter_map(|(at, _)| {
            let begins = !self.code[..at].chars().next_back().is_some_and(is_name);
            let start = at + callee.len();
            let mut depth = 1;
            let length = self.code[start..].bytes().position(|c| {
                depth += i32::from(matches!(c, b'(' | b'[' | b'{'));
                depth -= i32::from(matches!(c, b')' | b']' | b'}'));
                depth == 0
            })?;
            begins.then_some((at, start..start + length))
        })
    }

    /// Returns the first string literal in a part of the file, or `None` if the part has no string
    /// literal.
    fn literal(&self, part: Range<usize>) -> Option<String> {
        let mut pieces = self.text[part].split(|c| *c == '"').skip(1);
        pieces.next().map(|literal| literal.iter().collect())
    }

    fn begins_with_literal(&self, part: Range<usize>) -> bool {
        let text: String = self.text[part].iter().collect();
        let text = text.trim_start();
        text.starts_with('"') || text.starts_with("&format!(\"")
    }

    /// Returns the name of the field or `static` whose type contains the word at this offset.
    /// Returns `None` for a parameter, a local variable or a reference.
    fn field_at(&self, at: usize) -> Option<&str> {
        let before = self.code[..at].rsplit([';', '{', '}', '(']).next()?;
        let (left, of_type) = before.rsplit_once(": ")?;
        let name = left.rsplit(|c| !is_name(c)).next()?;
        let begins_small = name.starts_with(|c: char| c.is_lowercase() || c == '_');
        let is_static = left[..left.len() - name.len()].trim_end().ends_with("static");
        let in_fn = self.code[..at].rfind("fn ") > self.code[..at].rfind(['{', '}', ';']);
        let is_reference = of_type.starts_with('&');
        ((begins_small || is_static) && !contains_word(left, "let") && !in_fn && !is_reference)
            .then_some(name)
    }

    /// Returns the offset and the name of each struct and enum.
    fn types(&self) -> Vec<(usize, &str)> {
        let mut types = Vec::new();
        for word in ["struct", "enum"] {
            for at in self.words(word) {
                let name = self.code[at + word.len()..].trim_start();
                types.push((at, name.split(|c| !is_name(c)).next().unwrap_or_default()));
            }
        }
        types.sort_unstable();
        types
    }

    /// Returns the name of the last type that starts before this offset, or `None` if there is no
    /// such type.
    fn type_at(&self, at: usize) -> Option<&str> {
        let before = self.types().into_iter().take_while(|(begin, _)| *begin < at);
        before.last().map(|(_, name)| name)
    }
}

/// Replaces the number in a thread's name: `read-{number}` becomes `read-N`.
fn without_number(name: &str) -> String {
    match name.split_once('{') {
        Some((start, _)) => format!("{start}N"),
        None => name.to_owned(),
    }
}
