"""Reads and writes the comments that name figures in the pages of docs, for benches/figures.

    figure_marks.py names                  checks that the pages and the script name the same figures
    figure_marks.py check [NAME...]        checks that no figure is older than its program or its measured sources
    figure_marks.py keep NAME REASON       marks the figure as up to date without a new measurement
    figure_marks.py made NAME              marks the figure as new, after its table was pasted by hand
    figure_marks.py write NAME FILE        writes the tables of FILE, a run's output, into the pages; renews machine,
                                           day and withheld share in the line below each table

The standard input has four fields for each figure, each with a zero byte at its end: its name, the paths of the
measured sources, the paths of the program that makes it, and its function in benches/figures. A comment before a table
or a picture has one digest of the measured sources and one of the program:

    <!-- benches/figures NAME; measured 0123456789ab; program 0123456789ab -->
    <!-- benches/figures NAME; measured 0123456789ab; program 0123456789ab; kept: REASON -->

A digest covers the files without comment lines, blank lines and tests; docstrings count. So it does not depend on
git's history, and stays valid if the commit is cherry-picked. The history is only used to name the last change.
"""

import datetime
import hashlib
import pathlib
import re
import subprocess
import sys
import textwrap

DOCS = pathlib.Path("docs")
MARK = re.compile(r"<!-- benches/figures (?P<name>[a-z-]+)(?:; measured (?P<measured>\w+); program (?P<program>\w+))?"
                  r"(?:; kept: (?P<kept>.+))? -->")
ANY_MARK = re.compile(r"^<!-- benches/figures .*-->$")
SOURCES = {".rs", ".toml", ".py", ""}
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
# The parts of the line below a table, as `source_line` writes them: the machine, the day, and the
# share of time that the host withheld.
MACHINE = re.compile(r"\d+\s+cores\s+of\s+[^,]+,\s+\d+\s+GiB,\s+Linux\s+[\d.]+")
DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")
WIDTH = 120
WITHHELD = re.compile(r"the\s+host\s+withheld\s+(?:nothing|[\d.]+ %)")


def code_of(path):
    text = path.read_text(encoding="utf-8")
    comment = "#"
    if path.suffix == ".rs":
        text, comment = TEST_MODULE.sub("", text), "//"
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(comment))


def files_of(path):
    path = pathlib.Path(path)
    if path.is_file():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file() and file.suffix in SOURCES]
    if not found:
        sys.exit(f"benches/figures names {path}, which has no source")
    return [file for file in found if "tests" not in file.parts and file.stem != "tests"]


def digest(paths, text=""):
    files = sorted(file for path in paths for file in files_of(path))
    whole = "\n".join([*(f"{file}\n{code_of(file)}" for file in files), text])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def digests(figure):
    return {"measured": digest(figure["measured"]), "program": digest(figure["program"], figure["function"])}


def marks():
    """Returns the page, the line number from 0, and the match of each comment that names a figure."""
    for page in sorted(DOCS.rglob("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
            if ANY_MARK.match(line):
                mark = MARK.fullmatch(line)
                if not mark:
                    sys.exit(f"{page}:{number + 1}: this comment of a figure does not have the format of benches/figure_marks.py")
                yield page, number, mark


def last_change(paths):
    """Describes the newest commit that changed one of the paths. A shallow clone may lack this commit."""
    git = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True)
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.returncode != 0 or shallow.stdout.strip() == "true":
        return "its last change is unknown, because the git history is missing or incomplete"
    if git("status", "--porcelain", "--", *paths).stdout:
        return "it has changes that are not committed"
    return "its last change: " + git("log", "-1", "--format=%h of %as, %s", "--", *paths).stdout.strip()


def names(figures):
    marked = {mark["name"] for _, _, mark in marks()}
    wrong = [f"docs name a figure {name}, which is not in benches/figures" for name in sorted(marked - set(figures))]
    return wrong + [f"no page of docs has a comment for the figure {name}" for name in figures if name not in marked]


def check(figures, only):
    wrong = []
    for page, number, mark in marks():
        name, place = mark["name"], f"{page}:{number + 1}"
        if name not in figures or (only and name not in only):
            continue
        if not mark["measured"]:
            wrong.append(f"{place}: {name} has no digests, because it was made by an older version")
            continue
        stale = [part for part, now in digests(figures[name]).items() if now != mark[part]]
        for part in stale:
            paths = figures[name][part]
            what = "the sources that it measures" if part == "measured" else "the program that makes it"
            wrong.append(f"{place}: {name} is older than {what}: {' '.join(paths)}; {last_change(paths)}")
        if not stale and mark["kept"]:
            print(f"{place}: {name} was kept: {mark['kept']}")
    return wrong


def mark_of(figure, kept=None):
    now = digests(figure)
    reason = f"; kept: {kept}" if kept else ""
    return f"<!-- benches/figures {figure['name']}; measured {now['measured']}; program {now['program']}{reason} -->"


def put(page, change):
    lines = page.read_text(encoding="utf-8").splitlines()
    change(lines)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def keep(figure, reason):
    for page, number, mark in list(marks()):
        if mark["name"] == figure["name"]:
            put(page, lambda lines: lines.__setitem__(number, mark_of(figure, reason)))


def table_at(lines, first):
    """Returns the first line of the next table and the line after its end, which are equal if there is no table. Only
    blank lines may precede it.
    """
    while first < len(lines) and not lines[first].strip():
        first += 1
    end = first
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return first, end


def tables_of(output):
    tables, own = [], []
    for line in [*output, ""]:
        if line.startswith("|"):
            own.append(line)
        elif own:
            tables.append(own)
            own = []
    return tables


def renew_stamp(lines, source):
    """Renews the machine, the day and the withheld share in the first italic line of this section that has a day."""
    for number, line in enumerate(lines):
        if line.startswith("#"):
            return False
        end = number + 1
        if not line.startswith("*") or line.startswith("* "):
            continue
        while end < len(lines) and lines[end].strip():
            end += 1
        old = "\n".join(lines[number:end])
        if not DAY.search(old):
            continue
        new = old
        for pattern in (MACHINE, DAY, WITHHELD):
            found = pattern.search(source)
            new = pattern.sub(lambda _: found[0], new, count=1) if found else new
        if any(len(line) > WIDTH for line in new.split("\n")):
            new = textwrap.fill(new, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines[number:end] = new.split("\n")
        return True
    return False


def columns(row):
    return row.count("|")


def rows_for(places, tables):
    """Returns the next table with the same number of columns for each place. None if a place has no such table."""
    tables, found = iter(tables), {}
    for place in places:
        page, _, begin, end = place
        if begin < end:
            header = page.read_text(encoding="utf-8").splitlines()[begin]
            found[place] = next((table for table in tables if columns(table[0]) == columns(header)), None)
    return None if None in found.values() else found


def write(figure, output):
    """Writes all tables of the figure, or nothing."""
    places = []
    for page, number, mark in marks():
        if mark["name"] == figure["name"]:
            begin, end = table_at(page.read_text(encoding="utf-8").splitlines(), number + 1)
            places.append((page, number, begin, end))
    rows = rows_for(places, tables_of(output))
    if rows is None:
        return [f"{figure['name']}: a table in docs and the output have different columns, so nothing was written. "
                f"Paste the figures, then run: benches/figures made {figure['name']}"]
    # Write the last place of a page first, so that the line numbers of the places above it stay
    # valid.
    for place in reversed(places):
        page, number, begin, end = place

        def change(lines):
            tail = lines[end:]
            if not renew_stamp(tail, output[-1]):
                print(f"{page}:{number + 1}: no line below the table has a day to renew", file=sys.stderr)
            lines[begin:] = [*rows.get(place, lines[begin:end]), *tail]
            lines[number] = mark_of(figure)

        put(page, change)
        print(f"{page}:{number + 1}: {figure['name']} was written")
    return []


def main(words):
    fields = iter(sys.stdin.read().split("\0")[:-1])
    figures = {name: {"name": name, "measured": measured.split(), "program": program.split(), "function": function}
               for name, measured, program, function in zip(fields, fields, fields, fields)}
    match words:
        case ["names"]:
            wrong = names(figures)
        case ["check", *only]:
            wrong = names(figures) + check(figures, only)
        case ["keep", name, reason] if name in figures:
            wrong = keep(figures[name], reason) or []
        case ["made", name] if name in figures:
            wrong = keep(figures[name], None) or []
        case ["write", name, file] if name in figures:
            with open(file, encoding="utf-8") as lines:
                wrong = write(figures[name], lines.read().splitlines())
        case _:
            sys.exit(__doc__)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


sys.exit(main(sys.argv[1:]))
