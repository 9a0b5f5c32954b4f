package clientv3

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/clientv3util"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/ordering"
)

func TestNamespace(t *testing.T) {
	ctx, client := one(t)
	kv := namespace.NewKV(client.KV, "part/")
	watcher := namespace.NewWatcher(client.Watcher, "part/")
	lease := namespace.NewLease(client.Lease, "part/")
	put(t, client, "key", "outside", "z", "outside")
	events := watcher.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithPrevKV())
	grant, err := lease.Grant(ctx, 60)
	check(t, err)
	_, err = kv.Put(ctx, "key", "1", clientv3.WithLease(grant.ID))
	check(t, err)
	put(t, kv, "key", "2", "key2", "3")
	_, err = kv.Put(ctx, "key3", "4", clientv3.WithLease(grant.ID))
	check(t, err)

	equal(t, value(t, client, "part/key"), "2")
	equal(t, keys(t, kv, ""), "key key2 key3")
	got, err := kv.Get(ctx, "key2", clientv3.WithFromKey())
	check(t, err)
	equal(t, got.Count, 2)
	left, err := lease.TimeToLive(ctx, grant.ID, clientv3.WithAttachedKeys())
	check(t, err)
	equal(t, len(left.Keys), 1)
	equal(t, string(left.Keys[0]), "key3")

	answer, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("key"), "=", "2"), clientv3util.KeyMissing("z")).
		Then(clientv3.OpDelete("key", clientv3.WithPrevKV()), clientv3.OpGet("", clientv3.WithPrefix())).
		Commit()
	check(t, err)
	equal(t, answer.Succeeded, true)
	equal(t, string(answer.Responses[0].GetResponseDeleteRange().PrevKvs[0].Key), "key")
	equal(t, string(answer.Responses[1].GetResponseRange().Kvs[0].Key), "key2")
	deleted, err := kv.Delete(ctx, "", clientv3.WithFromKey())
	check(t, err)
	equal(t, deleted.Deleted, 2)
	equal(t, value(t, client, "z"), "outside")

	var heard []string
	for len(heard) < 7 {
		for _, event := range (<-events).Events {
			heard = append(heard, event.Type.String()+" "+string(event.Kv.Key))
		}
	}
	equal(t, strings.Join(heard, ", "),
		"PUT key, PUT key, PUT key2, PUT key3, DELETE key, DELETE key2, DELETE key3")
}

func TestLeasingAnswersFromItsCache(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 1), soon(t)
	client := connect(t, c.urls()...)
	put(t, client, "key", "1")
	kv, end, err := leasing.NewKV(client, "leases/", concurrency.WithTTL(60))
	check(t, err)
	defer end()
	equal(t, value(t, kv, "key"), "1")
	equal(t, keys(t, client, "leases/"), "leases/key")
	c.kill(0)
	// The lease on this key excludes other writers, so the library may answer without the server.
	equal(t, value(t, kv, "key"), "1")
	c.run(0)
	put(t, kv, "key", "2")
	equal(t, value(t, client, "key"), "2")
	check(t, ctx.Err())
}

func TestLeasingGivesWay(t *testing.T) {
	ctx, client := one(t)
	first, end, err := leasing.NewKV(client, "leases/")
	check(t, err)
	defer end()
	second, end2, err := leasing.NewKV(client, "leases/")
	check(t, err)
	defer end2()
	put(t, first, "a", "1", "b", "1")
	for _, round := range []string{"2", "3", "4"} {
		equal(t, value(t, first, "a"), value(t, second, "a"))
		put(t, second, "a", round)
		equal(t, value(t, first, "a"), round)
	}
	answer, err := first.Txn(ctx).
		If(clientv3.Compare(clientv3.Value("a"), "=", "4")).
		Then(clientv3.OpPut("a", "5"), clientv3.OpPut("b", "5")).
		Else(clientv3.OpGet("a")).
		Commit()
	check(t, err)
	equal(t, answer.Succeeded, true)
	equal(t, value(t, second, "a")+value(t, second, "b"), "55")
	deleted, err := second.Delete(ctx, "", clientv3.WithFromKey())
	check(t, err)
	equal(t, deleted.Deleted >= 2, true)
	equal(t, value(t, first, "a")+value(t, first, "b"), "--")
}

func TestOrderingTellsOldFromNew(t *testing.T) {
	t.Parallel()
	// Two independent servers act as one member that is ahead and one that is behind.
	ahead, behind, ctx := start(t, 1), start(t, 1), soon(t)
	client := connect(t, ahead.urls()...)
	put(t, client, "key", "1", "key", "2")
	old := errors.New("too old")
	violations := 0
	kv := ordering.NewKV(client.KV, func(clientv3.Op, clientv3.OpResponse, int64) error {
		violations++
		return old
	})
	equal(t, value(t, kv, "key"), "2")
	client.SetEndpoints(behind.urls()...)
	eventually(t, "the other one is asked", func() bool { return value(t, client, "key") == "-" })
	_, err := kv.Get(ctx, "key", clientv3.WithSerializable())
	equal(t, err, old)
	_, err = kv.Txn(ctx).Then(clientv3.OpGet("key")).Commit()
	equal(t, err, old)
	equal(t, violations, 2)

	switching := ordering.NewKV(client.KV, ordering.NewOrderViolationSwitchEndpointClosure(client))
	client.SetEndpoints(ahead.urls()...)
	eventually(t, "the first one is asked", func() bool { return value(t, client, "key") == "2" })
	equal(t, value(t, switching, "key"), "2")
	client.SetEndpoints(behind.urls()...)
	eventually(t, "the other one is asked", func() bool { return value(t, client, "key") == "-" })
	_, err = switching.Get(ctx, "key")
	equal(t, err, ordering.ErrNoGreaterRev)
}

func TestWhatKubernetesAsksFor(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	client, err := kubernetes.New(config(start(t, 1).urls()...))
	check(t, err)
	defer client.Close()
	k := client.Kubernetes
	created, err := k.OptimisticPut(ctx, "/r/pods/a", []byte("1"), 0, kubernetes.PutOptions{})
	check(t, err)
	equal(t, created.Succeeded, true)
	equal(t, created.Revision, 2)
	again, err := k.OptimisticPut(ctx, "/r/pods/a", []byte("2"), 0, kubernetes.PutOptions{GetOnFailure: true})
	check(t, err)
	equal(t, again.Succeeded, false)
	equal(t, string(again.KV.Value), "1")
	updated, err := k.OptimisticPut(ctx, "/r/pods/a", []byte("2"), 2, kubernetes.PutOptions{})
	check(t, err)
	equal(t, updated.Succeeded, true)
	for _, name := range []string{"b", "c", "d", "e"} {
		put(t, client.KV, "/r/pods/"+name, "1")
	}
	first, err := k.List(ctx, "/r/pods/", kubernetes.ListOptions{Limit: 2})
	check(t, err)
	equal(t, len(first.Kvs), 2)
	equal(t, first.Count, 5)
	put(t, client.KV, "/r/pods/f", "1")
	rest, err := k.List(ctx, "/r/pods/", kubernetes.ListOptions{
		Revision: first.Revision,
		Continue: string(first.Kvs[1].Key) + "\x00",
	})
	check(t, err)
	equal(t, len(rest.Kvs), 3)
	count, err := k.Count(ctx, "/r/pods/", kubernetes.CountOptions{})
	check(t, err)
	equal(t, count, 6)
	old, err := k.Get(ctx, "/r/pods/a", kubernetes.GetOptions{Revision: 2})
	check(t, err)
	equal(t, string(old.KV.Value), "1")
	kept, err := k.OptimisticDelete(ctx, "/r/pods/a", 2, kubernetes.DeleteOptions{GetOnFailure: true})
	check(t, err)
	equal(t, kept.Succeeded, false)
	equal(t, kept.KV.ModRevision, 3)
	gone, err := k.OptimisticDelete(ctx, "/r/pods/a", 3, kubernetes.DeleteOptions{})
	check(t, err)
	equal(t, gone.Succeeded, true)

	// Bookmarks: a watch cache waits for these progress notifications.
	quiet, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), 30*time.Second)
	defer cancel()
	events := client.Watch(quiet, "/r/pods/", clientv3.WithPrefix(), clientv3.WithRev(first.Revision+1),
		clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	equal(t, (<-events).Created, true)
	for heard := 0; heard < 2; {
		heard += len((<-events).Events)
	}
	check(t, client.RequestProgress(clientv3.WithRequireLeader(ctx)))
	progress := <-events
	equal(t, progress.IsProgressNotify(), true)
	equal(t, progress.Header.Revision, gone.Revision)
}
