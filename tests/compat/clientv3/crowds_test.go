package clientv3

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rounds returns how often each of these tests is repeated against one server: CLEARLANE_ROUNDS, or
// 1. The tests send thousands of messages at once; this library sends each of them as a frame of a
// few dozen bytes.
func rounds(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv("CLEARLANE_ROUNDS")
	if !ok {
		return 1
	}
	count, err := strconv.Atoi(text)
	check(t, err)
	return count
}

// crowd creates watches on several streams of one connection, all at once. Each watch must see one
// put.
func crowd(t *testing.T, client *clientv3.Client, streams, watches int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	key := []byte(fmt.Sprintf("crowd-%d-%d", streams, time.Now().UnixNano()))
	var made, heard, streaming sync.WaitGroup
	for range streams {
		stream, err := pb.NewWatchClient(client.ActiveConnection()).Watch(ctx)
		check(t, err)
		made.Add(watches)
		heard.Add(watches)
		streaming.Go(func() {
			for range 2 * watches {
				response, err := stream.Recv()
				if err != nil {
					t.Errorf("a stream has ended: %v", err)
					cancel()
					return
				}
				if response.Created {
					made.Done()
				}
				for range response.Events {
					heard.Done()
				}
			}
		})
		streaming.Go(func() {
			create := &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: key}}
			for range watches {
				if stream.Send(&pb.WatchRequest{RequestUnion: create}) != nil {
					return
				}
			}
		})
	}
	if within(ctx, &made) {
		_, err := client.Put(ctx, string(key), "")
		check(t, err)
		within(ctx, &heard)
	}
	if ctx.Err() != nil {
		t.Fatalf("%d watches on each of %d streams: not all were made and saw the put", watches, streams)
	}
	cancel()
	streaming.Wait()
}

// within waits for a group. It returns false if the context ends first.
func within(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func TestManyWatchesAtOnceOnOneStream(t *testing.T) {
	_, client := one(t)
	for range rounds(t) {
		crowd(t, client, 1, 5000)
	}
}

func TestManyWatchesAtOnceOnManyStreams(t *testing.T) {
	_, client := one(t)
	for range rounds(t) {
		crowd(t, client, 20, 1000)
	}
}

// A lease expires after twenty seconds without a keep-alive, and its keys are deleted with it.
func TestManyLeasesAreKeptAlive(t *testing.T) {
	_, client := one(t)
	for range rounds(t) {
		keepLeases(t, client, 20_000, 20)
	}
}

func keepLeases(t *testing.T, client *clientv3.Client, count int, ttl int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	// A separate lessor, whose stream ends with it.
	lessor := clientv3.NewLease(client)
	defer lessor.Close()
	var twice, ended atomic.Int64
	keep := func(id clientv3.LeaseID) {
		alive, err := lessor.KeepAlive(ctx, id)
		if err != nil {
			t.Errorf("a lease cannot be kept: %v", err)
			return
		}
		go func() {
			answers := 0
			for range alive {
				if answers++; answers == 2 {
					twice.Add(1)
				}
			}
			ended.Add(1)
		}()
	}
	var granting sync.WaitGroup
	for range 100 {
		granting.Go(func() {
			for range count / 100 {
				lease, err := client.Grant(ctx, ttl)
				if err != nil {
					t.Errorf("a lease was not granted: %v", err)
					return
				}
				// Start now: on a slow machine, granting all leases takes longer than their TTL.
				keep(lease.ID)
			}
		})
	}
	granting.Wait()
	// The library sends the first keep-alive soon, and the next one after a third of the TTL.
	eventually(t, "each is kept alive twice", func() bool {
		return twice.Load() == int64(count) || ended.Load() > 0
	})
	leases, err := client.Leases(ctx)
	check(t, err)
	if ended.Load() > 0 || len(leases.Leases) < count {
		t.Fatalf("%d of %d are not kept alive any more, %d leases are left", ended.Load(), count, len(leases.Leases))
	}
	var revoking sync.WaitGroup
	work := make(chan clientv3.LeaseID)
	for range 100 {
		revoking.Go(func() {
			for id := range work {
				client.Revoke(ctx, id)
			}
		})
	}
	for _, lease := range leases.Leases {
		work <- clientv3.LeaseID(lease.ID)
	}
	close(work)
	revoking.Wait()
}
