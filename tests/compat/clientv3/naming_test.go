package clientv3

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func TestEndpoints(t *testing.T) {
	ctx, client := one(t)
	manager, err := endpoints.NewManager(client, "service")
	check(t, err)
	a := endpoints.Endpoint{Addr: "10.0.0.1:1", Metadata: "zone"}
	check(t, manager.AddEndpoint(ctx, "service/a", a))
	updates, err := manager.NewWatchChannel(ctx)
	check(t, err)
	first := <-updates
	equal(t, len(first), 1)
	equal(t, first[0].Endpoint.Addr, a.Addr)

	grant, err := client.Grant(ctx, 60)
	check(t, err)
	b := endpoints.Endpoint{Addr: "10.0.0.2:1"}
	check(t, manager.Update(ctx, []*endpoints.UpdateWithOpts{
		endpoints.NewAddUpdateOpts("service/b", b, clientv3.WithLease(grant.ID)),
		endpoints.NewDeleteUpdateOpts("service/a"),
	}))
	both := <-updates
	equal(t, len(both), 2)
	all, err := manager.List(ctx)
	check(t, err)
	equal(t, len(all), 1)
	equal(t, all["service/b"].Addr, b.Addr)
	_, err = client.Revoke(ctx, grant.ID)
	check(t, err)
	gone := <-updates
	equal(t, gone[0].Op, endpoints.Delete)
	equal(t, gone[0].Key, "service/b")
}

func TestResolver(t *testing.T) {
	t.Parallel()
	c, ctx := start(t, 1), soon(t)
	client := connect(t, c.urls()...)
	builder, err := resolver.NewBuilder(client)
	check(t, err)
	manager, err := endpoints.NewManager(client, "health")
	check(t, err)
	// The server itself is the named service: it has the gRPC health service.
	address := c.members[0].client[len("http://"):]
	check(t, manager.AddEndpoint(ctx, "health/a", endpoints.Endpoint{Addr: address}))
	connection, err := grpc.NewClient("etcd:///health", grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer connection.Close()
	health := grpc_health_v1.NewHealthClient(connection)
	answer, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	check(t, err)
	equal(t, answer.Status, grpc_health_v1.HealthCheckResponse_SERVING)

	check(t, manager.DeleteEndpoint(ctx, "health/a"))
	eventually(t, "the service is gone", func() bool {
		_, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err != nil
	})
}
