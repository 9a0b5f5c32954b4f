package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// users counts answers that a user must not get.
func users(f figures) {
	for _, way := range ways {
		w := newWorld(1)
		ctx := context.Background()
		admin := client(w.endpoints[0])
		lease, err := admin.Grant(ctx, 600)
		must(err)
		for _, key := range []string{"a/1", "b/1"} {
			_, err := admin.Put(ctx, key, key, clientv3.WithLease(lease.ID))
			must(err)
		}
		for _, name := range []string{"root", "a", "b"} {
			_, err := admin.UserAdd(ctx, name, "p")
			must(err)
			_, err = admin.RoleAdd(ctx, name)
			must(err)
			_, err = admin.UserGrantRole(ctx, name, name)
			must(err)
			_, err = admin.RoleGrantPermission(ctx, name, name+"/", name+"0", clientv3.PermissionType(clientv3.PermReadWrite))
			must(err)
		}
		_, err = admin.AuthEnable(ctx)
		must(err)
		as := func(name string) *clientv3.Client {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{w.addresses[way]}, Username: name, Password: "p", Logger: zap.NewNop()})
			must(err)
			return c
		}
		root, err := clientv3.New(clientv3.Config{Endpoints: w.endpoints, Username: "root", Password: "p", Logger: zap.NewNop()})
		must(err)
		a, b, nobody := as("a"), as("b"), client(w.addresses[way])
		leaks := map[string]int{}
		check := func(what string, leaked bool) {
			if _, is := leaks[what]; !is {
				leaks[what] = 0
			}
			if leaked {
				leaks[what]++
			}
		}
		// A read of user a fills the cache, and the others ask for the same.
		for range 20 {
			_, err := a.Get(ctx, "a/", clientv3.WithPrefix())
			must(err)
			_, err = a.Get(ctx, "a/", clientv3.WithPrefix(), clientv3.WithSerializable())
			must(err)
		}
		for _, other := range []*clientv3.Client{b, nobody} {
			_, err = other.Get(ctx, "a/", clientv3.WithPrefix(), clientv3.WithSerializable())
			check("cached serializable read", err == nil)
			_, err = other.Get(ctx, "a/", clientv3.WithPrefix())
			check("cached linearizable read", err == nil)
			nested := clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("a/1")}, nil)
			_, err = other.Txn(ctx).Then(nested).Commit()
			check("nested transaction", err == nil)
			left, err := other.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
			check("keys of a lease", err == nil && len(left.Keys) > 0)
		}
		// A watch of user a, which the others share.
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		first := a.Watch(short, "a/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-first
		for _, other := range []*clientv3.Client{b, nobody} {
			events := other.Watch(short, "a/", clientv3.WithPrefix())
			_, err := root.Put(ctx, "a/1", "secret")
			must(err)
			seen := false
			for response := range events {
				seen = seen || len(response.Events) > 0
			}
			check("shared watch", seen)
			cancel()
			short, cancel = context.WithTimeout(ctx, 2*time.Second)
		}
		cancel()
		// A permission that is revoked acts at once.
		_, err = root.RoleRevokePermission(ctx, "a", "a/", "a0")
		must(err)
		_, err = a.Get(ctx, "a/", clientv3.WithPrefix(), clientv3.WithSerializable())
		check("read after the permission was revoked", err == nil)
		sum := 0
		for what, count := range leaks {
			f.add("leaks, "+what, way, float64(count))
			sum += count
		}
		f.add("leaks, sum", way, float64(sum))
		for _, c := range []*clientv3.Client{admin, root, a, b, nobody} {
			c.Close()
		}
		w.close()
	}
}

// codes counts calls whose status differs from that of the member.
func codes(f figures) {
	w := newWorld(1)
	defer w.close()
	ctx := context.Background()
	c := client(w.endpoints[0])
	defer c.Close()
	for i := range 10 {
		_, err := c.Put(ctx, fmt.Sprintf("codes/%d", i), value)
		must(err)
	}
	_, err := c.Compact(ctx, 5)
	must(err)
	key := []byte("codes/1")
	calls := func(address string) map[string]string {
		connection := dial(address)
		defer connection.Close()
		kv, lease, auth := pb.NewKVClient(connection), pb.NewLeaseClient(connection), pb.NewAuthClient(connection)
		cluster, maintenance := pb.NewClusterClient(connection), pb.NewMaintenanceClient(connection)
		results := map[string]string{}
		// The proxies have their own limit for messages, so the numbers in such an error differ.
		note := func(name string, err error) {
			message, _, _ := strings.Cut(status.Convert(err).Message(), " (2097166 vs.")
			results[name] = status.Convert(err).Code().String() + " " + message
		}
		r := func(name string, request *pb.RangeRequest) {
			_, err := kv.Range(ctx, request)
			note("Range "+name, err)
		}
		r("", &pb.RangeRequest{Key: key})
		r("without key", &pb.RangeRequest{})
		r("compacted", &pb.RangeRequest{Key: key, Revision: 2})
		r("future", &pb.RangeRequest{Key: key, Revision: 1000})
		r("bad order", &pb.RangeRequest{Key: key, SortOrder: 7})
		r("bad target", &pb.RangeRequest{Key: key, SortTarget: 7})
		r("serializable compacted", &pb.RangeRequest{Key: key, Revision: 2, Serializable: true})
		r("serializable future", &pb.RangeRequest{Key: key, Revision: 1000, Serializable: true})
		_, err := kv.Put(ctx, &pb.PutRequest{})
		note("Put without key", err)
		_, err = kv.Put(ctx, &pb.PutRequest{Key: []byte("new"), IgnoreValue: true})
		note("Put ignore_value", err)
		_, err = kv.Put(ctx, &pb.PutRequest{Key: key, Value: key, IgnoreValue: true})
		note("Put value provided", err)
		_, err = kv.Put(ctx, &pb.PutRequest{Key: key, Lease: 77})
		note("Put unknown lease", err)
		_, err = kv.Put(ctx, &pb.PutRequest{Key: key, Value: make([]byte, 2<<20)})
		note("Put too large", err)
		_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{})
		note("DeleteRange without key", err)
		_, err = kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{}}})
		note("Txn empty operation", err)
		put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key}}}
		_, err = kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{put, put}})
		note("Txn duplicate key", err)
		many := make([]*pb.RequestOp, 200)
		for i := range many {
			many[i] = put
		}
		_, err = kv.Txn(ctx, &pb.TxnRequest{Success: many})
		note("Txn too many operations", err)
		_, err = kv.Compact(ctx, &pb.CompactionRequest{Revision: 2})
		note("Compact compacted", err)
		_, err = kv.Compact(ctx, &pb.CompactionRequest{Revision: 1000})
		note("Compact future", err)
		_, err = lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 77})
		note("LeaseRevoke unknown", err)
		_, err = lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1 << 40})
		note("LeaseGrant too long", err)
		left, err := lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 77})
		note("LeaseTimeToLive unknown", err)
		results["LeaseTimeToLive ttl"] = fmt.Sprint(left.GetTTL())
		_, err = auth.UserAdd(ctx, &pb.AuthUserAddRequest{})
		note("UserAdd without name", err)
		_, err = auth.UserGet(ctx, &pb.AuthUserGetRequest{Name: "none"})
		note("UserGet unknown", err)
		_, err = auth.RoleGet(ctx, &pb.AuthRoleGetRequest{Role: "none"})
		note("RoleGet unknown", err)
		_, err = auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: "x", Password: "y"})
		note("Authenticate", err)
		_, err = auth.AuthEnable(ctx, &pb.AuthEnableRequest{})
		note("AuthEnable without root", err)
		_, err = cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: 77})
		note("MemberRemove unknown", err)
		_, err = cluster.MemberPromote(ctx, &pb.MemberPromoteRequest{ID: 77})
		note("MemberPromote unknown", err)
		_, err = maintenance.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: 77})
		note("MoveLeader unknown", err)
		_, err = maintenance.HashKV(ctx, &pb.HashKVRequest{Revision: 1000})
		note("HashKV future", err)
		_, err = maintenance.Downgrade(ctx, &pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: "1.0.0"})
		note("Downgrade", err)
		old := metadata.AppendToOutgoingContext(ctx, "token", "none.1")
		_, err = kv.Range(old, &pb.RangeRequest{Key: key})
		note("Range with an unknown token", err)
		answer, err := kv.Range(ctx, &pb.RangeRequest{Key: key})
		note("Range again", err)
		results["header"] = fmt.Sprint(answer.GetHeader().GetClusterId(), answer.GetHeader().GetMemberId(), answer.GetHeader().GetRaftTerm())
		return results
	}
	direct := calls(w.addresses["direct"])
	for _, way := range ways[1:] {
		count := 0
		for name, result := range calls(w.addresses[way]) {
			if result != direct[name] {
				fmt.Fprintf(os.Stderr, "%s: %s: %q, at the member %q\n", way, name, result, direct[name])
				count++
			}
		}
		f.add(fmt.Sprintf("results that differ, of %d", len(direct)), way, float64(count))
	}
}
