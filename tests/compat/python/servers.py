"""A server for the tests of the clients for Python.

The variable CLEARLANE names the program. It may also be etcd's program, and all expectations of the tests must hold for
both. One server serves all tests of a file, and each test has its own keys.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

PATIENCE = 60


def free_ports(count):
    """Returns free ports below the range that the system uses for outgoing connections."""
    first, end = 12000, 32000
    port = first + os.getpid() * 211 % (end - first)
    found = []
    while len(found) < count:
        port = port + 1 if port + 1 < end else first
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
    return found


class Server:
    def __init__(self):
        self.place = tempfile.mkdtemp()
        self.port, peer = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        peer_url = f"http://127.0.0.1:{peer}"
        arguments = ["--name", "m0", "--data-dir", self.place + "/data"]
        for flag in ["--listen-client-urls", "--advertise-client-urls"]:
            arguments += [flag, self.url]
        for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"]:
            arguments += [flag, peer_url]
        arguments += ["--initial-cluster", "m0=" + peer_url]
        self.log = open(self.place + "/log", "w+")
        self.process = subprocess.Popen(
            [os.environ["CLEARLANE"], *arguments], stdout=self.log, stderr=self.log
        )
        eventually("the server answers", self.is_healthy)

    def is_healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            assert self.process.poll() is None, "the server has ended"
            return False

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.place)


def eventually(what, so):
    end = time.monotonic() + PATIENCE
    while True:
        found = so()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
        time.sleep(0.05)


class ServedTest(unittest.TestCase):
    """Tests that share a server. `self.key` is the prefix of the keys of one test."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.end)

    def setUp(self):
        self.key = "/" + self._testMethodName + "/"
