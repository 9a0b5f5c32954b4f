"""Tests the JSON gateway with Python's own HTTP client."""

import base64
import json
import unittest
import urllib.error
import urllib.request

from servers import PATIENCE, ServedTest


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def decoded(text):
    return base64.b64decode(text).decode()


class GatewayTest(ServedTest):
    def open(self, path, body):
        request = urllib.request.Request(
            self.server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def ask(self, path, **body):
        with self.open(path, body) as answer:
            return json.load(answer)

    def refused(self, path, **body):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.ask(path, **body)
        with caught.exception as answer:
            return answer.code, json.load(answer)

    def put(self, name, value):
        return self.ask("/v3/kv/put", key=encoded(self.key + name), value=encoded(value))

    def test_put_range_delete(self):
        revision = int(self.put("a", "1")["header"]["revision"])
        self.put("b", "2")
        end = self.key[:-1] + "0"
        got = self.ask("/v3/kv/range", key=encoded(self.key), range_end=encoded(end))
        self.assertEqual([decoded(kv["value"]) for kv in got["kvs"]], ["1", "2"])
        self.assertEqual((got["count"], got["kvs"][0]["mod_revision"]), ("2", str(revision)))
        self.assertNotIn("lease", got["kvs"][0])
        gone = self.ask("/v3/kv/deleterange", key=encoded(self.key + "a"), prev_kv=True)
        self.assertEqual((gone["deleted"], decoded(gone["prev_kvs"][0]["value"])), ("1", "1"))
        self.assertNotIn("kvs", self.ask("/v3/kv/range", key=encoded(self.key + "a")))

    def test_txn(self):
        key = encoded(self.key + "a")
        put = {"requestPut": {"key": key, "value": encoded("1")}}
        get = {"request_range": {"key": key}}
        new = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        body = {"compare": [new], "success": [put], "failure": [get]}
        self.assertTrue(self.ask("/v3/kv/txn", **body)["succeeded"])
        again = self.ask("/v3/kv/txn", **body)
        self.assertNotIn("succeeded", again)
        [found] = again["responses"]
        self.assertEqual(decoded(found["response_range"]["kvs"][0]["value"]), "1")

    def test_lease(self):
        grant = self.ask("/v3/lease/grant", TTL=600)
        self.assertEqual(grant["TTL"], "600")
        self.ask("/v3/kv/put", key=encoded(self.key), lease=grant["ID"])
        left = self.ask("/v3/lease/timetolive", ID=grant["ID"], keys=True)
        self.assertEqual([decoded(key) for key in left["keys"]], [self.key])
        kept = self.ask("/v3/lease/keepalive", ID=grant["ID"])
        self.assertEqual(kept["result"]["TTL"], "600")
        self.assertIn({"ID": grant["ID"]}, self.ask("/v3/lease/leases")["leases"])
        self.ask("/v3/lease/revoke", ID=grant["ID"])
        self.assertNotIn("kvs", self.ask("/v3/kv/range", key=encoded(self.key)))
        code, told = self.refused("/v3/lease/revoke", ID=grant["ID"])
        self.assertEqual((code, told["code"]), (404, 5))
        self.assertEqual(told["message"], "etcdserver: requested lease not found")

    def test_watch(self):
        request = {"create_request": {"key": encoded(self.key), "prev_kv": True}}
        with self.open("/v3/watch", request) as stream:
            self.assertTrue(json.loads(stream.readline())["result"]["created"])
            self.put("", "1")
            self.put("", "2")
            events = []
            while len(events) < 2:
                events += json.loads(stream.readline())["result"]["events"]
        self.assertEqual([decoded(event["kv"]["value"]) for event in events], ["1", "2"])
        self.assertEqual(decoded(events[1]["prev_kv"]["value"]), "1")

    def test_lock_and_election(self):
        lease = self.ask("/v3/lease/grant", TTL=600)["ID"]
        held = self.ask("/v3/lock/lock", name=encoded(self.key), lease=lease)
        self.assertEqual(decoded(held["key"]), f"{self.key}/{int(lease):x}")
        self.ask("/v3/lock/unlock", key=held["key"])
        name = encoded(self.key + "election")
        won = self.ask("/v3/election/campaign", name=name, lease=lease, value=encoded("me"))
        leader = self.ask("/v3/election/leader", name=name)
        self.assertEqual(decoded(leader["kv"]["value"]), "me")
        self.ask("/v3/election/proclaim", leader=won["leader"], value=encoded("still me"))
        self.ask("/v3/election/resign", leader=won["leader"])
        _, told = self.refused("/v3/election/leader", name=name)
        self.assertEqual(told["message"], "election: no leader")

    def test_members_and_maintenance(self):
        [member] = self.ask("/v3/cluster/member/list")["members"]
        self.assertEqual((member["name"], member["clientURLs"]), ("m0", [self.server.url]))
        status = self.ask("/v3/maintenance/status")
        self.assertEqual((status["version"], status["leader"]), ("3.7.1", member["ID"]))
        self.assertNotIn("alarms", self.ask("/v3/maintenance/alarm", action="GET"))
        self.assertIn("hash", self.ask("/v3/maintenance/hash"))
        with self.open("/v3/maintenance/snapshot", {}) as stream:
            pieces = [json.loads(line)["result"] for line in stream]
        self.assertGreater(sum(len(base64.b64decode(piece["blob"])) for piece in pieces), 512)

    def test_what_is_wrong(self):
        code, told = self.refused("/v3/kv/put", key="")
        self.assertEqual((code, told["message"]), (400, "etcdserver: key is not provided"))
        self.assertEqual(self.refused("/v3/kv/range", key="*")[0], 400)
        self.assertEqual(self.refused("/v3/kv/range", key=encoded("a"), revision="99999")[0], 400)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.open("/v3/kv/nothing", {})
        with caught.exception as answer:
            self.assertEqual(answer.code, 404)

    def test_what_is_beside_the_gateway(self):
        for path, wanted in [
            ("/version", {"etcdserver": "3.7.1", "etcdcluster": "3.7.0", "storage": "3.7.0"}),
            ("/health", {"health": "true", "reason": ""}),
        ]:
            with urllib.request.urlopen(self.server.url + path, timeout=PATIENCE) as answer:
                self.assertEqual(json.load(answer), wanted)
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=PATIENCE) as answer:
            self.assertIn(b"\netcd_server_has_leader 1\n", answer.read())


if __name__ == "__main__":
    unittest.main()
