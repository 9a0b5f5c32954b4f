"""Runs the commands of a page of docs/recipes in the same way as a reader of the page.

A fence whose info string starts with `sh elsewhere` is run here. All blocks of a page run in one shell, which has the
options `-euo pipefail`, so variables and the directory stay the same from block to block. The shell starts in a
directory with a copy of deploy/. A `text` fence directly after a block is the block's output; `...` in it stands for
any text within a line.

A command that must fail starts with `! ` and ends with a comment, which is a part of the expected message:

    ! etcdctl get motd  # user name is empty

With the further word `background`, a block runs in its own process until the next heading or the end of the page. Then
it receives SIGINT, as from Ctrl-C. Paths below /tmp are replaced by paths in a temporary directory.
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The longest time in seconds to wait for anything that must happen.
PATIENCE = 60
READY = "ready to serve client requests"


@dataclass
class Block:
    heading: str
    words: list
    text: str
    output: str | None = None


def blocks_of(page):
    """Returns the blocks that are run here, each with the output that the page shows."""
    found, heading, previous = [], "", None
    pattern = re.compile(r"^(?:#+ (?P<heading>[^\n]*)|```(?P<info>[^\n]*)\n(?P<text>.*?)^```)$",
                         re.MULTILINE | re.DOTALL)
    text = (ROOT / "docs/recipes" / page).read_text()
    end = 0
    for match in pattern.finditer(text):
        words = (match["info"] or "").split()
        is_behind = not text[end : match.start()].strip()
        end = match.end()
        if match["heading"] is not None:
            heading, previous = match["heading"], None
        elif words == ["text"] and previous is not None and is_behind:
            previous.output, previous = match["text"], None
        else:
            previous = Block(heading, words[2:], match["text"]) if words[:2] == ["sh", "elsewhere"] else None
            found += [previous] if previous else []
    assert found, f"{page} has no block that is run here"
    return found


EXPECTED_FAILURE = re.compile(r"^! (?P<command>.*?)  # (?P<message>.+)$", re.MULTILINE)
# Ends the shell with an error unless the command fails with this message.
FAILS_WITH = """
fails_with() {
    local said
    if said=$(eval "$1" 2>&1); then
        printf 'this command succeeded, and must fail with %s: %s\\n%s\\n' "$2" "$1" "$said" >&2
        exit 1
    fi
    if [[ "$said" != *"$2"* ]]; then
        printf 'this command failed without the message %s: %s\\n%s\\n' "$2" "$1" "$said" >&2
        exit 1
    fi
}
"""


def with_expected_failures(text):
    """Returns the block's commands, with a check in place of each line that starts with `! `."""
    def check(line):
        return f"fails_with {shlex.quote(line['command'])} {shlex.quote(line['message'])}"

    checked = EXPECTED_FAILURE.sub(check, text)
    unchecked = re.search(r"^! .*", checked, re.MULTILINE)
    assert unchecked is None, f"names no message, as in `! command  # message`: {unchecked and unchecked[0]}"
    return checked


def eventually(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.05)


def expression(pattern):
    """Returns the output that a page shows as a regular expression."""
    return re.escape(pattern).replace(re.escape("..."), ".*")


def matches(pattern, text):
    """Returns whether the text starts with the output that a page shows."""
    return re.match(expression(pattern), text) is not None


def contains(pattern, text):
    """Returns whether the output that a page shows starts at any line of the text."""
    return re.search("^" + expression(pattern), text, re.MULTILINE) is not None


@dataclass
class Process:
    """A program that runs in its own process group and writes its output to a file."""

    arguments: list
    log: pathlib.Path
    environment: dict = field(default_factory=dict)
    directory: pathlib.Path | None = None
    # The output of a process that is ready contains these lines. Warnings may precede them. None: it contains `READY`.
    output: str | None = None

    def __post_init__(self):
        with open(self.log, "wb") as log:
            # In the background of a script, a parent process ignores SIGINT, and the program would
            # inherit this.
            self.process = subprocess.Popen(
                self.arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory,
                env={**os.environ, **self.environment}, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def said(self):
        return self.log.read_text(errors="replace")

    def is_ready(self):
        is_over = self.process.poll() is not None
        ready = READY in self.said() if self.output is None else contains(self.output, self.said())
        assert ready or not is_over, f"{self.arguments} has ended:\n{self.said()}"
        return ready

    def wait_ready(self):
        eventually(f"{self.arguments} is ready; it says:\n{self.said()}", self.is_ready)

    def stop(self, number=signal.SIGINT):
        """Sends a signal to the whole process group, as Ctrl-C does. Returns the exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"{self.arguments} does not end; it says:\n{self.said()}") from None


class Shell:
    """A shell that runs one block after another."""

    def __init__(self, directory):
        self.directory = directory
        self.process = subprocess.Popen(
            ["bash", "-euo", "pipefail"], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.count = 0
        self.process.stdin.write(FAILS_WITH)

    def run(self, text):
        """Returns whether the commands succeeded, and their output and errors."""
        self.count += 1
        block, output, errors = (self.directory / f"block-{self.count}{end}" for end in ("", ".out", ".err"))
        block.write_text(text)
        self.process.stdin.write(f"source '{block}' </dev/null >'{output}' 2>'{errors}'; echo done\n")
        self.process.stdin.flush()
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.start()
        # A failed command ends the shell, so "done" is missing.
        is_done = self.process.stdout.readline() == "done\n"
        timer.cancel()
        return is_done, output.read_text(), errors.read_text()

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Reader:
    """Follows a page. `replaced` maps texts of the page to their replacements."""

    def __init__(self, replaced=None):
        self.place = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "deploy", self.place / "deploy")
        self.replaced = {"/tmp/": f"{self.place}/", **(replaced or {})}
        self.background = []
        self.heading = ""
        self.shell = Shell(self.place)

    def close(self):
        if self.shell.process.poll() is None:
            self.shell.close()
        self.stop_background()
        shutil.rmtree(self.place)

    def here(self, text):
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def start(self, arguments, **more):
        """Starts a program. It is stopped at the next heading of a page, or at the end."""
        log = self.place / f"log-{len(list(self.place.glob('log-*')))}"
        process = Process(arguments, log, directory=self.place, **more)
        self.background.append(process)
        return process

    def stop_background(self):
        while self.background:
            self.background.pop().stop()

    def follow(self, blocks):
        for block in blocks:
            if block.heading != self.heading:
                self.stop_background()
                self.heading = block.heading
            text = self.here(block.text)
            output = None if block.output is None else self.here(block.output)
            if "background" in block.words:
                self.start(["bash", "-euo", "pipefail", "-c", text], output=output)
            else:
                self.run_block(with_expected_failures(text), output)

    def wait_ready(self):
        for process in self.background:
            if process.process.poll() is None:
                process.wait_ready()

    def run_block(self, text, output):
        """Runs a block in the page's shell. It must print `output`, unless that is None."""
        self.wait_ready()
        is_done, printed, errors = self.shell.run(text)
        said = f"{text}\nprinted:\n{printed}{errors}"
        assert is_done, f"the shell has ended in:\n{said}"
        if output is not None:
            printed = printed.rstrip("\n") + "\n"
            assert matches(output, printed), f"should print:\n{output}\n{said}"
            assert len(output.splitlines()) == len(printed.splitlines()), f"prints more:\n{said}"

    def run(self, command):
        """Runs a command in its own process and returns its output."""
        self.wait_ready()
        done = subprocess.run(command, cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        said = f"{command[-1]}\nprinted:\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"status {done.returncode} of:\n{said}"
        return done.stdout
