//! Planted bugs. Each changes one decision, so that a test can show that the checker finds it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A reader uses a probe that started before the reader arrived.
    ProbeInFlight,
    /// A reader waits for the feed's next progress instead of for a probe.
    ProgressAsProbe,
    /// The header of an answer has the newest revision that the feed has seen in any header.
    NewerHeader,
    /// The first page of an answer is from one state, and the other pages are from a newer one.
    TwoStates,
    /// A broken feed continues after the newest header, and not after the last applied event.
    ResumesAfterHeader,
    /// Callers with tokens are answered from the cache, after a probe with the token of the first
    /// reader that waits for it.
    OtherIdentity,
    /// Progress is sent although a watch of the stream was created or detached in the meantime.
    UncheckedProgress,
    /// Progress of the member is believed for a watch that the member has not created yet.
    UnansweredProgress,
    /// A lost watch keeps its ID of the lost stream until it is created again.
    OldIds,
    /// A watch joins a scope, or continues on a new stream, although the client has canceled it.
    LostCancel,
}

impl Bug {
    /// Each bug with the number of seeds in which it must be found at least once.
    pub(super) const ALL: [(Bug, u64); 10] = [
        (Bug::ProbeInFlight, 200),
        (Bug::ProgressAsProbe, 200),
        (Bug::NewerHeader, 200),
        (Bug::TwoStates, 200),
        (Bug::ResumesAfterHeader, 200),
        (Bug::OtherIdentity, 200),
        (Bug::UncheckedProgress, 200),
        (Bug::UnansweredProgress, 200),
        (Bug::OldIds, 200),
        (Bug::LostCancel, 200),
    ];
}
