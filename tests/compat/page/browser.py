"""A Chromium without a window, controlled over two pipes.

It uses the DevTools protocol: JSON objects, each followed by a zero byte. The browser reads commands from its
descriptor 3, and writes responses and events to its descriptor 4. So neither a driver nor a WebSocket is needed.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 60

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,1000",
    "--remote-debugging-pipe",
]


class Browser:
    def __init__(self):
        self.place = tempfile.mkdtemp()
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()

        def descriptors():
            # These descriptors may already be 3 and 4 in the wrong order, so duplicate them first.
            high = [os.dup(commands), os.dup(answers)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        arguments = [os.environ["CHROMIUM"], *FLAGS, "--user-data-dir=" + self.place]
        self.log = open(self.place + "/log", "w+")
        self.process = subprocess.Popen(
            arguments, stdout=self.log, stderr=self.log, close_fds=False, preexec_fn=descriptors
        )
        os.close(commands)
        os.close(answers)
        self.rest, self.number, self.troubles, self.events = b"", 0, [], []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(domain + ".enable")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.place, ignore_errors=True)

    def call(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.note(message)

    def message(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            more = os.read(self.answers, 1 << 20) if ready else b""
            if not more:
                self.log.seek(0)
                raise AssertionError("the browser is silent: " + self.log.read()[-2000:])
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        """Records events that a page must not cause: errors, warnings, and network requests."""
        method, params = event.get("method"), event.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.troubles.append(params["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ["error", "warning", "assert"]:
            self.troubles.append(params["args"])
        elif method == "Log.entryAdded":
            self.troubles.append(params["entry"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith("file:"):
                self.troubles.append(url)

    def open(self, path, scheme="light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url="file://" + path)
        while "Page.loadEventFired" not in self.events:
            self.note(self.message())
        self.drawn()

    def value(self, expression):
        """Returns the value of a JavaScript expression. Waits for a promise."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def drawn(self):
        """Waits for two frames, so that all earlier changes are on the screen."""
        self.value("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(() => go(1))))")

    def mouse(self, kind, spot, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=spot["x"], y=spot["y"], **more)
        self.drawn()

    def click(self, spot):
        for kind in ["mousePressed", "mouseReleased"]:
            self.mouse(kind, spot, button="left", clickCount=1)

    def drag(self, spot, by):
        end = {"x": spot["x"] + by, "y": spot["y"]}
        self.mouse("mousePressed", spot, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", end, button="left", buttons=1)
        self.mouse("mouseReleased", end, button="left", clickCount=1)

    def key(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def screenshot(self, name):
        place = os.environ.get("SCREENSHOTS")
        if place:
            picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            with open(f"{place}/{name}.png", "wb") as file:
                file.write(base64.b64decode(picture))
