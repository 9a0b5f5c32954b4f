//go:build packages

// Package packages names etcd's test suites and the programs that they run, so that the go command
// knows their modules. `go install` refuses modules with replace directives.
package packages

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/tests/v3/framework/integration"
	_ "go.etcd.io/etcd/tests/v3/robustness/scenarios"
	_ "go.etcd.io/etcd/tests/v3/robustness/validate"
)
