//go:build programs

// Package programs names etcd's own client, so that the go command knows which module it comes from.
// `go install` would not do: it refuses a module with replace directives.
package programs

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
)
