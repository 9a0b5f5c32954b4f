"""Completes the book that mdbook has written, and checks its links: book_pages.py BOOK PAGES

A page has the same path in the book as its Markdown file in the repository. So a link that leads out of docs/, such as
../crates/wal/src/writer.rs, names a file of the repository that is not in the book. This program creates a page for
such a file under source/, and changes the link to that page; the page of a directory is a list. Then every href and src
of every page must lead to a file of the book, and its anchor to an element of that file. Every page of PAGES must be in
the book.
"""

import html
import os
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
STYLE = """:root { color-scheme: light dark; } body { font: 14px/1.45 monospace; margin: 1.5rem; }
pre { counter-reset: line; } pre > span::before { counter-increment: line; content: counter(line); color: gray;
display: inline-block; width: 3.5em; margin-right: 1em; text-align: right; }"""
ATTRIBUTES = {"href", "src"}


class Page(HTMLParser):
    """The anchors of a page, and its links."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ATTRIBUTES and value is not None:
                self.links.append(value)

    handle_startendtag = handle_starttag


def is_outside(link):
    return bool(urllib.parse.urlsplit(link).scheme) or link.startswith("//")


def target_of(page, link):
    """Returns the path that a link of a page names, and its anchor."""
    path, _, anchor = link.partition("#")
    path = urllib.parse.unquote(path.partition("?")[0])
    to = page if path == "" else Path(os.path.normpath(page.parent / path))
    return to, urllib.parse.unquote(anchor)


class Book:
    def __init__(self, directory):
        self.directory = directory
        self.parsed = {}

    def pages(self):
        return sorted(self.directory.rglob("*.html"))

    def parse(self, path):
        if path not in self.parsed:
            self.parsed[path] = Page(path.read_text(encoding="utf-8"))
        return self.parsed[path]

    def add_sources(self):
        for page in self.pages():
            text = page.read_text(encoding="utf-8")
            links = {link for link in self.parse(page).links if not is_outside(link)}
            changed = text
            for link in links:
                to, anchor = target_of(page, link)
                if to.exists() or not to.is_relative_to(self.directory):
                    continue
                named = to.relative_to(self.directory)
                # mdbook has replaced .md by .html, even if the book does not have that page.
                named = next((n for n in [named, named.with_suffix(".md")] if (TOP / n).exists()), None)
                if named is None:
                    continue
                new = os.path.relpath(self.add_source(named), page.parent)
                new = urllib.parse.quote(new) + (f"#{anchor}" if anchor else "")
                old = html.escape(link, quote=False)
                for name in ATTRIBUTES:
                    changed = changed.replace(f'{name}="{old}"', f'{name}="{new}"')
            if changed != text:
                page.write_text(changed, encoding="utf-8")
                del self.parsed[page]

    def add_source(self, named):
        """Creates the page of a file or a directory of the repository, unless it exists."""
        page = self.directory / "source" / (f"{named}.html" if named != Path(".") else "top.html")
        if page.exists():
            return page
        page.parent.mkdir(parents=True, exist_ok=True)
        page.touch()
        source = TOP / named
        if source.is_dir():
            entries = sorted(entry for entry in source.iterdir() if entry.name not in {".git", "target"})
            body = "".join(f"<p>{self.entry(page, named / entry.name, entry)}</p>\n" for entry in entries)
        else:
            lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
            numbered = (f'<span id="L{at}">{html.escape(line)}</span>\n' for at, line in enumerate(lines, 1))
            body = f"<pre>{''.join(numbered)}</pre>\n"
        title = html.escape(str(named))
        page.write_text(
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}</body></html>\n",
            encoding="utf-8",
        )
        return page

    def entry(self, page, named, entry):
        """Returns a line of a directory's list. Subdirectories are only named."""
        if entry.is_dir():
            return html.escape(f"{entry.name}/")
        to = os.path.relpath(self.add_source(named), page.parent)
        return f'<a href="{urllib.parse.quote(to)}">{html.escape(entry.name)}</a>'

    def broken_links(self):
        for page in self.pages():
            for link in self.parse(page).links:
                if is_outside(link):
                    continue
                to, anchor = target_of(page, link)
                place = f"{page.relative_to(self.directory)}: {link}"
                if to.is_dir():
                    to /= "index.html"
                if not to.is_relative_to(self.directory) or not to.is_file():
                    yield f"{place}: the link leads to no file"
                elif anchor and to.suffix == ".html" and anchor not in self.parse(to).anchors:
                    yield f"{place}: the page does not have this anchor"


def missing_pages(book, pages):
    for page in sorted(pages.rglob("*.md")):
        named = page.relative_to(pages)
        if named.name != "SUMMARY.md" and not (book.directory / named.with_suffix(".html")).exists():
            yield f"{named}: the page is not in docs/SUMMARY.md"


def main():
    book, pages = Book(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    wrong = list(missing_pages(book, pages))
    book.add_sources()
    wrong += book.broken_links()
    print("".join(f"  {line}\n" for line in wrong), end="")
    if wrong:
        sys.exit(f"the book has {len(wrong)} errors")
    links = sum(len(book.parse(page).links) for page in book.pages())
    print(f"   the book has {len(book.pages())} pages; all {links} links work")


main()
