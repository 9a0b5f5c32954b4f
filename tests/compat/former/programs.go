//go:build programs

// Package programs names the server of the previous release, whose directories Clearlane takes
// over, so that the go command knows its module.
package programs

import _ "go.etcd.io/etcd/server/v3"
