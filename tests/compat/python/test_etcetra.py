"""Tests the library `etcetra` over gRPC with asyncio."""

import asyncio
import unittest

from etcetra import CompareKey, EtcdClient, HostPortPair
from etcetra.types import WatchEventType

from servers import PATIENCE, ServedTest


class EtcetraTest(ServedTest, unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        super().setUp()
        self.client = EtcdClient(HostPortPair("127.0.0.1", self.server.port))

    async def test_put_get_delete(self):
        async with self.client.connect() as etcd:
            await etcd.put(self.key + "a", "1")
            await etcd.put(self.key + "b", "2")
            self.assertEqual(await etcd.get(self.key + "a"), "1")
            self.assertIsNone(await etcd.get(self.key + "none"))
            found = await etcd.get_prefix(self.key)
            self.assertEqual(list(found.values()), ["1", "2"])
            self.assertEqual(list(await etcd.keys_prefix(self.key)), [self.key + "a", self.key + "b"])
            ranged = await etcd.get_range(self.key + "a", self.key + "b")
            self.assertEqual(list(ranged.values()), ["1"])
            await etcd.delete(self.key + "a")
            await etcd.delete_prefix(self.key)
            self.assertEqual(len(await etcd.get_prefix(self.key)), 0)

    async def test_transactions(self):
        async with self.client.connect() as etcd:
            await etcd.put(self.key, "1")

            def build(success, failure):
                success.put(self.key, "2")
                success.get(self.key)
                failure.get(self.key)

            done = await etcd.txn_compare([CompareKey(self.key).value == "1"], build)
            self.assertTrue(done.success)
            self.assertEqual(done.values[1], {self.key: "2"})
            done = await etcd.txn_compare([CompareKey(self.key).value == "1"], build)
            self.assertFalse(done.success)
            self.assertEqual(await etcd.txn(lambda action: action.get(self.key)), [{self.key: "2"}])

    async def test_leases(self):
        async with self.client.connect() as etcd:
            lease = await etcd.grant_lease(6)
            await etcd.put(self.key, "1", lease=lease)
            keeping = etcd.create_lease_keepalive_task(lease, 1)
            # Longer than the TTL, so the lease would have expired without keep-alives.
            await asyncio.sleep(8)
            self.assertEqual(await etcd.get(self.key), "1")
            keeping.cancel()
            await etcd.revoke_lease(lease)
            self.assertIsNone(await etcd.get(self.key))

    async def test_watches(self):
        async with self.client.connect() as etcd, asyncio.timeout(PATIENCE):

            async def write():
                # The library reports when it has sent the request, not when the watch exists. So keep
                # writing until the first event arrives.
                for number in range(10_000):
                    await etcd.put(self.key + "a", str(number))
                    await asyncio.sleep(0.02)

            writing = asyncio.create_task(write())
            heard = []
            async for event in etcd.watch_prefix(self.key, prev_kv=True):
                heard.append(event)
                if len(heard) == 3:
                    break
            writing.cancel()
        first = int(heard[0].value)
        for number, event in enumerate(heard, first):
            self.assertEqual((event.event, event.key), (WatchEventType.PUT, self.key + "a"))
            self.assertEqual(event.value, str(number))
            if number > 0:
                self.assertEqual(event.prev_value, str(number - 1))

    async def test_locks(self):
        async with self.client.with_lock(self.key, timeout=PATIENCE, ttl=60):
            with self.assertRaises(asyncio.TimeoutError):
                async with self.client.with_lock(self.key, timeout=0.5):
                    self.fail("two hold the lock")
        async with self.client.with_lock(self.key, timeout=PATIENCE) as etcd:
            self.assertEqual(len(await etcd.keys_prefix(self.key)), 1)


if __name__ == "__main__":
    unittest.main()
