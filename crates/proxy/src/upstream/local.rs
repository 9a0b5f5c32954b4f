//! Connections to members that belong to one network thread.
//!
//! A call that goes from a network thread over a connection of the main runtime wakes another
//! thread twice. So each network thread has its own connection to each member that it calls.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tonic::transport::Channel;

use super::Member;

struct LocalChannel {
    member: Weak<Member>,
    generation: u64,
    channel: Channel,
}

/// Number of changes of the members.
static CHANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The channels of this thread. `None` on a thread that uses the channels of the main runtime.
    static CHANNELS: RefCell<Option<Vec<LocalChannel>>> = const { RefCell::new(None) };
    /// The changes after which this thread has dropped its channels to members that were removed.
    static SEEN_CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// Lets each thread drop its channels to removed members before its next call.
pub(super) fn members_changed() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Lets this thread have its own connections. The thread must have one runtime.
pub(crate) fn use_local_channels() {
    CHANNELS.set(Some(Vec::new()));
}

/// Returns this thread's channel to a member. A new connection of the main runtime has a new
/// `generation`, and then this thread also gets a new one. Returns `None` if the thread has no
/// channels, or if `open` fails.
pub(super) fn channel_of(
    member: &Arc<Member>,
    generation: u64,
    open: impl FnOnce() -> Option<Channel>,
) -> Option<Channel> {
    CHANNELS.with_borrow_mut(|channels| {
        let channels = channels.as_mut()?;
        let is_wanted = |it: &&LocalChannel| {
            std::ptr::eq(it.member.as_ptr(), Arc::as_ptr(member)) && it.generation == generation
        };
        let changes = CHANGES.load(Ordering::Relaxed);
        let is_changed = SEEN_CHANGES.replace(changes) != changes;
        if let Some(found) = channels.iter().find(is_wanted)
            && !is_changed
        {
            return Some(found.channel.clone());
        }
        channels.retain(|it| {
            it.member
                .upgrade()
                .is_some_and(|member| member.generation() == it.generation && !member.is_stopped())
        });
        if let Some(found) = channels.iter().find(is_wanted) {
            return Some(found.channel.clone());
        }
        let channel = open()?;
        let member = Arc::downgrade(member);
        channels.push(LocalChannel { member, generation, channel: channel.clone() });
        Some(channel)
    })
}
