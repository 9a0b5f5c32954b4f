"""Follows the recipes of docs/recipes, with the files in deploy/, and the examples of Part I: see pages.py.

`tests/recipes/run` runs these tests with the program, etcdctl, and a separate network, because they use the ports of
the pages.
"""

import base64
import configparser
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import unittest

import figures
from pages import PATIENCE, ROOT, Reader, blocks_of, eventually

CLEARLANE = os.environ["CLEARLANE"]


def refuses(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


class Recipe(unittest.TestCase):
    replaced = {}

    def setUp(self):
        self.reader = Reader(self.replaced)
        self.addCleanup(self.reader.close)
        self.place = self.reader.place

    def etcdctl(self, *arguments):
        return self.reader.run(["etcdctl", *arguments])


class ThreeProcesses(Recipe):
    def test_page(self):
        self.reader.follow(blocks_of("three-processes.md"))

    def test_it_stops_at_ctrl_c(self):
        members = self.reader.start(["deploy/three-members", "data"], output="m1  http")
        members.wait_ready()
        eventually("all are printed", lambda: "ETCDCTL_ENDPOINTS" in members.said())
        self.assertEqual(members.stop(signal.SIGINT), 0)
        for port in (2379, 2380, 22379, 22380, 32379, 32380):
            self.assertTrue(refuses(port), f"port {port} is still served")
        self.assertEqual(list((self.place / "data").glob("*.pid")), [])

    def test_a_port_in_use_is_told(self):
        with socket.create_server(("127.0.0.1", 22379)):
            members = self.reader.start(["deploy/three-members", "data"])
            self.assertEqual(members.wait(), 1)
        self.assertIn("m2 has ended", members.said())
        self.assertIn("127.0.0.1:22379: Address already in use", members.said())
        self.assertTrue(refuses(2379))


class GrpcProxy(Recipe):
    def test_page(self):
        self.reader.follow(blocks_of("grpc-proxy.md"))


class ThreeHosts(Recipe):
    """The hosts are addresses of the loopback interface. Each host has its own directory."""

    replaced = {"10.0.0.": "127.0.0.", r"10\.0\.0\.": r"127\.0\.0\."}

    def setUp(self):
        super().setUp()
        self.assertTrue(self.replace_in(self.place / "deploy/tls/host1.yml", self.replaced))

    @staticmethod
    def replace_in(file, replaced):
        text = changed = file.read_text()
        for old, new in replaced.items():
            changed = changed.replace(old, new)
        file.write_text(changed)
        return changed != text

    def copy_to_host(self, number):
        """Copies the files that the page copies with ssh and scp. Returns the replacements for the host's paths."""
        etc = self.place / f"host{number}/etc"
        etc.mkdir(parents=True)
        certs = self.place / "certs"
        for source, name in [("ca.crt", "ca.crt"), (f"127.0.0.{number}.crt", "host.crt"),
                             (f"127.0.0.{number}.key", "host.key"), (f"host{number}.yml", "clearlane.yml")]:
            shutil.copy(certs / source, etc / name)
        paths = {"/etc/clearlane": str(etc), "/var/lib/clearlane": str(self.place / f"host{number}/lib")}
        self.replace_in(etc / "clearlane.yml", paths)
        return paths

    def test_page(self):
        blocks = blocks_of("three-hosts-tls.md")
        start = [block for block in blocks if block.words == ["hosts"]]
        self.assertEqual(len(start), 1)
        before, after = blocks[: blocks.index(start[0])], blocks[blocks.index(start[0]) + 1 :]
        self.reader.follow(before)
        self.reader.heading = after[0].heading
        for number in (1, 2, 3):
            command = start[0].text
            for path, here in self.copy_to_host(number).items():
                command = command.replace(path, here)
            self.reader.start(["bash", "-euo", "pipefail", "-c", "exec " + command])
        self.reader.follow(after)
        refused = "".join(member.said() for member in self.reader.background)
        self.assertIn("rejected connection on client endpoint", refused)
        self.assertNotIn("rejected connection on peer endpoint", refused)
        self.assertNotIn("unknown key", refused)


class HowEtcdWorks(unittest.TestCase):
    """Follows the worked example of each chapter of Part I, once with Clearlane and once with etcd."""

    CHAPTERS = ["put.md", "get.md", "revisions.md", "watching.md", "leases.md", "transactions.md", "raft.md", "members.md"]

    def follow(self, replaced):
        self.assertEqual(sorted(self.CHAPTERS), sorted(page.name for page in (ROOT / "docs/how-etcd-works").iterdir()))
        for chapter in self.CHAPTERS:
            with self.subTest(chapter=chapter):
                reader = Reader(replaced)
                try:
                    reader.follow(blocks_of(f"../how-etcd-works/{chapter}"))
                finally:
                    reader.close()

    def test_with_clearlane(self):
        self.follow({})

    def test_with_etcd(self):
        self.follow({"clearlane --": "etcd --"})


class Authentication(Recipe):
    def test_page(self):
        self.reader.follow(blocks_of("authentication.md"))


class OtherTests(Recipe):
    def test_page(self):
        self.reader.follow(blocks_of("tests.md"))
        logs = [log.read_text() for log in self.place.glob("log-*")]
        self.assertEqual(len(logs), 5)
        for log in logs:
            # Testcontainers for Node.js waits for this line.
            self.assertRegex(log, r'"status":"SERVING"')
            self.assertNotIn("unknown flag", log)
            # The server warns about unknown variables. The Java launcher sets this one.
            self.assertNotIn("ETCD_LOGGER", log)


class Systemd(Recipe):
    def setUp(self):
        super().setUp()
        parser = configparser.ConfigParser(interpolation=None, strict=True)
        parser.optionxform = str
        parser.read(ROOT / "deploy/clearlane.service")
        self.service = parser["Service"]
        self.page = (ROOT / "docs/recipes/systemd.md").read_text()

    def test_unit_is_verified(self):
        analyze = shutil.which("systemd-analyze")
        if not analyze:
            self.skipTest("there is no systemd-analyze")
        unit = self.place / "clearlane.service"
        text = (ROOT / "deploy/clearlane.service").read_text()
        unit.write_text(text.replace("/usr/local/bin/clearlane", CLEARLANE))
        said = subprocess.run([analyze, "verify", unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((said.returncode, said.stdout), (0, ""))

    def test_page_names_what_the_unit_says(self):
        for line in re.findall(r"^\| `(\w+=\S+)`", self.page, re.MULTILINE):
            self.assertIn("\n" + line + "\n", (ROOT / "deploy/clearlane.service").read_text())
        program, config = shlex.split(self.service["ExecStart"])
        self.assertIn(f"release/clearlane {program}\n", self.page)
        self.assertIn(f"deploy/clearlane.yml {config.partition('=')[2]}\n", self.page)

    def test_command_line_runs(self):
        program, config = shlex.split(self.service["ExecStart"])
        flag, _, file = config.partition("=")
        here = self.place / pathlib.Path(file).name
        here.write_text((ROOT / "deploy/clearlane.yml").read_text().replace("/var/lib/", f"{self.place}/"))
        self.assertEqual(self.service["Type"], "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(f"{self.place}/notify")
            notified.settimeout(PATIENCE)
            member = self.reader.start([CLEARLANE, f"{flag}={here}"],
                                       environment={"NOTIFY_SOCKET": f"{self.place}/notify"})
            self.assertEqual(notified.recv(64), b"READY=1")
        member.wait_ready()
        self.etcdctl("--endpoints", "127.0.0.1:2379", "put", "a", "1")
        blocks = blocks_of("systemd.md")
        self.reader.heading = blocks[0].heading
        self.reader.follow(blocks)
        self.assertNotIn("unknown key", member.said())
        # For systemd, a service that is ended by SIGTERM has not failed.
        self.assertEqual(member.stop(signal.SIGTERM), -signal.SIGTERM)
        here.write_text(here.read_text().replace(f"{self.place}/clearlane/data", f"{self.place}/restored"))
        self.reader.start([CLEARLANE, f"{flag}={here}"]).wait_ready()
        self.assertEqual(self.etcdctl("--endpoints", "127.0.0.1:2379", "get", "a"), "a\n1\n")


class Container(Recipe):
    def setUp(self):
        super().setUp()
        text = (ROOT / "deploy/Dockerfile").read_text()
        lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
        steps = [line.split(None, 1) for line in lines if line]
        begins = [at for at, (name, _) in enumerate(steps) if name == "FROM"]
        self.first_stage, self.last_stage = steps[: begins[-1]], steps[begins[-1] :]

    def last(self, name):
        return [value for step, value in self.last_stage if step == name][-1]

    def command(self, data, *more):
        """Returns the image's command line, with the local program and a local directory."""
        program, *arguments = json.loads(self.last("ENTRYPOINT"))
        self.assertIn(f" {program}", self.last("COPY"))
        [volume] = json.loads(self.last("VOLUME"))
        self.assertTrue(any(volume in argument for argument in arguments), "the data is in the volume")
        data.mkdir()
        return [CLEARLANE, *[argument.replace(volume, str(data)) for argument in arguments], *more]

    def test_toolchain_is_ours(self):
        tag = self.first_stage[0][1].split()[0]
        channel = re.search(r'channel = "(\d+\.\d+)', (ROOT / "rust-toolchain.toml").read_text())[1]
        self.assertTrue(tag.startswith(f"rust:{channel}-"), tag)

    def test_build_gets_all_that_it_needs(self):
        """In a directory with only the files of the image's build, cargo finds all packages in their versions."""
        source = self.place / "src"
        source.mkdir()
        for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines():
            if line.startswith("!"):
                (source / line[1:]).parent.mkdir(parents=True, exist_ok=True)
                (source / line[1:]).symlink_to(ROOT / line[1:])
        built = " ".join(value for name, value in self.first_stage if name == "RUN")
        self.assertIn("deploy/release/binary", built)
        self.assertTrue((source / "deploy/release/binary").exists())
        self.reader.run(["cargo", "tree", "--locked", "--offline", "--package", "clearlane",
                         "--edges", "normal,build", "--manifest-path", str(source / "Cargo.toml")])

    def test_image_runs_as_process_1(self):
        command = self.command(self.place / "data", *json.loads(self.last("CMD")))
        member = self.reader.start(["unshare", "--pid", "--fork", "--kill-child", *command])
        member.wait_ready()
        self.etcdctl("--endpoints", "127.0.0.1:2379", "put", "greeting", "hello")
        pid = member.process.pid
        [inside] = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(inside), signal.SIGTERM)
        # The kernel ignores signals that process 1 sends to itself, so the program must exit by
        # itself.
        self.assertEqual(member.wait(), 128 + signal.SIGTERM, member.said())

    def test_compose_file(self):
        import yaml

        compose = yaml.safe_load((ROOT / "deploy/compose.yml").read_text())
        members = compose["services"]
        self.assertEqual(sorted(members), ["m1", "m2", "m3"])
        [volume] = json.loads(self.last("VOLUME"))
        published = []
        for number, (name, member) in enumerate(sorted(members.items()), 1):
            self.assertEqual((ROOT / "deploy" / member["build"]["context"]).resolve(), ROOT)
            self.assertTrue((ROOT / member["build"]["dockerfile"]).exists())
            self.assertEqual(member["volumes"], [f"{name}:{volume}"])
            self.assertIn(name, compose["volumes"])
            self.assertIn(f"--name={name}", member["command"])
            [port] = member["ports"]
            published.append(port.removesuffix(":2379"))
            address = f"127.0.0.{number}"
            arguments = [re.sub(r"\bm(\d):", r"127.0.0.\1:", word).replace("0.0.0.0", address)
                         for word in member["command"]]
            self.reader.start(self.command(self.place / name, *arguments))
        endpoints = "127.0.0.1:2379,127.0.0.2:2379,127.0.0.3:2379"
        self.etcdctl("--endpoints", endpoints, "endpoint", "health")
        self.etcdctl("--endpoints", "127.0.0.1:2379", "put", "greeting", "hello")
        self.assertEqual(self.etcdctl("--endpoints", "127.0.0.3:2379", "get", "greeting"), "greeting\nhello\n")
        self.assertIn(",".join(published), (ROOT / "docs/recipes/container.md").read_text())


class Grafana(Recipe):
    URLS = ["http://127.0.0.1:2379", "http://127.0.0.1:22379", "http://127.0.0.1:32379"]
    KEYS = 4000

    def setUp(self):
        super().setUp()
        # In this old era, requests wait for locks that other requests hold.
        members = self.reader.start(["deploy/three-members", "data", "--era=3.2"], output="m1  http")
        members.wait_ready()
        eventually("all are printed", lambda: "ETCDCTL_ENDPOINTS" in members.said())

    def pages(self):
        return "\n".join(figures.fetch(url + "/metrics") for url in self.URLS)

    def fill(self, url):
        encode = lambda text: base64.b64encode(text.encode()).decode()
        for first in range(0, self.KEYS, 100):
            puts = [{"request_put": {"key": encode(f"key/{number:05}"), "value": encode("x" * 100)}}
                    for number in range(first, first + 100)]
            figures.post(url, "/v3/kv/txn", {"success": puts})

    def load_until(self, holds):
        """Sends long reads and puts to the leader."""
        [leader] = [url for url in self.URLS if "\netcd_server_is_leader 1\n" in figures.fetch(url + "/metrics")]
        self.fill(leader)
        over = threading.Event()
        failed = []

        def repeat(path, body):
            try:
                while not over.is_set():
                    figures.post(leader, path, body)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=repeat, args=call) for call in [
            ("/v3/kv/range", {"key": "AA==", "range_end": "AA=="}),
            ("/v3/kv/range", {"key": "AA==", "range_end": "AA=="}),
            ("/v3/kv/put", {"key": "YQ==", "value": "MQ=="}),
        ]]
        for thread in threads:
            thread.start()
        try:
            eventually("one request has waited for another", holds)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])

    def queries(self):
        dashboard = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
        return [(panel["title"], target["expr"], target["legendFormat"])
                for panel in panels for target in panel["targets"]]

    def test_every_metric_and_label_is_there(self):
        self.load_until(lambda: "\nclearlane_lock_blame_seconds_total{" in self.pages())
        known = figures.labels_by_name(self.pages())
        page = (ROOT / "docs/recipes/grafana.md").read_text()
        alerts = [("alerts", line, "") for line in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)]
        queries = self.queries() + alerts
        self.assertGreater(len(queries), 30)
        for title, query, legend in queries:
            with self.subTest(title, query=query):
                names = figures.names_in(query)
                self.assertTrue(names)
                for name in names:
                    self.assertIn(name, known)
                    self.assertLessEqual(figures.labels_in(query), known[name])
                grouped = figures.labels_in(query) | figures.OF_THE_TARGET
                self.assertLessEqual(set(re.findall(r"\{\{(\w+)\}\}", legend)), grouped)
        self.reader.heading = (blocks := blocks_of("grafana.md"))[0].heading
        self.reader.follow(blocks)

    def test_prometheus_finds_the_members(self):
        import yaml

        config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
        [job] = config["scrape_configs"]
        [targets] = [targets["targets"] for targets in job["static_configs"]]
        self.assertEqual([f"http://{target}" for target in targets], self.URLS)
        for target in targets:
            self.assertIn("etcd_server_has_leader 1", figures.fetch(f"http://{target}/metrics"))


if __name__ == "__main__":
    unittest.main()
