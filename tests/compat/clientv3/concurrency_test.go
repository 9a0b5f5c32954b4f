package clientv3

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func session(t *testing.T, client *clientv3.Client) *concurrency.Session {
	t.Helper()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	check(t, err)
	return session
}

func TestSession(t *testing.T) {
	ctx, client := one(t)
	s := session(t, client)
	left, err := client.TimeToLive(ctx, s.Lease())
	check(t, err)
	equal(t, left.GrantedTTL, 60)
	check(t, s.Close())
	left, err = client.TimeToLive(ctx, s.Lease())
	check(t, err)
	equal(t, left.TTL, -1)

	lost := session(t, client)
	_, err = client.Revoke(ctx, lost.Lease())
	check(t, err)
	// The library notices this with its next keep-alive, after at most a third of the TTL.
	select {
	case <-lost.Done():
	case <-ctx.Done():
		t.Fatal("a session without a lease goes on")
	}

	grant, err := client.Grant(ctx, 60)
	check(t, err)
	kept, err := concurrency.NewSession(client, concurrency.WithLease(grant.ID))
	check(t, err)
	kept.Orphan()
	<-kept.Done()
	left, err = client.TimeToLive(ctx, grant.ID)
	check(t, err)
	if left.TTL <= 0 {
		t.Fatal("an orphan's lease is gone")
	}
}

func TestMutexLetsOneIn(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	ctx := soon(t)
	var inside, sum int
	var watch sync.Mutex
	var all sync.WaitGroup
	for at := range 6 {
		client := connect(t, c.members[at%3].client)
		s := session(t, client)
		mutex := concurrency.NewMutex(s, "lock")
		all.Go(func() {
			for range 5 {
				if err := mutex.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				watch.Lock()
				inside++
				if inside != 1 {
					t.Errorf("%d are inside", inside)
				}
				sum++
				inside--
				watch.Unlock()
				if err := mutex.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	equal(t, sum, 30)
}

func TestMutexTriedAndLost(t *testing.T) {
	ctx, client := one(t)
	first, second := session(t, client), session(t, client)
	held := concurrency.NewMutex(first, "lock")
	check(t, held.TryLock(ctx))
	equal(t, held.Key(), fmt.Sprintf("lock/%x", first.Lease()))
	equal(t, held.Header().Revision, 2)
	other := concurrency.NewMutex(second, "lock")
	equal(t, other.TryLock(ctx), concurrency.ErrLocked)
	guarded := func() bool {
		answer, err := client.Txn(ctx).If(held.IsOwner()).Then(clientv3.OpPut("a", "")).Commit()
		check(t, err)
		return answer.Succeeded
	}
	equal(t, guarded(), true)

	waits := make(chan error, 1)
	go func() { waits <- other.Lock(ctx) }()
	eventually(t, "the second waits", func() bool {
		return keys(t, client, "lock/") != held.Key()
	})
	check(t, first.Close())
	check(t, <-waits)
	equal(t, guarded(), false)
	check(t, other.Unlock(ctx))

	// A client that stops waiting leaves the queue.
	third := session(t, client)
	check(t, concurrency.NewMutex(second, "lock").Lock(ctx))
	hasty, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	err := concurrency.NewMutex(third, "lock").Lock(hasty)
	equal(t, errors.Is(err, context.DeadlineExceeded), true)
	equal(t, keys(t, client, "lock/"), fmt.Sprintf("lock/%x", second.Lease()))

	locker := concurrency.NewLocker(third, "another")
	locker.Lock()
	equal(t, keys(t, client, "another/"), fmt.Sprintf("another/%x", third.Lease()))
	locker.Unlock()
	equal(t, keys(t, client, "another/"), "")
}

func TestElection(t *testing.T) {
	ctx, client := one(t)
	first, second := session(t, client), session(t, client)
	e, f := concurrency.NewElection(first, "name"), concurrency.NewElection(second, "name")
	_, err := e.Leader(ctx)
	equal(t, err, concurrency.ErrElectionNoLeader)
	equal(t, e.Proclaim(ctx, "x"), concurrency.ErrElectionNotLeader)

	seen := concurrency.NewElection(second, "name").Observe(ctx)
	next := func() string { return string((<-seen).Kvs[0].Value) }
	check(t, e.Campaign(ctx, "one"))
	equal(t, next(), "one")
	equal(t, e.Key(), fmt.Sprintf("name/%x", first.Lease()))
	leader, err := f.Leader(ctx)
	check(t, err)
	equal(t, string(leader.Kvs[0].Value), "one")
	equal(t, leader.Kvs[0].CreateRevision, e.Rev())
	check(t, e.Proclaim(ctx, "uno"))
	equal(t, next(), "uno")

	won := make(chan error, 1)
	go func() { won <- f.Campaign(ctx, "two") }()
	eventually(t, "the second waits", func() bool { return keys(t, client, "name/") != e.Key() })
	resumed := concurrency.ResumeElection(first, "name", e.Key(), e.Rev())
	check(t, resumed.Proclaim(ctx, "still"))
	equal(t, next(), "still")
	check(t, resumed.Resign(ctx))
	check(t, <-won)
	equal(t, next(), "two")
	equal(t, e.Proclaim(ctx, "late"), concurrency.ErrElectionNotLeader)
	check(t, second.Close())
	_, err = e.Leader(ctx)
	equal(t, err, concurrency.ErrElectionNoLeader)
}

func TestSTMKeepsTheSum(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	ctx := soon(t)
	const accounts = 4
	for _, isolation := range []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads,
	} {
		name := func(n int) string { return fmt.Sprintf("%d/%d", isolation, n) }
		client := connect(t, c.urls()...)
		for n := range accounts {
			put(t, client, name(n), "100")
		}
		var all sync.WaitGroup
		for worker := range 3 {
			client := connect(t, c.members[worker].client)
			all.Go(func() {
				for n := range 10 {
					from, to := name((worker+n)%accounts), name((worker+n+1)%accounts)
					move := func(stm concurrency.STM) error {
						a, _ := strconv.Atoi(stm.Get(from))
						b, _ := strconv.Atoi(stm.Get(to))
						stm.Put(from, strconv.Itoa(a-n))
						stm.Put(to, strconv.Itoa(b+n))
						return nil
					}
					_, err := concurrency.NewSTM(client, move, concurrency.WithIsolation(isolation),
						concurrency.WithAbortContext(ctx), concurrency.WithPrefetch(from, to))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		sum := 0
		for n := range accounts {
			amount, err := strconv.Atoi(value(t, client, name(n)))
			check(t, err)
			sum += amount
		}
		equal(t, sum, accounts*100)
	}
}

func TestSTMReadsItsWrites(t *testing.T) {
	ctx, client := one(t)
	put(t, client, "a", "1", "gone", "1")
	for _, new := range []func(func(concurrency.STM) error) (*clientv3.TxnResponse, error){
		func(f func(concurrency.STM) error) (*clientv3.TxnResponse, error) {
			return concurrency.NewSTM(client, f, concurrency.WithIsolation(concurrency.ReadCommitted))
		},
		func(f func(concurrency.STM) error) (*clientv3.TxnResponse, error) {
			return concurrency.NewSTM(client, f)
		},
	} {
		answer, err := new(func(stm concurrency.STM) error {
			if stm.Rev("a") == 0 || stm.Rev("never") != 0 {
				return errors.New("wrong revisions")
			}
			stm.Put("b", stm.Get("a")+"2")
			stm.Del("gone")
			stm.Put("c", stm.Get("b")+stm.Get("gone", "never"))
			return nil
		})
		check(t, err)
		equal(t, answer.Succeeded, true)
		equal(t, value(t, client, "b")+" "+value(t, client, "c"), "12 12")
		equal(t, value(t, client, "gone"), "-")
	}
	refused := errors.New("not today")
	_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
		stm.Put("a", "2")
		return refused
	})
	equal(t, err, refused)
	equal(t, value(t, client, "a"), "1")
	check(t, ctx.Err())
}
