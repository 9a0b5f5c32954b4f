"""Reads figures from recorded timelines and their tables of blame, for benches/figures.

    timelines.py window FILE            prints FROM and FOR in ms: the time, with margins, of the long read during
                                        which other requests waited longest in all
    timelines.py waits FILE FROM FOR    prints a table in Markdown: the longest wait in that window for each class of
                                        waiters, lock or worker, and class of blockers
    timelines.py blame ERA FILE...      prints rows of Markdown: medians of tables of `clearlane-sim show --as blame`
    timelines.py middle FILE...         prints the number, from 1, of the table whose mean put latency is the median
"""

import json
import statistics
import sys

NS_PER_MS = 1e6
LONG = "long range"
# How much a picture shows before and after the long read, as a share of the read's duration.
MARGIN = 0.15
# The table omits waits that are shorter than this share of the longest wait.
SHORTEST = 0.1
# The rows of the table in docs/head-of-line.md.
ROWS = {"put": "put", "range": "range of 10"}
CULPRIT = f"readTx, held by {LONG}"


def spans_of(path):
    with open(path, encoding="utf-8") as lines:
        return [span for span in map(json.loads, filter(str.strip, lines)) if "lane" in span]


def lane_class(lane):
    return lane.rsplit(" #", 1)[0]


def overlap(span, begin, end):
    return max(0, min(span["to"], end) - max(span["from"], begin))


def window(path):
    spans = spans_of(path)
    reads = {}
    for span in spans:
        if lane_class(span["lane"]) == LONG:
            begin, end = reads.get(span["lane"], (span["from"], span["to"]))
            reads[span["lane"]] = min(begin, span["from"]), max(end, span["to"])
    if not reads:
        sys.exit(f"{path}: there is no long range")
    waits = [s for s in spans if s["what"] == "wait" and s["kind"] != "work" and lane_class(s["lane"]) != LONG]
    waited = lambda read: sum(overlap(wait, *read) for wait in waits)
    begin, end = max(reads.values(), key=waited)
    margin = MARGIN * (end - begin)
    print(f"{max(0, begin - margin) / NS_PER_MS:.1f} {(end - begin + 2 * margin) / NS_PER_MS:.1f}")


def waits(path, from_ms, for_ms):
    begin = float(from_ms) * NS_PER_MS
    end = begin + float(for_ms) * NS_PER_MS
    spans = spans_of(path)
    locks = {span["of"] for span in spans if span["what"] == "hold"}
    # A worker's wait for another worker is omitted: the worker only has nothing to do.
    shown = [s for s in spans if s["what"] == "wait" and (s["of"] in locks or s["kind"] != "work")]
    shown = [span for span in shown if overlap(span, begin, end) > 0]
    took = lambda span: span["to"] - span["from"]
    longest = {}
    for span in sorted(shown, key=took):
        longest[lane_class(span["lane"]), span["of"], lane_class(span.get("behind", ""))] = span
    print("| waiter | waits for | behind | how long |\n|---|---|---|---|")
    for span in sorted(longest.values(), key=took, reverse=True):
        if took(span) >= SHORTEST * took(max(longest.values(), key=took)):
            behind = span.get("behind", "")
            print(f"| `{span['lane']}` | `{span['of']}` | `{behind}` | {took(span) / NS_PER_MS:.1f} ms |")


def blame_of(path):
    """Returns for each class its mean in ms, and the share of each cause in per cent."""
    table = {}
    with open(path, encoding="utf-8") as lines:
        for line in list(lines)[2:]:
            name, _, mean, shares = (cell.strip() for cell in line.strip().strip("|").split("|"))
            causes = (share.split(" % ", 1) for share in shares.split("; ") if share)
            table[name] = float(mean.removesuffix(" ms")), {cause: float(share) for share, cause in causes}
    return table


def blame(era, paths):
    tables = [blame_of(path) for path in paths]
    for name in ["put", "range", LONG]:
        rows = [table[name] for table in tables if name in table]
        if len(rows) < len(tables):
            sys.exit(f"era {era}: a recording has no {name}")
        causes = {cause for _, shares in rows for cause in shares}
        medians = {cause: statistics.median(shares.get(cause, 0) for _, shares in rows) for cause in causes}
        culprit = medians.pop(CULPRIT, 0)
        rest = sorted(medians.items(), key=lambda cause: -cause[1])
        told = ", ".join(f"{share:.0f} % {cause}" for cause, share in rest if share >= 1)
        mean = statistics.median(mean for mean, _ in rows)
        print(f"{name}, {era}: {mean:.2f} ms, {culprit:.0f} % {CULPRIT}, {told}", file=sys.stderr)
        if name != LONG:
            print(f"| {ROWS[name]}, {era} | {mean:.2f} ms | {culprit:.0f} % |")


def middle(paths):
    means = [(blame_of(path)["put"][0], number) for number, path in enumerate(paths, 1)]
    print(sorted(means)[(len(means) - 1) // 2][1])


match sys.argv[1:]:
    case ["window", path]:
        window(path)
    case ["waits", path, from_ms, for_ms]:
        waits(path, from_ms, for_ms)
    case ["blame", era, *paths] if paths:
        blame(era, paths)
    case ["middle", *paths] if paths:
        middle(paths)
    case _:
        sys.exit(__doc__)
