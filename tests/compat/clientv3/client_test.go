package clientv3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestWatchGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 1), soon(t)
	client := connect(t, c.urls()...)
	events := client.Watch(ctx, "key")
	var heard []string
	hear := func(count int) {
		for len(heard) < count {
			answer := <-events
			check(t, answer.Err())
			for _, event := range answer.Events {
				heard = append(heard, string(event.Kv.Value))
			}
		}
	}
	for round := range 3 {
		put(t, client, "key", fmt.Sprint(round))
		if round == 0 {
			hear(1)
		}
		c.kill(0)
		c.run(0)
	}
	hear(3)
	equal(t, strings.Join(heard, " "), "0 1 2")
}

func TestWatchOfTheCompactedPast(t *testing.T) {
	ctx, client := one(t)
	put(t, client, "key", "1", "key", "2", "key", "3")
	_, err := client.Compact(ctx, 3, clientv3.WithCompactPhysical())
	check(t, err)
	last := <-client.Watch(ctx, "key", clientv3.WithRev(2))
	equal(t, last.CompactRevision, 3)
	equal(t, last.Err(), rpctypes.ErrCompacted)
	_, err = client.Get(ctx, "key", clientv3.WithRev(2))
	equal(t, err, rpctypes.ErrCompacted)
	_, err = client.Get(ctx, "key", clientv3.WithRev(9))
	equal(t, err, rpctypes.ErrFutureRev)
}

func TestWatchInFragments(t *testing.T) {
	ctx, client := one(t)
	for n := range 6 {
		put(t, client, fmt.Sprint("key", n), strings.Repeat("v", 1<<20))
	}
	events := client.Watch(ctx, "key", clientv3.WithPrefix(), clientv3.WithRev(2), clientv3.WithFragment())
	for heard := 0; heard < 6; {
		answer := <-events
		check(t, answer.Err())
		heard += len(answer.Events)
	}
}

func TestLeaseIsKeptOverARestart(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 1), soon(t)
	client := connect(t, c.urls()...)
	// Longer than a restart on a slow machine, including the time until the library is connected
	// again.
	const ttl = 15
	grant, err := client.Grant(ctx, ttl)
	check(t, err)
	_, err = client.Put(ctx, "key", "", clientv3.WithLease(grant.ID))
	check(t, err)
	kept, err := client.KeepAlive(ctx, grant.ID)
	check(t, err)
	equal(t, (<-kept).TTL, ttl)
	c.kill(0)
	c.run(0)
	// Longer than the TTL, so the lease would have expired without keep-alives.
	for end := time.Now().Add((ttl + 2) * time.Second); time.Now().Before(end); {
		if answer, open := <-kept; !open || answer.TTL != ttl {
			t.Fatalf("not kept: %v", answer)
		}
	}
	equal(t, value(t, client, "key"), "")
	_, err = client.Revoke(ctx, grant.ID)
	check(t, err)
	eventually(t, "the library is told", func() bool {
		select {
		case _, open := <-kept:
			return !open
		default:
			return false
		}
	})
	_, err = client.KeepAliveOnce(ctx, grant.ID)
	equal(t, err, rpctypes.ErrLeaseNotFound)
	all, err := client.Leases(ctx)
	check(t, err)
	equal(t, len(all.Leases), 0)
}

func TestTheClientGoesToAnother(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 3), soon(t)
	client := connect(t, c.members[0].client)
	check(t, client.Sync(ctx))
	equal(t, len(client.Endpoints()), 3)
	events := client.Watch(clientv3.WithRequireLeader(ctx), "key")
	written := 0
	write := func() {
		eventually(t, "a put is acknowledged", func() bool {
			hasty, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			_, err := client.Put(hasty, "key", fmt.Sprint(written))
			return err == nil
		})
		written++
	}
	for range 3 {
		write()
		leader := c.leader()
		c.kill(leader)
		write()
		equal(t, value(t, client, "key"), fmt.Sprint(written-1))
		c.run(leader)
	}
	// If the response to a put was lost, the put is repeated, and its event arrives twice. The
	// order stays the same.
	last := -1
	for last < written-1 {
		answer := <-events
		if answer.Err() != nil {
			// The watch requires a leader, and there was no leader. A client would start a new
			// watch from its last revision.
			equal(t, errors.Is(answer.Err(), rpctypes.ErrNoLeader), true)
			break
		}
		for _, event := range answer.Events {
			var heard int
			fmt.Sscan(string(event.Kv.Value), &heard)
			equal(t, heard == last || heard == last+1, true)
			last = heard
		}
	}
}

func TestWhatIsAskedOfEachMember(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 3), soon(t)
	client := connect(t, c.urls()...)
	put(t, client, "key", "1")
	hashes := map[uint32]bool{}
	ids := map[uint64]bool{}
	for _, url := range c.urls() {
		eventually(t, "all have it", func() bool {
			got, err := connect(t, url).Get(ctx, "key", clientv3.WithSerializable())
			return err == nil && got.Count == 1
		})
		status, err := client.Status(ctx, url)
		check(t, err)
		ids[status.Header.MemberId] = true
		hash, err := client.HashKV(ctx, url, 2)
		check(t, err)
		hashes[hash.Hash] = true
		_, err = client.Defragment(ctx, url)
		check(t, err)
	}
	equal(t, len(ids), 3)
	equal(t, len(hashes), 1)
	members, err := client.MemberList(ctx)
	check(t, err)
	equal(t, len(members.Members), 3)
	leader := c.leader()
	target := (leader + 1) % 3
	status, err := client.Status(ctx, c.members[target].client)
	check(t, err)
	_, err = connect(t, c.members[leader].client).MoveLeader(ctx, status.Header.MemberId)
	check(t, err)
	eventually(t, "the other one leads", func() bool { return c.leader() == target })
}

func TestARangeAsAStream(t *testing.T) {
	ctx, client := one(t)
	for n := range 30 {
		put(t, client, fmt.Sprintf("key%02d", n), strings.Repeat("v", 100_000))
	}
	stream, err := client.GetStream(ctx, "key", clientv3.WithPrefix())
	check(t, err)
	got, err := clientv3.GetStreamToGetResponse(stream)
	check(t, err)
	equal(t, len(got.Kvs), 30)
	equal(t, got.Count, 30)
}

func TestTransactionsAndTheirErrors(t *testing.T) {
	ctx, client := one(t)
	put(t, client, "a", "1")
	inner := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a"), ">", 0)},
		[]clientv3.Op{clientv3.OpPut("b", "2")}, nil)
	answer, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("a").WithPrefix(), "!=", "x")).
		Then(clientv3.OpGet("a"), inner).
		Else(clientv3.OpDelete("a")).
		Commit()
	check(t, err)
	equal(t, answer.Succeeded && answer.Responses[1].GetResponseTxn().Succeeded, true)
	_, err = client.Txn(ctx).Then(clientv3.OpPut("a", ""), clientv3.OpPut("a", "")).Commit()
	equal(t, err, rpctypes.ErrDuplicateKey)
	_, err = client.Put(ctx, "", "")
	equal(t, err, rpctypes.ErrEmptyKey)
	_, err = client.Put(ctx, "big", strings.Repeat("v", 1_600_000))
	equal(t, err, rpctypes.ErrRequestTooLarge)
	_, err = client.Put(ctx, "a", "", clientv3.WithLease(7))
	equal(t, err, rpctypes.ErrLeaseNotFound)
}
