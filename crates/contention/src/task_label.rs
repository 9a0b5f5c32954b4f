//! A small label for the kind of work that a thread does right now, such as "put" or "commit".
//!
//! One thread serves many kinds of request in turn, so a thread ID does not show what the thread
//! was doing. Code therefore enters a [`TaskLabel`] before it starts a piece of work. Every lock
//! that the thread takes until the end of the scope is recorded under this label, at any depth of
//! calls, unless a nested scope has set another label.
//!
//! * A label is one byte, and a process has at most [`TaskLabel::COUNT_MAX`] labels, so figures can
//!   be kept for each pair of labels. Further names share [`TaskLabel::OTHER`].
//! * Once a name is interned, it keeps its label for the life of the process.
//! * The label belongs to the thread, not to the async task. Code must leave the scope before an
//!   `await`.

use std::{cell::Cell, fmt, marker::PhantomData, sync::OnceLock};

/// The names, indexed by label. A slot is filled once, so reading it needs no lock.
static NAMES: [OnceLock<&str>; TaskLabel::COUNT_MAX] =
    [const { OnceLock::new() }; TaskLabel::COUNT_MAX];

/// The names of [`TaskLabel::UNNAMED`] and [`TaskLabel::OTHER`].
const RESERVED: [&str; 2] = ["unnamed", "other"];

/// A label, and the number of the request; 0 if there is no number.
pub(crate) type LabelAndNumber = (TaskLabel, u32);

thread_local! {
    static CURRENT: Cell<LabelAndNumber> = const { Cell::new((TaskLabel::UNNAMED, 0)) };
}

/// The kind of work for which a lock is taken.
///
/// ```
/// use clearlane_contention::TaskLabel;
///
/// let put = TaskLabel::named("put");
/// let _as = put.enter();
/// assert_eq!(TaskLabel::current(), put);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskLabel(u8);

impl TaskLabel {
    /// Maximum number of labels in a process, including the two reserved labels.
    pub const COUNT_MAX: usize = 64;

    /// The label of a thread that has not entered any label.
    pub const UNNAMED: TaskLabel = TaskLabel(0);

    /// The label that all further names share when the table has no free slot.
    pub const OTHER: TaskLabel = TaskLabel(1);

    /// Returns the label of this name, and creates it if the name is new. If no slot is free for a
    /// new name, returns [`TaskLabel::OTHER`]. This call searches a list, so keep the result if it
    /// is needed often.
    pub fn named(name: &str) -> TaskLabel {
        for (number, slot) in NAMES.iter().enumerate() {
            // Leaks at most one name per slot, so at most `COUNT_MAX` names.
            let reserve = || RESERVED.get(number).copied();
            let interned = slot.get_or_init(|| reserve().unwrap_or_else(|| name.to_owned().leak()));
            if *interned == name {
                return TaskLabel(number as u8);
            }
        }
        TaskLabel::OTHER
    }

    #[inline]
    pub fn current() -> TaskLabel {
        CURRENT.get().0
    }

    #[inline]
    pub(crate) fn current_numbered() -> LabelAndNumber {
        CURRENT.get()
    }

    /// Sets this thread's label until the result is dropped. Dropping it restores the previous
    /// label.
    #[must_use = "the thread has this label only until the result is dropped"]
    pub fn enter(self) -> LabelScope {
        self.enter_numbered(0)
    }

    /// Does the same as `enter`, and also sets a number, which distinguishes the requests of one
    /// label. [Events](crate::LockEvent) contain the number; figures do not.
    #[must_use = "the thread has this label only until the result is dropped"]
    pub fn enter_numbered(self, number: u32) -> LabelScope {
        LabelScope { previous: CURRENT.replace((self, number)), _this_thread: PhantomData }
    }

    pub fn name(self) -> &'static str {
        let reserved = || RESERVED.get(self.index());
        NAMES[self.index()].get().or_else(reserved).expect("a label has a name")
    }

    /// Returns the index of this label in a table with [`TaskLabel::COUNT_MAX`] rows.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn from_index(index: usize) -> TaskLabel {
        assert!(index < Self::COUNT_MAX, "label {index} of {}", Self::COUNT_MAX);
        TaskLabel(index as u8)
    }
}

impl fmt::Display for TaskLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for TaskLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskLabel({})", self.name())
    }
}

/// Restores the thread's previous label when the scope is dropped. Scopes must nest, as guards in
/// local variables do.
#[derive(Debug)]
pub struct LabelScope {
    previous: LabelAndNumber,
    /// Makes this type not `Send`. So the scope stays on the thread whose label it has changed.
    _this_thread: PhantomData<*const ()>,
}

impl Drop for LabelScope {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_interned_once() {
        assert_eq!(TaskLabel::named("twice"), TaskLabel::named("twice"));
        assert_ne!(TaskLabel::named("twice"), TaskLabel::named("once"));
        assert_eq!(TaskLabel::named("twice").name(), "twice");
        assert_eq!(
            (TaskLabel::named("unnamed"), TaskLabel::UNNAMED.name()),
            (TaskLabel::UNNAMED, "unnamed")
        );
        assert_eq!(
            (TaskLabel::named("other"), TaskLabel::OTHER.name()),
            (TaskLabel::OTHER, "other")
        );
    }

    #[test]
    fn scopes_nest_and_restore() {
        let (outer, inner) = (TaskLabel::named("outer"), TaskLabel::named("inner"));
        assert_eq!(TaskLabel::current(), TaskLabel::UNNAMED);
        let _as = outer.enter_numbered(7);
        {
            let _as = inner.enter();
            assert_eq!(TaskLabel::current(), inner);
            assert_eq!(TaskLabel::current_numbered(), (inner, 0));
        }
        assert_eq!(TaskLabel::current_numbered(), (outer, 7));
    }

    #[test]
    fn a_thread_starts_unnamed_and_a_panic_restores() {
        let _as = TaskLabel::named("parent").enter();
        let child = std::thread::spawn(|| {
            assert_eq!(TaskLabel::current(), TaskLabel::UNNAMED);
            let caught = std::panic::catch_unwind(|| {
                let _as = TaskLabel::named("doomed").enter();
                panic!("on purpose");
            });
            assert!(caught.is_err());
            TaskLabel::current()
        });
        assert_eq!(child.join().unwrap(), TaskLabel::UNNAMED);
    }
}
