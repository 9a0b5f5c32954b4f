"""Follows requests through a server, and compares the functions that they pass with the tables."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

from steps import Function, Row, Symbols, compare, read_table, thread_of

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60
# A server that does nothing for this time has finished all earlier requests. The commit thread looks
# for changes every 100 ms.
QUIET = 0.4
PR_SET_PTRACER = 0x59616D61
PTRACER_ANY = ctypes.c_ulong(-1)

TABLES = {
    page: read_table((CHECKOUT / "docs" / page).read_text()) for page in ["read-path.md", "write-path.md"]
}
# An iteration of the raft loop begins with the first function, and calls the second one for each input.
DRAIN = Function("RaftLoopQueue", "drain", "crates/server/src/threads/raft_loop_queue.rs")
HANDLE_INPUT = Function("Replica", "handle_input", "crates/replica/src/state_machines/input.rs")
FUNCTIONS = sorted({DRAIN, HANDLE_INPUT, *(row.function for rows in TABLES.values() for row in rows)}, key=str)


def let_others_trace():
    """Allows gdb to attach to this process where the kernel allows it only to a parent."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PTRACER_ANY, 0, 0, 0)


def gdb_may_attach():
    """Returns whether gdb may attach to a process that allows it."""
    process = subprocess.Popen(["sleep", "60"], preexec_fn=let_others_trace)
    command = ["gdb", "--nx", "--batch", "--eval-command", "set sysroot /nonexistent", "--pid", str(process.pid)]
    said = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    process.kill()
    process.wait()
    return "ptrace: " not in said.stdout + said.stderr


def eventually(what, so):
    end = time.monotonic() + PATIENCE
    while True:
        found = so()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
        time.sleep(0.02)


def idle_calls(hits):
    """Returns the places of the calls that the raft loop makes in iterations without input, such as ticks."""
    idle, iteration = set(), []
    for time, (thread, function) in enumerate(hits):
        if thread != "raft":
            continue
        if function == DRAIN:
            idle.update(iteration or [])
            iteration = []
        if iteration is not None:
            iteration.append(time)
        if function == HANDLE_INPUT:
            # This iteration has input, so its calls count.
            iteration = None
    return idle.union(iteration or [])


class Recorded:
    """A server with one member, and gdb, which records the functions that its threads call."""

    # The addresses of FUNCTIONS in the file of the program.
    addresses = None

    def __init__(self, flags, has_long_values):
        self.place = Path(tempfile.mkdtemp())
        self.program = os.environ["CLEARLANE"]
        arguments = ["--data-dir", self.place / "data", "--advertise-client-urls", "http://127.0.0.1:2379"]
        for flag in ["--listen-client-urls", "--listen-peer-urls"]:
            arguments += [flag, "http://127.0.0.1:0"]
        # Ticks are rare, because each costs time in gdb.
        arguments += ["--heartbeat-interval", "10000", "--election-timeout", "50000"]
        self.log = open(self.place / "log", "w")
        self.server = subprocess.Popen(
            [self.program, *arguments, *flags], stdout=self.log, stderr=self.log, preexec_fn=let_others_trace
        )
        self.gdb = None
        try:
            self.port = eventually("the server has a port", self.find_port)
            self.etcdctl("put", "key", "first")
            for number in range(3 if has_long_values else 0):
                self.etcdctl("put", f"long/{number}", stdin="x" * 100_000)
            self.etcdctl("get", "key")
            self.record()
        except BaseException:
            self.end()
            raise

    def find_port(self):
        assert self.server.poll() is None, f"the server has ended:\n{(self.place / 'log').read_text()}"
        log = (self.place / "log").read_text()
        line = re.search(r'"serving client traffic.*"address":"127\.0\.0\.1:(\d+)"', log)
        return line and line[1]

    def etcdctl(self, *arguments, stdin=None):
        flags = [f"--endpoints=127.0.0.1:{self.port}", f"--command-timeout={PATIENCE}s"]
        command = [os.environ["ETCDCTL"], *flags, *arguments]
        subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, text=True, check=True)

    def record(self):
        if not Recorded.addresses:
            symbols = Symbols(self.program, CHECKOUT)
            Recorded.addresses = [symbols.find(function) for function in FUNCTIONS]
        unknown = [str(function) for function, found in zip(FUNCTIONS, self.addresses) if not found]
        assert not unknown, (
            f"{self.program} has no symbol for {', '.join(unknown)}. It must be a program of the profile `dev` that"
            " is not stripped. The compiler may have put a small function into its caller: name another one then."
        )
        recording = {"process": self.server.pid, "program": self.program, "addresses": self.addresses}
        recording["hits"] = str(self.place / "hits")
        (self.place / "recording").write_text(json.dumps(recording))
        with open(self.place / "gdb", "w") as output:
            self.gdb = subprocess.Popen(
                ["gdb", "--nx", "--quiet", "--batch", "--command", CHECKOUT / "tests/step-tables/recorder.py"],
                env=dict(os.environ, STEP_RECORDING=str(self.place / "recording")),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        eventually("gdb records", self.is_recording)

    def is_recording(self):
        assert self.gdb.poll() is None, f"gdb has ended:\n{(self.place / 'gdb').read_text()}"
        return self.hits_since(0) is not None

    def hits_since(self, start):
        """Returns the calls after the first `start` calls, or None before the recording begins."""
        try:
            text = (self.place / "hits").read_text()
        except FileNotFoundError:
            return None
        if not text.startswith("ready\n"):
            return None
        # The last line may be incomplete.
        lines = [line.rsplit(" ", 1) for line in text[: text.rindex("\n")].split("\n")[1:]]
        hits = [(thread_of(thread), FUNCTIONS[int(function)]) for thread, function in lines]
        idle = idle_calls(hits)
        return [hit for time, hit in enumerate(hits) if time >= start and time not in idle]

    def count(self):
        return (self.place / "hits").read_text().count("\n") - 1

    def wait_until_quiet(self):
        """Waits until no thread other than the commit thread has called a function for some time."""
        seen, since = None, time.monotonic()
        end = since + PATIENCE
        while time.monotonic() < since + QUIET:
            assert time.monotonic() < end, "the server is not quiet"
            now = sum(thread != "commit" for thread, _ in self.hits_since(0))
            if now != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.02)

    def follow(self, rows, words, request):
        """Sends one request, and returns its calls and what is wrong with the table."""
        # Another activity of the server may disturb one attempt, but a wrong table fails in all of them.
        for _ in range(3):
            hits, wrong = self.follow_once(rows, words, request)
            if not wrong:
                break
        return hits, wrong

    def follow_once(self, rows, words, request):
        self.wait_until_quiet()
        start = self.count()
        self.etcdctl(*request)
        hits, since = [], time.monotonic()
        while self.is_recording():
            now = self.hits_since(start)
            if now != hits:
                hits, since = now, time.monotonic()
            wrong = compare(rows, words, hits)
            # Steps such as the commit come after the response.
            if not wrong or time.monotonic() > since + 3:
                return hits, wrong
            time.sleep(0.05)

    def end(self):
        # gdb ends first, because it may crash if the process ends while it handles a breakpoint.
        for process in [self.gdb, self.server]:
            if process:
                process.kill()
                process.wait()
        self.log.close()
        shutil.rmtree(self.place)


GET, PUT = ["get", "key"], ["put", "key", "second"]
SERIALIZABLE = ["get", "key", "--consistency=s"]
LONG = ["get", "long/", "--prefix"]
ASKS = ["linearizable", "asks"]

# For each server its flags, the words that hold for all its requests, and the requests: the words
# that hold for each, and its command.
RUNS = {
    "default_era": ([], ["default era"], [
        (["linearizable", "short"], GET),
        (["short"], SERIALIZABLE),
        (["linearizable", "long"], LONG),
        ([], PUT),
    ]),
    # The sole voter of the default era asks nobody in the mode `read-index`, but it does in `log`.
    "default_era_that_reads_through_the_log": (["--read-mode", "log"], ["default era"], [
        ([*ASKS, "short", "log"], GET),
    ]),
    "era_3_0": (["--era", "3.0"], ["old eras", "3.0"], [([*ASKS, "log"], GET), ([], SERIALIZABLE), ([], PUT)]),
    "era_3_2": (["--era", "3.2"], ["old eras", "3.2"], [([*ASKS, "ReadIndex"], GET), ([], PUT)]),
    "era_3_4": (["--era", "3.4"], ["old eras", "3.4"], [([*ASKS, "ReadIndex"], GET), ([], SERIALIZABLE), ([], PUT)]),
    "era_3_5": (["--era", "3.5"], ["old eras", "3.5"], [([*ASKS, "ReadIndex"], GET)]),
}


def page_of(request):
    return "write-path.md" if request == PUT else "read-path.md"


class StepTables(unittest.TestCase):
    def follow(self, flags, era, requests):
        """Starts a server, and follows its requests."""
        recorded = Recorded(flags, any(request == LONG for _, request in requests))
        self.addCleanup(recorded.end)
        for words, request in requests:
            rows, words = TABLES[page_of(request)], {*era, *words}
            title = f"docs/{page_of(request)}, {' '.join(['clearlane', *flags])}, etcdctl {' '.join(request)}"
            with self.subTest(title):
                hits, wrong = recorded.follow(rows, words, request)
                if wrong:
                    self.fail("\n".join([f"the step table differs from the calls of the server: {title}", *wrong]))
                self.check_that_order_matters(rows, words, hits)

    def check_that_order_matters(self, rows, words, hits):
        """Fails if the recording also agrees with a table in which two neighbours are swapped."""
        applying = [row for row in rows if row.applies(words)]
        for first, second in zip(applying, applying[1:]):
            # A step that names another one may run at the same time as the step above it.
            if second.after is None and first.function != second.function:
                places = {first.number: second, second.number: first}
                swapped = [replace(places.get(row.number, row), number=row.number) for row in rows]
                message = f"{first} and {second} could be swapped, and no recording would show it"
                self.assertTrue(compare(swapped, words, hits), message)

    def test_each_row_belongs_to_a_request(self):
        for page, rows in TABLES.items():
            all_requests = [(era, words, of) for _, era, requests in RUNS.values() for words, of in requests]
            known = [{*era, *words} for era, words, of in all_requests if page_of(of) == page]
            for row in rows:
                self.assertTrue(any(row.applies(words) for words in known), f"docs/{page}: no request passes {row}")


def test_of(run):
    return lambda self: self.follow(*run)


for name, run in RUNS.items():
    setattr(StepTables, f"test_{name}", test_of(run))


class Comparison(unittest.TestCase):
    """The comparison finds each kind of mistake in a table."""

    A, B, C = (Function("", name, "crates/x/src/a.rs") for name in "abc")
    ROWS = [Row(1, None, "net", A, ""), Row(2, None, "net", B, ""), Row(3, None, "raft", C, "asks")]
    HITS = [("net", A), ("net", B), ("net", A), ("raft", C)]

    def check(self, rows, *parts, words=("asks",), hits=None):
        wrong = compare(rows, set(words), hits or self.HITS)
        self.assertEqual(len(wrong), len(parts), wrong)
        for text, part in zip(wrong, parts):
            self.assertIn(part, text)

    def test_a_true_table(self):
        self.check(self.ROWS)
        self.check(self.ROWS[:2], words=[])

    def test_a_wrong_order(self):
        a, b, c = self.ROWS
        self.check([b, a, c], "step 1 (net, `a` of crates/x/src/a.rs) is passed before step 2")
        self.check([a, c, b], "step 2 (net, `b` of crates/x/src/a.rs) is passed before step 3")

    def test_a_wrong_thread(self):
        a, b, c = self.ROWS
        self.check([a, b, replace(c, thread="wal")], "is missing: the function was called on raft")

    def test_a_missing_call(self):
        self.check(self.ROWS, "is missing: the function was not called", hits=self.HITS[:3])

    def test_a_wrong_request(self):
        self.check(self.ROWS, "was passed by this request", words=[])

    def test_a_step_that_follows_an_earlier_one(self):
        a, b, c = self.ROWS
        hits = [("net", self.A), ("raft", self.C), ("net", self.B)]
        self.check([a, b, c], "step 3 (raft, `c` of crates/x/src/a.rs) is passed before step 2", hits=hits)
        self.check([a, b, replace(c, after=1)], hits=hits)


class IdleIterations(unittest.TestCase):
    def test_only_iterations_with_input_count(self):
        poll = Function("", "poll", "crates/x/src/a.rs")
        functions = [poll, DRAIN, poll, DRAIN, HANDLE_INPUT, poll, DRAIN, poll]
        self.assertEqual(idle_calls([("raft", function) for function in functions]), {0, 1, 2, 6, 7})
        self.assertEqual(idle_calls([("net", function) for function in functions]), set())


class Reading(unittest.TestCase):
    ROW = "| 1 | net | [`X::a`](../crates/x/src/a/mod.rs) | 3.0 or 3.1, asks | does it |"

    def test_a_row(self):
        [row] = read_table(f"text\n\n| step | thread |\n|---|---|\n{self.ROW}\n")
        self.assertEqual(row, Row(1, None, "net", Function("X", "a", "crates/x/src/a/mod.rs"), "3.0 or 3.1, asks"))
        self.assertTrue(row.applies({"3.1", "asks"}))
        self.assertFalse(row.applies({"3.1"}))
        self.assertFalse(row.applies({"3.2", "asks"}))

    def test_mistakes(self):
        for page in [self.ROW.replace("| 1 ", "| 2 "), self.ROW.replace("[`X::a`]", "`a`"), self.ROW + " more |"]:
            with self.assertRaises(AssertionError):
                read_table(page)
