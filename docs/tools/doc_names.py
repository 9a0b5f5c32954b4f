"""Helps docs/tools/commands: checks that the names in commands exist, and which commands a stage of .ci/run runs.

The names are files, targets of cargo, filters of tests, variables, and flags of our programs. Only `--help` is run.
"""

import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute() / "release"
OUR_PROGRAMS = {"clearlane", "clearlane-sim", "clearlane-load"}
BEFORE_A_COMMAND = {"do", "then", "else", "until", "while", "if", "exec", "time", "!"}


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def lines_of(script):
    """Returns the lines of a script without comments. A line that ends with a backslash is joined with the next."""
    lines = (re.sub(r"(^|\s)#.*", "", line) for line in script.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def commands_of(script):
    """Returns the variables that each simple command sets for itself, and its words."""
    commands = []
    # A placeholder such as <crate> is not a redirection.
    for line in lines_of(re.sub(r"<(\w+)>", r"PLACEHOLDER", script)):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            # The quote continues on the next line.
            continue
        simple = [[]]
        for word in words:
            if set(word) <= set("();<>|&"):
                simple.append([])
            elif simple[-1] or word not in BEFORE_A_COMMAND:
                simple[-1].append(word)
        for words in filter(None, simple):
            first = next((at for at, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
            commands.append(([word.split("=")[0] for word in words[:first]], words[first:]))
    return commands


def problems(script):
    """Returns one line for each name in the commands that does not exist."""
    tops = set(os.listdir(ROOT)) - {"target"}
    for variables, words in commands_of(script):
        for name in variables if words else ():
            if not git("grep", "-lw", name, "--", ":!*.md"):
                yield f"no file reads the variable {name}"
        for word in words:
            is_path = "/" in word and word.split("/")[0] in tops and not is_placeholder(word)
            if is_path and not (ROOT / word).exists():
                yield f"{word} does not exist"
        if words[:1] == ["cargo"] and words[1:2] and words[1] in ("bench", "build", "run", "test"):
            yield from cargo_problems(words)
        if words[:1] and words[0] in OUR_PROGRAMS:
            yield from flag_problems(words)


def is_placeholder(word):
    return re.search(r"[{}*$]|[A-Z]{3}", word) is not None


@functools.cache
def metadata():
    said = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"], cwd=ROOT,
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout)


def packages():
    return {package["name"]: package for package in metadata()["packages"]}


def cargo_problems(words):
    """Returns wrong packages and targets of `cargo bench`, `build`, `run` and `test`, and filters without a match."""
    end = words.index("--") if "--" in words else len(words)
    options, free = {}, []
    arguments = iter(words[2:end])
    for word in arguments:
        if word in ("-p", "--package", "--bench", "--test", "--example", "--bin", "--features"):
            options["--package" if word == "-p" else word] = next(arguments, "")
        elif not word.startswith("-"):
            free.append(word)
    package = options.get("--package")
    if package and is_placeholder(package):
        return
    if package and package not in packages():
        yield f"the package {package} does not exist"
        return
    candidates = [packages()[package]] if package else packages().values()
    if not package and "--workspace" not in words:
        candidates = [each for each in candidates if each["id"] in metadata()["workspace_default_members"]]
    for kind in ("bench", "test", "example", "bin"):
        names = {target["name"] for each in candidates for target in each["targets"] if kind in target["kind"]}
        wanted = options.get("--" + kind, "*")
        if wanted != "*" and wanted not in names:
            yield f"the {kind} {wanted} does not exist"
    if words[1] == "bench":
        free = [word for word in words[end + 1:end + 2] if not word.startswith("-")]
    folders = [str(pathlib.Path(each["manifest_path"]).parent) for each in candidates]
    for name in free:
        if not git("grep", "-lF", name.rsplit("::", 1)[-1], "--", *folders):
            yield f"no name in the code matches {name}"


@functools.cache
def help_of(program, *subcommand):
    said = subprocess.run([RELEASE / program, *subcommand, "--help"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return said.stdout


def flag_problems(words):
    subcommand = list(itertools.takewhile(lambda word: re.fullmatch("[a-z]+(-[a-z]+)*", word), words[1:]))
    for word in words[1:]:
        flag = word.strip("[]").split("=")[0]
        if flag.startswith("--") and not re.search(rf"{flag}(?![\w-])", help_of(words[0], *subcommand)):
            yield f"`{' '.join([words[0], *subcommand])}` has no {flag}"


def runs_in_ci(line):
    """Returns whether a script of .ci/, tests/ or deploy/ has this command. Ignores `--locked`, and how -p is spelt."""
    def spelt(command):
        return re.sub(r"--package\b", "-p", command.replace("--locked ", ""))
    paths = (ROOT / path for path in git("ls-files", ".ci", "tests", "deploy").split())
    scripts = (path for path in paths if path.suffix == "" and path.read_bytes().startswith(b"#!"))
    wanted = re.compile(rf"(^|\s){re.escape(spelt(line))}(\s|$)")
    lines = (spelt(each) for script in scripts for each in lines_of(script.read_text()))
    # No script runs .ci/run, which runs all others.
    return line == ".ci/run" or any(map(wanted.search, lines))


def is_followed(page):
    """Returns whether a program of tests/ reads its commands from this page. Then it contains the name in quotes."""
    return bool(git("grep", "-lF", f'"{pathlib.PurePath(page).name}"', "--", "tests", ":!*.md"))
