package clientv3

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/snapshot"
	"go.uber.org/zap"
)

func TestMirror(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	source, target := connect(t, start(t, 1).urls()...), connect(t, start(t, 1).urls()...)
	// More keys than the library reads in one request.
	for batch := range 25 {
		var ops []clientv3.Op
		for n := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("in/%02d/%02d", batch, n), "1"))
		}
		_, err := source.Txn(ctx).Then(ops...).Commit()
		check(t, err)
	}
	put(t, source, "out", "1")
	for prefix, count := range map[string]int64{"": 2501, "in/": 2500} {
		_, err := target.Delete(ctx, "", clientv3.WithFromKey())
		check(t, err)
		syncer := mirror.NewSyncer(source, prefix, 0)
		answers, errs := syncer.SyncBase(ctx)
		put(t, source, "in/late", prefix)
		for answer := range answers {
			for len(answer.Kvs) > 0 {
				var ops []clientv3.Op
				for _, kv := range answer.Kvs[:min(100, len(answer.Kvs))] {
					ops = append(ops, clientv3.OpPut(string(kv.Key), string(kv.Value)))
				}
				answer.Kvs = answer.Kvs[len(ops):]
				_, err := target.Txn(ctx).Then(ops...).Commit()
				check(t, err)
			}
		}
		check(t, <-errs)
		got, err := target.Get(ctx, "", clientv3.WithFromKey(), clientv3.WithCountOnly())
		check(t, err)
		equal(t, got.Count, count)
		_, err = source.Delete(ctx, "in/late")
		check(t, err)
		updates := syncer.SyncUpdates(ctx)
		var heard []string
		for len(heard) < 2 {
			for _, event := range (<-updates).Events {
				heard = append(heard, event.Type.String()+string(event.Kv.Key))
			}
		}
		equal(t, heard[0]+" "+heard[1], "PUTin/late DELETEin/late")
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 1), soon(t)
	client := connect(t, c.urls()...)
	for n := range 10 {
		put(t, client, fmt.Sprint(n), "value")
	}
	file := filepath.Join(t.TempDir(), "copy")
	version, err := snapshot.SaveWithVersion(ctx, zap.NewNop(), config(c.urls()...), file)
	check(t, err)
	equal(t, version, "3.7.0")
	info, err := os.Stat(file)
	check(t, err)
	equal(t, info.Size()%512, 32)
}
