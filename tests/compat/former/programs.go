//go:build programs

// Package programs names the server of the release before, whose directories are taken over, so that the go
// command knows which module it comes from.
package programs

import _ "go.etcd.io/etcd/server/v3"
