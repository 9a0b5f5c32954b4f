module clearlane.example/kubernetes

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 v3.7.0
	k8s.io/apiserver v0.37.2
)

// Kubernetes' tests start etcd by its package embed. Here a package of that name starts the program.
replace go.etcd.io/etcd/server/v3 => ./server
