//! The memory of all scopes together, and which scope is dropped if it is not enough. Does no input
//! or output.
//!
//! `--cache-bytes` limits the keys, the values and the histories of all scopes. When a scope grows
//! beyond the limit, others are dropped in this order:
//!
//! 1. Scopes on demand that are not in use, the least recently used one first.
//! 2. Scopes on demand that are in use, in the same order. A scope on demand that is being loaded
//!    displaces none of these.
//!
//! Configured scopes are not dropped. If that is not enough, or if the growing scope is itself the
//! next one in this order, the growing scope is dropped, and no other one.
//!
//! A scope that was dropped is not cached again for a minute. This pause doubles each time, up to
//! an hour. So a range that is too large costs its members a list once an hour, and two ranges that
//! do not fit together do not displace each other all the time.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::range::Span;

const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);
/// A pause doubles only if the last one has ended at most this time ago.
const MEMORY: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum number of ranges whose pauses are remembered.
const REFUSALS_MAX: usize = 1024;

/// What the budget needs to know about a scope.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub bytes: usize,
    pub is_configured: bool,
    pub is_in_use: bool,
    pub idle: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The growing scope stays, and the scopes at these places are dropped.
    Drop(Vec<usize>),
    /// The growing scope is dropped.
    DropGrowing,
}

/// Decides which scopes are dropped. `growing` is the place of the scope that has grown, and
/// `is_loading` is true while its list is not complete.
pub fn decide(usages: &[Usage], growing: usize, is_loading: bool, bytes_max: usize) -> Decision {
    let mut total: usize = usages.iter().map(|usage| usage.bytes).sum();
    let own = usages[growing];
    let mut order: Vec<usize> = (0..usages.len()).filter(|at| !usages[*at].is_configured).collect();
    order.sort_by_key(|at| (usages[*at].is_in_use, Reverse(usages[*at].idle)));
    let mut dropped = Vec::new();
    for at in order {
        if total <= bytes_max {
            break;
        }
        let is_protected = usages[at].is_in_use && is_loading && !own.is_configured;
        if at == growing || is_protected {
            return Decision::DropGrowing;
        }
        total -= usages[at].bytes;
        dropped.push(at);
    }
    if total <= bytes_max { Decision::Drop(dropped) } else { Decision::DropGrowing }
}

/// Why a range is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A member does not permit to read it without a user.
    NotPermitted,
    /// The member is too old: its progress may overtake events.
    OldMember,
    /// It does not fit into the budget.
    TooLarge,
    /// It had to make room for another range.
    Displaced,
}

#[derive(Debug)]
struct Pause {
    span: Span,
    why: Refusal,
    until: Instant,
    length: Duration,
}

/// The ranges that are not cached for now.
#[derive(Debug, Default)]
pub struct Refusals {
    pauses: Vec<Pause>,
}

impl Refusals {
    /// Notes that a range cannot be cached. Returns the time after which it may be tried again.
    pub fn add(&mut self, span: &Span, why: Refusal, now: Instant) -> Duration {
        self.pauses.retain(|pause| now < pause.until + MEMORY);
        let last = self.pauses.iter().position(|pause| pause.span == *span);
        let last = last.map(|at| self.pauses.swap_remove(at));
        let length = match last {
            Some(last) if !matches!(why, Refusal::NotPermitted | Refusal::OldMember) => {
                (last.length * 2).min(PAUSE_MAX)
            }
            _ => PAUSE_MIN,
        };
        if self.pauses.len() >= REFUSALS_MAX {
            let first = (0..self.pauses.len()).min_by_key(|at| self.pauses[*at].until);
            first.map(|at| self.pauses.swap_remove(at));
        }
        self.pauses.push(Pause { span: span.clone(), why, until: now + length, length });
        length
    }

    /// Returns true if this range must not be cached now. A range that includes another one cannot
    /// be cached if the other one could not, unless that one was only displaced.
    pub fn forbid(&self, span: &Span, now: Instant) -> bool {
        self.pauses.iter().filter(|pause| now < pause.until).any(|pause| match pause.why {
            Refusal::NotPermitted | Refusal::OldMember | Refusal::TooLarge => {
                span.covers(&pause.span)
            }
            Refusal::Displaced => *span == pause.span,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(bytes: usize, idle: u64) -> Usage {
        let (is_configured, is_in_use) = (false, idle == 0);
        Usage { bytes, is_configured, is_in_use, idle: Duration::from_secs(idle) }
    }

    fn configured(bytes: usize) -> Usage {
        Usage { is_configured: true, ..usage(bytes, 99) }
    }

    #[test]
    fn the_least_recently_used_scopes_are_dropped_first() {
        let usages = [configured(40), usage(20, 30), usage(20, 50), usage(20, 40), usage(20, 0)];
        let dropped = |growing, bytes_max| decide(&usages, growing, true, bytes_max);
        assert_eq!(dropped(4, 120), Decision::Drop(vec![]));
        assert_eq!(dropped(4, 110), Decision::Drop(vec![2]));
        assert_eq!(dropped(4, 80), Decision::Drop(vec![2, 3]));
        assert_eq!(dropped(4, 60), Decision::Drop(vec![2, 3, 1]));
        assert_eq!(dropped(4, 50), Decision::DropGrowing, "configured scopes stay");
        assert_eq!(dropped(0, 50), Decision::Drop(vec![2, 3, 1, 4]));
        assert_eq!(dropped(0, 30), Decision::DropGrowing, "it cannot fit");
        assert_eq!(dropped(3, 110), Decision::Drop(vec![2]));
        assert_eq!(dropped(3, 90), Decision::DropGrowing, "it is the next one itself");
    }

    #[test]
    fn a_scope_that_is_being_loaded_displaces_none_in_use() {
        let usages = [usage(50, 0), usage(50, 0), usage(10, 7)];
        assert_eq!(decide(&usages, 1, true, 100), Decision::Drop(vec![2]));
        assert_eq!(decide(&usages, 1, true, 90), Decision::DropGrowing);
        assert_eq!(decide(&usages, 1, false, 90), Decision::Drop(vec![2, 0]));
    }

    #[test]
    fn pauses_double_up_to_an_hour() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        let [span, wide, other] = ["/a/", "/", "/b/"].map(|it| Span::of_prefix(it.as_bytes()));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = refusals.add(&span, Refusal::TooLarge, now);
            pauses.push(pause.as_secs() / 60);
            assert!(refusals.forbid(&span, now) && refusals.forbid(&wide, now));
            assert!(!refusals.forbid(&other, now));
            now += pause;
            assert!(!refusals.forbid(&span, now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += MEMORY;
        assert_eq!(refusals.add(&span, Refusal::TooLarge, now), PAUSE_MIN);
        refusals.add(&other, Refusal::Displaced, now);
        assert!(refusals.forbid(&other, now));
        now += PAUSE_MIN;
        refusals.add(&other, Refusal::Displaced, now);
        assert!(!refusals.forbid(&wide, now), "a displaced range may be cached with a wider one");
        // Auth may be turned off at any time.
        for _ in 0..3 {
            assert_eq!(refusals.add(&span, Refusal::NotPermitted, now), PAUSE_MIN);
        }
    }

    #[test]
    fn the_number_of_pauses_is_bounded() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..3000 {
            let span = Span::of_prefix(format!("/{number}/").as_bytes());
            refusals.add(&span, Refusal::TooLarge, now + Duration::from_millis(number));
        }
        assert_eq!(refusals.pauses.len(), REFUSALS_MAX);
        let last = Span::of_prefix(b"/2999/");
        assert!(refusals.forbid(&last, now));
    }
}
