"""The step tables of docs/read-path.md and docs/write-path.md, and how to compare them with a run.

A row of a table is

    | 12 | raft | [`Replica::poll`](../crates/replica/src/state_machines/mod.rs) | asks | ... |

Its cells are the number of the step, its thread, its function with the file that has it, the
requests that pass it, and what it does. The requests are words such as `asks`: a request passes the
step if all words, separated by commas, hold for it. In `3.0 or 3.1` one of both is enough.

A step follows the step above it. `48, after 40` names another step that it follows, because the
thread of step 47 continues at the same time.

`compare` reads a recording: which thread has called which function, in order.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROW = re.compile(r"\| (\d+)(?:, after (\d+))? \|")
FUNCTION = re.compile(r"\[`(?:(\w+)::)?(\w+)`\]\(\.\./(crates/(\w+)/src/(\S+)\.rs)\)")


@dataclass(frozen=True)
class Function:
    """A function, as a row names it. `owner` is a type, a trait or a module, or empty."""

    owner: str
    name: str
    path: str

    def __str__(self):
        owner = self.owner + "::" if self.owner else ""
        return f"`{owner}{self.name}` of {self.path}"


@dataclass(frozen=True)
class Row:
    number: int
    after: int | None
    thread: str
    function: Function
    only: str

    def applies(self, words):
        """Returns whether a request for which `words` hold passes this step."""
        needed = [alternatives.split(" or ") for alternatives in self.only.split(", ") if alternatives]
        return all(any(word in words for word in alternatives) for alternatives in needed)

    def __str__(self):
        return f"step {self.number} ({self.thread}, {self.function})"


def read_table(page):
    """Returns the rows of the step table of a page. `page` is the text of the page."""
    rows = []
    for line in page.splitlines():
        start = ROW.match(line)
        if not start:
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        function = FUNCTION.fullmatch(cells[2]) if len(cells) == 5 else None
        assert function, f"not a row with a number, a thread, a function, its requests and a text: {line}"
        owner, name, path = function[1] or "", function[2], function[3]
        after = int(start[2]) if start[2] else None
        rows.append(Row(int(start[1]), after, cells[1], Function(owner, name, path), cells[3]))
    numbers = [row.number for row in rows]
    assert numbers == list(range(1, len(rows) + 1)), f"the steps are not numbered 1, 2, 3 ...: {numbers}"
    for row in rows:
        assert row.after is None or row.after < row.number, f"{row} follows a later step"
    return rows


class Symbols:
    """The functions of a program, with their addresses in its file."""

    def __init__(self, program, checkout):
        self.checkout = Path(checkout)
        self.addresses = {}
        listing = subprocess.run(["nm", "--demangle", program], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            fields = line.split(maxsplit=2)
            if len(fields) == 3 and fields[1] in "tTwW" and fields[2].lstrip("<").startswith("clearlane_"):
                self.addresses.setdefault(fields[2], set()).add(int(fields[0], 16))

    def find(self, function):
        """Returns the addresses of a function: one for each instance of a generic function.

        Calling an `async` function only makes a future. Its body is a symbol of its own, a closure.
        """
        _, package, _, *modules = Path(function.path).with_suffix("").parts
        if modules[-1] in ("mod", "lib"):
            modules.pop()
        module = "::".join(["clearlane_" + package, *modules])
        name, body = function.name, ""
        source = (self.checkout / function.path).read_text()
        if re.search(rf"\basync fn {name}\b", source):
            body = "::{{closure}}"
        # The type may be written before the function, or in an impl for a type of another module.
        owner = r"(?:[A-Z]\w*(?:<.*>)?::|<impl .*>::)?"
        inherent = re.compile(rf"{re.escape(module)}::{owner}{name}{re.escape(body)}")
        of_trait = re.compile(rf"<{re.escape(module)}::[A-Z]\w*(?:<.*>)? as .*>::{name}{re.escape(body)}")
        found = set()
        for symbol, addresses in self.addresses.items():
            if name in symbol and (inherent.fullmatch(symbol) or of_trait.fullmatch(symbol)):
                before = symbol[: symbol.rindex(name)]
                if re.search(rf"\b{function.owner}\b", before):
                    found |= addresses
        return sorted(found)


def thread_of(name):
    """Returns the name of a thread without the number at its end."""
    return re.sub(r"-\d+$", "", name)


def compare(rows, words, hits):
    """Compares the table with a recording, and returns what is wrong, or an empty list.

    `words` are those that hold for the request. `hits` has a pair of thread and function for each
    call, in order.

    Rows of one thread that follow each other are a stretch. The calls of a stretch come after the
    earlier stretches of its thread. The first calls of its functions must have the order of the
    rows, and the first of them must come after the step that the stretch follows.
    """
    applying = [row for row in rows if row.applies(words)]
    calls = {}
    for time, hit in enumerate(hits):
        calls.setdefault(hit, []).append(time)
    wrong, times, ends, last = [], {}, {}, None
    for row in applying:
        if last is None or row.thread != last.thread or row.after is not None:
            start, seen = ends.get(row.thread, -1), set()
            cause = next((other for other in applying if other.number == row.after), last)
            if row.after is not None and row.after not in times:
                wrong.append(f"{row} follows step {row.after}, which this request does not pass")
        # A second row of a function in a stretch means its next call.
        earliest = times[last.number] if row.function in seen else start
        seen.add(row.function)
        time = next((time for time in calls.get((row.thread, row.function), []) if time > earliest), None)
        if time is None:
            wrong.append(f"{row} is missing{elsewhere(row, calls)}")
        elif cause is not None and time < times[cause.number]:
            wrong.append(f"{row} is passed before {cause}, but its row is below")
        times[row.number] = earliest if time is None else time
        ends[row.thread] = max(ends.get(row.thread, -1), times[row.number])
        last = cause = row
    expected = {(row.thread, row.function) for row in applying}
    for row in rows:
        passed = (row.thread, row.function)
        if passed not in expected and passed in calls:
            wrong.append(f"{row} was passed by this request, but the table says only: {row.only}")
    return wrong


def elsewhere(row, calls):
    """Explains where the function of a missing row was called."""
    threads = sorted({thread for thread, function in calls if function == row.function})
    if not threads:
        return ": the function was not called"
    if row.thread in threads:
        return " at this place: its thread has called the function earlier"
    return f": the function was called on {' and '.join(threads)}"
