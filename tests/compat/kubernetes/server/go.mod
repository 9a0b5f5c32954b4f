module go.etcd.io/etcd/server/v3

go 1.26.0

require (
	go.etcd.io/etcd/client/pkg/v3 v3.7.0
	go.uber.org/zap v1.27.1
)
