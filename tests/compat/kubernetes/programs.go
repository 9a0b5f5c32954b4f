//go:build programs

// Package programs names the packages of Kubernetes whose tests run against our server, so that the
// go command knows their modules.
package programs

import (
	_ "k8s.io/apiextensions-apiserver/test/integration"
	_ "k8s.io/apiserver/pkg/storage/cacher"
	_ "k8s.io/apiserver/pkg/storage/etcd3"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory"
)
