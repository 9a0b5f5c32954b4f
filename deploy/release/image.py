#!/usr/bin/env python3
"""Makes the image of a member, as an OCI archive that docker, podman and skopeo read. It needs no container engine.

    deploy/release/image.py OUT.tar amd64=PROGRAM [arm64=PROGRAM]

Each PROGRAM is static and becomes the image for that processor. The last stage of deploy/Dockerfile says how the
program is started. The image has this program, an empty directory for the data, and this machine's list of
certificate authorities, which discovery over TLS and members need if no other list is configured. SOURCE_DATE_EPOCH
is the time of all files.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
TIME = int(os.environ["SOURCE_DATE_EPOCH"])


def last_stage():
    """The instructions of the last stage of the Dockerfile, each with its values."""
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    steps = {}
    for line in filter(None, text.splitlines()):
        name, value = line.split(None, 1)
        steps = {} if name == "FROM" else steps
        steps.setdefault(name, []).append(value)
    return steps


def version():
    return re.search(r'^\[workspace\.package\]\nversion = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def tar(entries):
    """The bytes of a tar file. An entry has a path, its bytes or None for a directory, a mode and an owner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data, mode, owner in entries:
            info = tarfile.TarInfo(path)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size, info.mode, info.uid, info.gid, info.mtime = len(data or b""), mode, owner, owner, TIME
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


class Layout:
    """The blobs of an OCI image layout, by their digest."""

    def __init__(self):
        self.blobs = {}

    def add(self, media_type, data, **more):
        data = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}",
                "size": len(data), **more}


def image(layout, architecture, program, steps):
    user = steps["USER"][-1]
    [volume] = json.loads(steps["VOLUME"][-1])
    start = json.loads(steps["ENTRYPOINT"][-1])
    path = start[0].lstrip("/")
    files = {path: (program, 0o755, 0), AUTHORITIES: (pathlib.Path("/", AUTHORITIES).read_bytes(), 0o644, 0),
             volume.lstrip("/"): (None, 0o700, int(user.split(":")[0]))}
    parents = {str(parent): (None, 0o755, 0) for name in files for parent in pathlib.PurePath(name).parents[:-1]}
    layer = tar((name, *what) for name, what in sorted({**parents, **files}.items()))
    now = datetime.datetime.fromtimestamp(TIME, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = layout.add("config.v1+json", {
        "architecture": architecture,
        "os": "linux",
        "created": now,
        "config": {
            "User": user,
            "ExposedPorts": {f"{port}/tcp": {} for port in steps["EXPOSE"][-1].split()},
            "Volumes": {volume: {}},
            "Entrypoint": start,
            "Cmd": json.loads(steps["CMD"][-1]),
            "Labels": {"org.opencontainers.image.title": "Clearlane",
                       "org.opencontainers.image.version": version(),
                       "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": now, "created_by": "deploy/release/image.py"}],
    })
    # Level and time are fixed: the same program makes the same bytes.
    packed = layout.add("layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
                "layers": [packed]}
    return layout.add("manifest.v1+json", manifest, platform={"architecture": architecture, "os": "linux"})


def main():
    out, *programs = sys.argv[1:]
    layout, steps = Layout(), last_stage()
    manifests = [image(layout, architecture, pathlib.Path(program).read_bytes(), steps)
                 for architecture, program in (each.split("=", 1) for each in sorted(programs))]
    both = layout.add("index.v1+json", {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
                                        "manifests": manifests})
    both["annotations"] = {"org.opencontainers.image.ref.name": version()}
    top = {"schemaVersion": 2, "manifests": [both]}
    entries = [("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644, 0),
               ("index.json", json.dumps(top, sort_keys=True).encode(), 0o644, 0),
               ("blobs", None, 0o755, 0), ("blobs/sha256", None, 0o755, 0)]
    entries += [(f"blobs/sha256/{digest}", data, 0o644, 0) for digest, data in sorted(layout.blobs.items())]
    pathlib.Path(out).write_bytes(tar(entries))


if __name__ == "__main__":
    main()
