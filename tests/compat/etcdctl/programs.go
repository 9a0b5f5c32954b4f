//go:build programs

// Package programs names etcd's own client, so that the go command knows its module. `go install`
// cannot build it: it refuses a module with replace directives.
package programs

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
)
