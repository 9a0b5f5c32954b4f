"""Tests the library `etcd3` over gRPC, which most programs in Python still use."""

import io
import unittest

import etcd3

from servers import PATIENCE, ServedTest, eventually


class Etcd3Test(ServedTest):
    def setUp(self):
        super().setUp()
        self.client = etcd3.client(host="127.0.0.1", port=self.server.port, timeout=PATIENCE)
        self.addCleanup(self.client.close)

    def values(self):
        return [value for value, _ in self.client.get_prefix(self.key)]

    def test_put_get_delete(self):
        self.client.put(self.key + "a", "1")
        answer = self.client.put(self.key + "a", "2", prev_kv=True)
        self.assertEqual(answer.prev_kv.value, b"1")
        value, metadata = self.client.get(self.key + "a")
        self.assertEqual((value, metadata.version), (b"2", 2))
        self.assertEqual(self.client.get(self.key + "none"), (None, None))
        self.client.put(self.key + "b", "0")
        found = self.client.get_prefix(self.key, sort_order="ascend", sort_target="value")
        self.assertEqual([value for value, _ in found], [b"0", b"2"])
        only = self.client.get_range(self.key + "a", self.key + "b", keys_only=True)
        self.assertEqual([metadata.key.decode() for _, metadata in only], [self.key + "a"])
        self.assertTrue(self.client.delete(self.key + "a"))
        self.assertFalse(self.client.delete(self.key + "a"))
        self.assertEqual(self.client.delete_prefix(self.key).deleted, 1)

    def test_once_only(self):
        self.assertTrue(self.client.put_if_not_exists(self.key, "1"))
        self.assertFalse(self.client.put_if_not_exists(self.key, "2"))
        self.assertTrue(self.client.replace(self.key, "1", "3"))
        self.assertFalse(self.client.replace(self.key, "1", "4"))
        self.assertEqual(self.values(), [b"3"])

    def test_transactions(self):
        t = self.client.transactions
        succeeded, answers = self.client.transaction(
            compare=[t.version(self.key) == 0, t.create(self.key) == 0],
            success=[t.put(self.key, "1"), t.get(self.key)],
            failure=[t.delete(self.key)],
        )
        self.assertTrue(succeeded)
        self.assertEqual(answers[1][0][0], b"1")
        succeeded, answers = self.client.transaction(
            compare=[t.value(self.key) > "1"],
            success=[],
            failure=[t.txn(compare=[], success=[t.put(self.key, "2")], failure=[])],
        )
        self.assertFalse(succeeded)
        self.assertEqual(self.values(), [b"2"])

    def test_leases(self):
        lease = self.client.lease(600)
        self.client.put(self.key, "1", lease=lease)
        self.assertEqual((lease.granted_ttl, lease.keys), (600, [self.key.encode()]))
        [kept] = lease.refresh()
        self.assertEqual(kept.TTL, 600)
        lease.revoke()
        self.assertEqual(self.values(), [])

    def test_watches(self):
        events, cancel = self.client.watch_prefix(self.key)
        self.client.put(self.key + "a", "1")
        self.client.delete(self.key + "a")
        put, delete = next(events), next(events)
        self.assertIsInstance(put, etcd3.events.PutEvent)
        self.assertEqual((put.key.decode(), put.value), (self.key + "a", b"1"))
        self.assertIsInstance(delete, etcd3.events.DeleteEvent)
        cancel()
        old, cancel = self.client.watch(self.key + "a", start_revision=put.mod_revision)
        self.assertEqual(next(old).value, b"1")
        cancel()
        heard = []
        numbers = [self.client.add_watch_callback(self.key, heard.append) for _ in range(2)]
        self.client.put(self.key, "2")
        eventually("both are called", lambda: len(heard) == 2)
        for number in numbers:
            self.client.cancel_watch(number)
        with self.assertRaises(etcd3.exceptions.WatchTimedOut):
            self.client.watch_once(self.key, timeout=0.3)

    def test_locks(self):
        # A waiting lock is not tested: the library fails there with the installed version of one of
        # its own dependencies.
        lock = self.client.lock(self.key, ttl=60)
        self.assertTrue(lock.acquire())
        self.assertTrue(lock.is_acquired())
        self.assertFalse(self.client.lock(self.key).is_acquired())
        lock.refresh()
        self.assertTrue(lock.release())
        self.assertFalse(lock.release())
        with self.client.lock(self.key) as held:
            self.assertTrue(held.is_acquired())

    def test_members_and_maintenance(self):
        [member] = self.client.members
        self.assertEqual((member.name, list(member.client_urls)), ("m0", [self.server.url]))
        status = self.client.status()
        self.assertEqual((status.version, status.leader.id), ("3.7.1", member.id))
        [alarm] = self.client.create_alarm()
        self.assertEqual([found.alarm_type for found in self.client.list_alarms()], [1])
        self.client.disarm_alarm()
        self.assertEqual(list(self.client.list_alarms()), [])
        self.client.put(self.key, "1")
        revision = self.client.get(self.key)[1].mod_revision
        self.client.put(self.key, "2")
        self.client.compact(revision, physical=True)
        self.client.defragment()
        self.assertIsInstance(self.client.hash(), int)
        copy = io.BytesIO()
        self.client.snapshot(copy)
        self.assertEqual(len(copy.getvalue()) % 512, 32)


if __name__ == "__main__":
    unittest.main()
