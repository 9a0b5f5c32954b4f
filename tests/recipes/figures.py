"""Reads the names and labels of a /metrics page, and of a query."""

import json
import re
import urllib.request

# Prometheus adds these labels to all fetched samples.
OF_THE_TARGET = {"job", "instance"}
WORDS = {"by", "without", "and", "or", "unless", "on", "ignoring", "bool", "offset"}


def labels_by_name(page):
    """Returns the labels of the samples of each name on a page."""
    found = {}
    for line in page.splitlines():
        sample = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+", line)
        if sample and not line.startswith("#"):
            names = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', sample[2] or "")
            found.setdefault(sample[1], set()).update(names)
    return found


def fetch(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def post(url, path, body):
    """Sends a request to the JSON gateway. Returns the response."""
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def names_in(query):
    """Returns the metrics that a query reads."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", query)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring) *\([^)]*\)", " ", bare)
    names = re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?! *\()", bare)
    return {name for name in names if name not in WORDS}


def labels_in(query):
    """Returns the labels that a query selects or groups by, except the labels that Prometheus adds."""
    selected = [name for inside in re.findall(r"\{([^}]*)\}", query)
                for name in re.findall(r"(\w+) *(?:=|!=|=~|!~)", inside)]
    grouped = [name.strip() for inside in re.findall(r"\bby *\(([^)]*)\)", query) for name in inside.split(",")]
    return {*selected, *grouped} - OF_THE_TARGET
