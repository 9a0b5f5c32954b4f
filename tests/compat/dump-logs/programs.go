//go:build programs

// Package programs names the programs of etcd that the tests of the raft log use, so that the go
// command knows their modules. `go install` cannot build them: it refuses a module with replace
// directives.
package programs

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "go.etcd.io/etcd/v3/tools/etcd-dump-logs"
)
