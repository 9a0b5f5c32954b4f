//! Histories that are linearizable, and histories that are not.

use proptest::prelude::*;

use super::*;
use crate::clients::{Client, ClientConfig};
use crate::history::{History, OperationOutcome};
use crate::rng::Rng;

/// Checks a history in which lease operations have made no revisions.
fn check(operations: &[Operation], hints: &Hints) -> CheckResult {
    super::check(operations, hints, &BTreeSet::new())
}

#[derive(Default)]
struct HistoryBuilder {
    history: History,
}

impl HistoryBuilder {
    fn done(mut self, from: Micros, to: Micros, request: Request, reply: Reply) -> HistoryBuilder {
        let number = self.history.invoke(from, 1, 1, request);
        self.history.complete(to, number, OperationOutcome::Completed(reply));
        self
    }

    fn open(mut self, from: Micros, request: Request) -> HistoryBuilder {
        self.history.invoke(from, 1, 1, request);
        self
    }

    fn passes(self) {
        check(&self.history.operations, &Hints::new()).unwrap();
    }

    fn fails(self, why: &str) {
        let told = check(&self.history.operations, &Hints::new())
            .expect_err("no single store could have answered that");
        assert!(told.description.contains(why), "{told}");
    }
}

fn put(value: &str) -> Request {
    Request::Put { key: "k1".into(), value: value.into() }
}

fn read() -> Request {
    Request::Read { key: Some("k1".into()), serializable: false }
}

fn delete() -> Request {
    Request::Delete { key: "k1".into() }
}

fn swap(expected: Option<&str>, value: &str) -> Request {
    let expected = expected.map(str::to_owned);
    Request::CompareAndSwap { key: "k1".into(), expected, value: value.into() }
}

fn record(value: &str, created: i64, modified: i64, version: i64) -> Vec<Record> {
    vec![Record {
        key: "k1".into(),
        value: value.into(),
        create_revision: created,
        mod_revision: modified,
        version,
    }]
}

fn changed_reply(revision: i64, records: Vec<Record>) -> Reply {
    Reply { revision, changed: true, records }
}

fn read_reply(revision: i64, records: Vec<Record>) -> Reply {
    Reply { revision, changed: false, records }
}

#[test]
fn a_stale_read_fails() {
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, read(), read_reply(1, vec![]))
        .fails("started later");
    // Another read has already seen the write, although the write itself has not ended.
    HistoryBuilder::default()
        .done(0, 9, put("a"), changed_reply(2, vec![]))
        .done(1, 2, read(), read_reply(2, record("a", 2, 2, 1)))
        .done(3, 4, read(), read_reply(1, vec![]))
        .fails("started later");
}

#[test]
fn a_read_from_the_future_fails() {
    HistoryBuilder::default()
        .done(0, 1, read(), read_reply(2, record("a", 2, 2, 1)))
        .done(2, 3, put("a"), changed_reply(2, vec![]))
        .fails("started later");
    // The same history, but the write has no response.
    HistoryBuilder::default()
        .done(0, 1, read(), read_reply(2, record("a", 2, 2, 1)))
        .open(2, put("a"))
        .fails("no operation has made revision 2");
}

#[test]
fn a_lost_write_fails() {
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, put("b"), changed_reply(2, vec![]))
        .fails("two changes");
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, put("b"), changed_reply(3, vec![]))
        .fails("a single store returns");
}

#[test]
fn a_write_that_happened_twice_fails() {
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, put("b"), changed_reply(3, record("a", 2, 2, 1)))
        .done(4, 5, read(), read_reply(4, record("a", 2, 4, 3)))
        .fails("no operation has made revision 4");
}

#[test]
fn gaps_are_filled_with_what_fits() {
    let begin = || HistoryBuilder::default().open(0, put("a")).open(0, put("b"));
    begin().done(1, 2, read(), read_reply(1, vec![])).passes();
    begin().done(1, 2, read(), read_reply(3, record("a", 2, 3, 2))).passes();
    begin()
        .done(1, 2, read(), read_reply(4, record("a", 2, 4, 3)))
        .fails("no operation has made revision");
    // No operation has seen "a". But the delete made a revision, so "a" must have been present.
    HistoryBuilder::default()
        .open(0, delete())
        .open(0, put("a"))
        .done(1, 2, put("b"), changed_reply(4, vec![]))
        .passes();
    // An open swap took effect only if the key had the expected value.
    let swapped = |expected| {
        HistoryBuilder::default()
            .done(0, 1, put("a"), changed_reply(2, vec![]))
            .open(0, swap(Some(expected), "b"))
            .done(2, 3, read(), read_reply(3, record("b", 2, 3, 2)))
    };
    swapped("a").passes();
    swapped("x").fails("no operation has made revision 3");
    // The only delete that could fill the gap started too late.
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, read(), read_reply(3, vec![]))
        .open(4, delete())
        .fails("no operation has made revision 3");
}

/// The search first tries "a" before "b". Then it must try them in the other order, because the
/// swap needs the value "a".
#[test]
fn the_same_operations_in_another_order_are_tried() {
    HistoryBuilder::default()
        .open(0, put("a"))
        .open(0, put("b"))
        .open(0, swap(Some("a"), "c"))
        .done(1, 2, read(), read_reply(4, record("c", 2, 4, 3)))
        .passes();
}

#[test]
fn an_open_operation_happens_once() {
    HistoryBuilder::default()
        .open(0, put("a"))
        .done(1, 2, delete(), changed_reply(3, record("a", 2, 2, 1)))
        .done(3, 4, read(), read_reply(4, record("a", 4, 4, 1)))
        .fails("no operation has made revision 4");
}

#[test]
fn serializable_reads_are_not_asked() {
    let stale = Request::Read { key: Some("k1".into()), serializable: true };
    HistoryBuilder::default()
        .done(0, 1, put("a"), changed_reply(2, vec![]))
        .done(2, 3, stale, read_reply(1, vec![]))
        .passes();
}

/// Returns a history of operations that take effect on a plain map between their start and end.
/// About `told_permille` of a thousand operations get a reply. If `told_permille` is less than
/// 1000, a tenth of the operations never take effect. Also returns which operation made each
/// revision.
fn linear_history(seed: u64, steps: usize, told_permille: u64) -> (History, Hints) {
    let mut rng = Rng::new(seed);
    let config = ClientConfig { keys: 3, ..ClientConfig::random(&mut rng) };
    let mut clients: Vec<Client> = (1..=5).map(|id| Client::new(id, config, rng.split())).collect();
    let (mut history, mut hints) = (History::default(), Hints::new());
    let mut state = StoreModel::default();
    // The number of each client's running operation and its reply, by client. The reply is `None`
    // until the operation is applied.
    let mut asked: BTreeMap<usize, (usize, Option<Reply>)> = BTreeMap::new();
    for now in 0..steps as Micros {
        let actor = rng.between(0, clients.len() as u64 - 1) as usize;
        let client = &mut clients[actor];
        match asked.remove(&actor) {
            None => {
                let mut request = client.request();
                if let Request::Read { serializable, .. } = &mut request {
                    *serializable = false;
                }
                asked.insert(actor, (history.invoke(now, client.id, 1, request), None));
            }
            Some((number, None)) if told_permille == 1000 || rng.permille(900) => {
                let reply = state.apply(&history.operations[number].request);
                if reply.changed {
                    hints.insert(reply.revision, number);
                }
                asked.insert(actor, (number, Some(reply)));
            }
            // This operation never takes effect, and its client gets no reply.
            Some((number, None)) => {
                let request = &history.operations[number].request;
                client.on_outcome(request, &OperationOutcome::Unknown);
            }
            Some((number, Some(reply))) => {
                let outcome = match rng.permille(told_permille) {
                    true => OperationOutcome::Completed(reply),
                    false => OperationOutcome::Unknown,
                };
                client.on_outcome(&history.operations[number].request, &outcome);
                if outcome != OperationOutcome::Unknown {
                    history.complete(now, number, outcome);
                }
            }
        }
    }
    if told_permille == 1000 {
        for (number, reply) in asked.into_values() {
            let reply = reply.unwrap_or_else(|| state.apply(&history.operations[number].request));
            history.complete(steps as Micros, number, OperationOutcome::Completed(reply));
        }
    }
    (history, hints)
}

/// Changes one reply that has records. Returns false if there is no such reply.
fn falsify_reply(operations: &mut [Operation], rng: &mut Rng) -> bool {
    let told: Vec<usize> = (0..operations.len())
        .filter(|at| operations[*at].reply().is_some_and(|reply| !reply.records.is_empty()))
        .collect();
    let Some(at) = rng.choose(&told) else { return false };
    let OperationOutcome::Completed(reply) = &mut operations[*at].outcome else { return false };
    match rng.between(0, 3) {
        0 => reply.records[0].value += "!",
        1 => reply.records[0].version += 1,
        2 => reply.records[0].mod_revision -= 1,
        _ => drop(reply.records.pop()),
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn a_linear_execution_passes(seed in any::<u64>()) {
        let (history, _) = linear_history(seed, 400, 900);
        check(&history.operations, &Hints::new()).unwrap();
    }

    #[test]
    fn few_replies_are_reported_and_hints_help(seed in any::<u64>()) {
        let (history, hints) = linear_history(seed, 1000, 150);
        check(&history.operations, &hints).unwrap();
    }

    #[test]
    fn wrong_hints_do_no_harm(seed in any::<u64>()) {
        let (history, hints) = linear_history(seed, 400, 900);
        let wrong = hints.iter().map(|(revision, number)| (revision + 1, *number)).collect();
        check(&history.operations, &wrong).unwrap();
    }

    /// In this history every operation has a reply, because an open operation might explain the
    /// changed reply.
    #[test]
    fn one_changed_reply_fails(seed in any::<u64>()) {
        let (history, hints) = linear_history(seed, 400, 1000);
        let mut operations = history.operations.to_vec();
        if falsify_reply(&mut operations, &mut Rng::new(!seed)) {
            prop_assert!(check(&operations, &hints).is_err());
        }
    }
}

#[test]
fn revisions_of_others_have_no_operation() {
    let story = HistoryBuilder::default().done(0, 1, put("a"), changed_reply(3, vec![])).done(
        2,
        3,
        read(),
        read_reply(5, record("a", 3, 3, 1)),
    );
    let told = |others: &[i64]| {
        let others = others.iter().copied().collect();
        super::check(&story.history.operations, &Hints::new(), &others)
    };
    told(&[2, 4, 5]).unwrap();
    for wrong in [&[][..], &[2, 4], &[4, 5]] {
        let told = told(wrong).unwrap_err().description;
        assert!(told.contains("no operation has made"), "{wrong:?}: {told}");
    }
}
