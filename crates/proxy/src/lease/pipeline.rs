//! Which renewals wait, and which are in flight on which stream. Does no input or output.
//!
//! One stream is enough for a member that renews quickly. A member makes the renewals of one stream
//! one after the other, and a follower asks the leader about each of them. So the renewals in
//! flight on a stream are limited. Further renewals wait in the backlog. If that takes too long, a
//! caller opens another stream with `relieve`, which takes the oldest of them:
//!
//! ```text
//!   join ─┬─▶ stream 0: unsent ─▶ in flight ─▶ answered, in the order of the answers
//!         │   stream 1, opened by relieve: ...
//!         └─▶ backlog, while all open streams have IN_FLIGHT_MAX renewals
//! ```
//!
//! * There is one renewal of a lease at a time. A client that asks in the meantime joins it.
//! * A member ends a stream with an error if it rejects a renewal. The renewals before it were
//!   answered, so it is the oldest one in flight. All others are sent again.
//! * A renewal that all clients have given up keeps its place on its stream, so that the oldest
//!   renewal in flight remains the one that the member works on.

use std::collections::{HashMap, VecDeque};

/// Maximum number of streams of callers with the same token.
pub const STREAMS_MAX: usize = 16;
/// Maximum number of renewals on a stream.
pub const IN_FLIGHT_MAX: usize = 64;

/// The renewals of callers with the same token. `W` is a client that waits.
#[derive(Debug)]
pub struct Pipeline<W> {
    renewals: HashMap<i64, Renewal<W>>,
    /// The renewals that have no place on a stream, oldest first.
    backlog: VecDeque<Place>,
    streams: [Option<StreamQueue>; STREAMS_MAX],
    next_number: u64,
}

#[derive(Debug)]
struct Renewal<W> {
    number: u64,
    waiting: Vec<W>,
}

/// The place of a renewal in a queue. It is stale if the lease has no renewal with this number.
#[derive(Clone, Copy, Debug)]
struct Place {
    lease: i64,
    number: u64,
}

#[derive(Debug, Default)]
struct StreamQueue {
    unsent: VecDeque<Place>,
    in_flight: VecDeque<Place>,
}

impl StreamQueue {
    fn has_room(&self) -> bool {
        self.unsent.len() + self.in_flight.len() < IN_FLIGHT_MAX
    }

    fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.in_flight.is_empty()
    }

    /// Puts the renewals in flight back in front of the unsent ones.
    fn take_back(&mut self) {
        while let Some(place) = self.in_flight.pop_back() {
            self.unsent.push_front(place);
        }
    }
}

/// What the caller of [`Pipeline::join`] or [`Pipeline::relieve`] must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A stream has the renewal already, or it waits in the backlog.
    Nothing,
    /// This stream has something to send.
    Wake(usize),
    /// This stream must be opened.
    Open(usize),
}

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Another stream can make all renewals.
    Lost,
    /// The member has rejected a renewal.
    Rejected,
    /// The member rejects all renewals of these callers for now.
    Failed,
    /// No stream can be opened for these callers.
    NotOpened,
}

impl<W> Default for Pipeline<W> {
    fn default() -> Pipeline<W> {
        Pipeline {
            renewals: HashMap::new(),
            backlog: VecDeque::new(),
            streams: Default::default(),
            next_number: 0,
        }
    }
}

impl<W> Pipeline<W> {
    /// Adds a client to the renewal of a lease, which starts if there is none.
    pub fn join(&mut self, lease: i64, client: W) -> Work {
        if let Some(renewal) = self.renewals.get_mut(&lease) {
            renewal.waiting.push(client);
            return Work::Nothing;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.renewals.insert(lease, Renewal { number, waiting: vec![client] });
        let place = Place { lease, number };
        let mut open = self.streams.iter_mut().enumerate();
        let with_room = open
            .find_map(|(at, queue)| Some((at, queue.as_mut().filter(|queue| queue.has_room())?)));
        if let Some((at, queue)) = with_room {
            queue.unsent.push_back(place);
            return Work::Wake(at);
        }
        self.backlog.push_back(place);
        if self.streams[0].is_none() { self.relieve() } else { Work::Nothing }
    }

    /// Adds a stream for the oldest renewals of the backlog, unless there are [`STREAMS_MAX`].
    pub fn relieve(&mut self) -> Work {
        let Some(at) = self.streams.iter().position(Option::is_none) else { return Work::Nothing };
        let mut queue = StreamQueue::default();
        while queue.has_room()
            && let Some(place) = self.backlog.pop_front()
        {
            if is_live(&self.renewals, place) {
                queue.unsent.push_back(place);
            }
        }
        if queue.is_empty() {
            return Work::Nothing;
        }
        self.streams[at] = Some(queue);
        Work::Open(at)
    }

    /// Returns the next lease to renew on this stream, and notes that it was sent.
    pub fn next_to_send(&mut self, stream: usize) -> Option<i64> {
        let queue = self.streams[stream].as_mut()?;
        loop {
            let place = match queue.unsent.pop_front() {
                Some(place) => place,
                None if queue.has_room() => self.backlog.pop_front()?,
                None => return None,
            };
            if is_live(&self.renewals, place) {
                queue.in_flight.push_back(place);
                return Some(place.lease);
            }
        }
    }

    /// A member has renewed a lease. Returns the clients that wait for it.
    pub fn answered(&mut self, stream: usize, lease: i64) -> Vec<W> {
        let Some(queue) = self.streams[stream].as_mut() else { return Vec::new() };
        let found = queue.in_flight.iter().position(|place| place.lease == lease);
        let place = found.and_then(|at| queue.in_flight.remove(at));
        place.map_or_else(Vec::new, |place| take(&mut self.renewals, place))
    }

    /// A stream has ended, and its task opens it again if it has work. Returns the clients whose
    /// renewals have failed.
    pub fn ended(&mut self, stream: usize, end: End) -> Vec<W> {
        let Some(queue) = self.streams[stream].as_mut() else { return Vec::new() };
        let oldest = match end {
            End::Rejected => queue.in_flight.pop_front(),
            _ => None,
        };
        queue.take_back();
        let failed = match (end, oldest) {
            (End::Lost, _) => VecDeque::new(),
            (_, Some(oldest)) => VecDeque::from([oldest]),
            (End::Rejected | End::Failed, None) => std::mem::take(&mut queue.unsent),
            (End::NotOpened, None) => {
                queue.unsent.drain(..).chain(self.backlog.drain(..)).collect()
            }
        };
        failed.into_iter().flat_map(|place| take(&mut self.renewals, place)).collect()
    }

    /// Returns true if the stream has something to send or to wait for.
    pub fn has_work(&self, stream: usize) -> bool {
        let is_live = |place: &Place| is_live(&self.renewals, *place);
        let has_live = |queue: &StreamQueue| queue.unsent.iter().any(is_live);
        self.is_waiting(stream)
            || self.streams[stream].as_ref().is_some_and(has_live)
            || self.backlog.iter().any(is_live)
    }

    /// Returns true if renewals are in flight on the stream.
    pub fn is_waiting(&self, stream: usize) -> bool {
        self.streams[stream].as_ref().is_some_and(|queue| !queue.in_flight.is_empty())
    }

    /// Closes a stream if it has no work. Returns true if the stream is closed.
    pub fn close(&mut self, stream: usize) -> bool {
        if self.has_work(stream) {
            return false;
        }
        self.streams[stream] = None;
        true
    }

    /// Forgets the clients of a renewal that do not wait any more, and the renewal if none waits.
    pub fn give_up(&mut self, lease: i64, waits: impl Fn(&W) -> bool) {
        let Some(renewal) = self.renewals.get_mut(&lease) else { return };
        renewal.waiting.retain(waits);
        if renewal.waiting.is_empty() {
            self.renewals.remove(&lease);
        }
        // While no stream makes progress, stale places must not pile up.
        if self.backlog.len() > 2 * self.renewals.len() + IN_FLIGHT_MAX {
            self.backlog.retain(|place| is_live(&self.renewals, *place));
        }
    }
}

fn is_live<W>(renewals: &HashMap<i64, Renewal<W>>, place: Place) -> bool {
    renewals.get(&place.lease).is_some_and(|renewal| renewal.number == place.number)
}

/// Removes the renewal of a place, and returns its clients.
fn take<W>(renewals: &mut HashMap<i64, Renewal<W>>, place: Place) -> Vec<W> {
    if !is_live(renewals, place) {
        return Vec::new();
    }
    renewals.remove(&place.lease).map_or_else(Vec::new, |renewal| renewal.waiting)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// The leases below this one are rejected by the members.
    const REJECTED_LEASES: i64 = 5;

    /// Members that renew the leases of each stream in order, and clients.
    #[derive(Default)]
    struct World {
        pipeline: Pipeline<u64>,
        /// What was sent on each stream, and has no answer.
        wires: BTreeMap<usize, VecDeque<i64>>,
        /// The streams that are being opened.
        opening: BTreeSet<usize>,
        /// The leases of the clients that wait.
        waiting: BTreeMap<u64, i64>,
        given_up: BTreeSet<u64>,
        next_client: u64,
        streams_max: usize,
    }

    impl World {
        fn join(&mut self, lease: i64) {
            self.next_client += 1;
            self.waiting.insert(self.next_client, lease);
            let work = self.pipeline.join(lease, self.next_client);
            self.work(work);
        }

        fn relieve(&mut self) {
            let work = self.pipeline.relieve();
            self.work(work);
        }

        fn work(&mut self, work: Work) {
            match work {
                Work::Nothing => {}
                Work::Wake(stream) => self.send(stream),
                Work::Open(stream) => {
                    assert!(self.wires.insert(stream, VecDeque::new()).is_none());
                    assert!(self.pipeline.has_work(stream), "it is opened for a renewal");
                    self.opening.insert(stream);
                    self.streams_max = self.streams_max.max(self.wires.len());
                }
            }
        }

        /// A stream is open, or cannot be opened.
        fn open(&mut self, stream: usize, fails: bool) {
            if !self.opening.contains(&stream) {
                return;
            }
            if fails {
                let failed = self.pipeline.ended(stream, End::NotOpened);
                assert!(!self.pipeline.has_work(stream), "nobody waits for a stream that fails");
                for client in failed {
                    assert!(self.waiting.remove(&client).is_some());
                }
            } else {
                self.opening.remove(&stream);
                self.send(stream);
            }
        }

        fn send(&mut self, stream: usize) {
            if self.opening.contains(&stream) {
                return;
            }
            let wire = self.wires.get_mut(&stream).unwrap();
            while let Some(lease) = self.pipeline.next_to_send(stream) {
                wire.push_back(lease);
            }
            assert!(wire.len() <= IN_FLIGHT_MAX);
        }

        /// Each of these clients waits for this lease, and gets its only answer now.
        fn answer(&mut self, clients: Vec<u64>, lease: i64) {
            for client in clients {
                assert_eq!(self.waiting.remove(&client), Some(lease), "client {client}");
            }
        }

        /// The member makes the oldest renewal of a stream.
        fn renew(&mut self, stream: usize) {
            let wire = self.wires.get_mut(&stream).unwrap();
            let Some(lease) = wire.pop_front() else { return };
            let clients = if lease < REJECTED_LEASES {
                wire.clear();
                self.pipeline.ended(stream, End::Rejected)
            } else {
                self.pipeline.answered(stream, lease)
            };
            self.answer(clients, lease);
            self.send(stream);
        }

        fn lose(&mut self, stream: usize) {
            self.wires.get_mut(&stream).unwrap().clear();
            assert!(self.pipeline.ended(stream, End::Lost).is_empty());
            self.send(stream);
        }

        fn give_up(&mut self, client: u64) {
            let Some(lease) = self.waiting.remove(&client) else { return };
            self.given_up.insert(client);
            let given_up = &self.given_up;
            self.pipeline.give_up(lease, |client| !given_up.contains(client));
        }

        fn close(&mut self, stream: usize) {
            if self.pipeline.close(stream) {
                assert_eq!(self.wires.remove(&stream), Some(VecDeque::new()));
                self.opening.remove(&stream);
            }
        }
    }

    #[test]
    fn each_client_gets_the_answer_about_its_lease() {
        for seed in 0..60 {
            println!("seed {seed}");
            let mut random = SmallRng::seed_from_u64(seed);
            let mut world = World::default();
            let leases = random.random_range(1..3000);
            for _ in 0..20_000 {
                let open: Vec<usize> = world.wires.keys().copied().collect();
                let stream = open.get(random.random_range(0..open.len().max(1))).copied();
                match (random.random_range(0..100), stream) {
                    (0..50, _) => world.join(random.random_range(0..leases)),
                    (50..85, Some(stream)) => world.renew(stream),
                    (85..90, Some(stream)) => world.open(stream, random.random_range(0..50) == 0),
                    (90..91, Some(stream)) => world.lose(stream),
                    (91..94, Some(stream)) => world.close(stream),
                    (94..95, _) => world.relieve(),
                    _ => world.give_up(random.random_range(0..=world.next_client)),
                }
            }
            while !world.waiting.is_empty() {
                let open: Vec<usize> = world.wires.keys().copied().collect();
                for stream in open {
                    world.open(stream, false);
                    world.renew(stream);
                }
            }
            if leases > 1024 {
                assert!(world.streams_max > 1, "seed {seed}");
            }
            assert!(world.pipeline.renewals.is_empty());
        }
    }

    #[test]
    fn a_failure_concerns_all_renewals_of_the_stream() {
        let mut pipeline = Pipeline::default();
        assert_eq!(pipeline.join(1, "a"), Work::Open(0));
        assert_eq!(pipeline.join(2, "b"), Work::Wake(0));
        assert_eq!(pipeline.join(2, "c"), Work::Nothing);
        assert_eq!(pipeline.next_to_send(0), Some(1));
        assert_eq!(pipeline.ended(0, End::Failed), ["a", "b", "c"]);
        assert!(pipeline.close(0));
    }

    #[test]
    fn without_a_stream_all_renewals_fail() {
        let mut pipeline = Pipeline::default();
        let clients: Vec<i64> = (0..500).collect();
        for client in &clients {
            pipeline.join(*client, *client);
        }
        assert_eq!(pipeline.ended(0, End::NotOpened), clients);
        assert!(!pipeline.has_work(0));
    }

    #[test]
    fn another_stream_takes_the_oldest_renewals_that_wait() {
        let mut pipeline = Pipeline::default();
        let full = IN_FLIGHT_MAX as i64;
        for lease in 0..full + 2 {
            pipeline.join(lease, lease);
        }
        assert_eq!(pipeline.relieve(), Work::Open(1));
        assert_eq!(pipeline.relieve(), Work::Nothing, "no other renewal waits");
        assert_eq!(pipeline.join(1000, 1000), Work::Wake(1));
        let sent: Vec<_> = std::iter::from_fn(|| pipeline.next_to_send(1)).collect();
        assert_eq!(sent, [full, full + 1, 1000]);
    }

    #[test]
    fn given_up_renewals_do_not_pile_up() {
        let mut pipeline = Pipeline::default();
        for lease in 0..100_000 {
            pipeline.join(lease, lease);
            if lease > 2000 {
                pipeline.give_up(lease, |_| false);
            }
        }
        assert!(pipeline.backlog.len() < 5000, "{}", pipeline.backlog.len());
    }
}
