#!/usr/bin/env python3
"""Writes what the program consists of: an SBOM (CycloneDX 1.6, JSON), and the licences of all parts.

    deploy/release/contents.py --target x86_64-unknown-linux-musl --sbom FILE --licences FILE

`cargo tree` selects the crates: those that are compiled into `clearlane` for this target, with the features of this
build. Crates that only run while it is compiled are not listed. Cargo.lock has the hashes. SOURCE_DATE_EPOCH is the
time in the SBOM.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "clearlane"
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-._].*)?", re.IGNORECASE)
# Libraries that the linker adds: the name, the licence, and where systems keep the licence text.
LIBRARIES = [
    ("musl", "MIT", ["/usr/share/doc/musl/copyright", "/usr/share/doc/musl-dev/copyright"]),
    ("rust-std", "MIT OR Apache-2.0", ["{sysroot}/share/doc/rust/COPYRIGHT", "/usr/share/doc/rustc-web/copyright",
                                       "/usr/share/doc/rustc/copyright"]),
    ("llvm-libunwind", "Apache-2.0 WITH LLVM-exception", []),
]


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates_of(target):
    """The packages of `cargo metadata` that the program contains, by their name and version, and what each uses."""
    tree = output_of("cargo", "tree", "--locked", "--package", PROGRAM, "--edges", "normal,no-proc-macro",
                     "--target", target, "--prefix", "none", "--format", "{p}")
    selected = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(output_of("cargo", "metadata", "--locked", "--format-version", "1",
                                    "--filter-platform", target))
    packages = {package["id"]: package for package in metadata["packages"]
                if (package["name"], "v" + package["version"]) in selected}
    assert len(packages) == len(selected), "cargo tree and cargo metadata name different crates"
    uses = {node["id"]: sorted(each["pkg"] for each in node["deps"] if each["pkg"] in packages
                               and any(kind["kind"] is None for kind in each["dep_kinds"]))
            for node in metadata["resolve"]["nodes"] if node["id"] in packages}
    order = sorted(packages, key=lambda each: (packages[each]["name"], packages[each]["version"]))
    return {each: packages[each] for each in order}, uses


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def expression(package):
    # Older crates separate alternatives by a slash. SPDX no longer allows `+` after MPL-2.0.
    text = re.sub(r"\s*/\s*", " OR ", package["license"] or "")
    return text.replace("MPL-2.0+", "MPL-2.0")


def component(package, sums):
    is_ours = package["source"] is None
    sha256 = sums[package["name"], package["version"]]
    return {
        "type": "application" if package["name"] == PROGRAM else "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        **({"description": package["description"].strip()} if package["description"] else {}),
        **({"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}),
        **({"licenses": [{"expression": expression(package)}]} if expression(package) else {}),
        # Our crates are built from this checkout and not taken from a registry, so they have no
        # package URL.
        **({} if is_ours else {"purl": reference(package)}),
    }


def sbom(packages, uses):
    sums = checksums()
    components = [component(package, sums) for package in packages.values()]
    [program] = [each for each in components if each["name"] == PROGRAM]
    components.remove(program)
    components += [{"type": "library", "bom-ref": name, "name": name, "licenses": [{"expression": licence}]}
                   for name, licence, _ in LIBRARIES]
    names = [name for name, _, _ in LIBRARIES]
    graph = [{"ref": reference(packages[each]), "dependsOn": sorted(reference(packages[used]) for used in uses[each])}
             for each in packages]
    for each in graph:
        if each["ref"] == program["bom-ref"]:
            each["dependsOn"] += names
    graph += [{"ref": name} for name in names]
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": time.isoformat(timespec="seconds").replace("+00:00", "Z"), "component": program},
        "components": components,
        "dependencies": graph,
    }
    # Equal documents get equal serial numbers.
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{number}"}


def licence_texts(directory):
    """The licence texts in a crate's directory, including those of C sources in it."""
    for path in sorted(pathlib.Path(directory).rglob("*")):
        is_test = {"tests", "test", "benches", "examples"} & set(path.relative_to(directory).parts)
        if path.is_file() and LICENCE_FILE.fullmatch(path.name) and path.suffix not in (".rs", ".py") and not is_test:
            yield path.read_text(errors="replace").strip()


def licences(packages):
    """One text, in which each licence is printed once, after the names of all crates that have it."""
    others = [package for package in packages.values() if package["source"]]
    # Texts are compared by their words: in some crates only the line breaks differ.
    holders, texts_by_words, without = collections.defaultdict(list), {}, []

    def add(name, texts):
        for words, text in {" ".join(text.split()): text for text in texts}.items():
            texts_by_words.setdefault(words, text)
            holders[words].append(name)
        if not texts:
            without.append(name)

    for package in others:
        add(f"{package['name']} {package['version']}",
            list(licence_texts(pathlib.Path(package["manifest_path"]).parent)))
    sysroot = output_of("rustc", "--print", "sysroot").strip()
    for name, _, places in LIBRARIES:
        texts = [path.read_text(errors="replace").strip()
                 for path in (pathlib.Path(place.format(sysroot=sysroot)) for place in places) if path.exists()]
        add(name, texts[:1])
    lines = ["Clearlane contains the following software of others. The sources of each crate are at crates.io under",
             "this name and version. Licences follow the list.", ""]
    lines += [f"{package['name']} {package['version']}: {expression(package)}" for package in others]
    lines += [f"{name}: {licence}" for name, licence, _ in LIBRARIES]
    if without:
        lines += ["", "No file with a licence comes with: " + ", ".join(without) + "."]
    for words, names in holders.items():
        lines += ["", "=" * 100, ", ".join(names), "-" * 100, "", texts_by_words[words]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Writes what the program consists of.")
    parser.add_argument("--target", required=True)
    parser.add_argument("--sbom", type=pathlib.Path, required=True)
    parser.add_argument("--licences", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    packages, uses = crates_of(arguments.target)
    arguments.sbom.write_text(json.dumps(sbom(packages, uses), indent=1) + "\n")
    arguments.licences.write_text(licences(packages))


if __name__ == "__main__":
    sys.exit(main())
