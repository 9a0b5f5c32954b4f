//go:build programs

// Package programs names the API server of Kubernetes, and the packages of controller-runtime whose
// tests start it, so that the go command knows their modules.
package programs

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "sigs.k8s.io/controller-runtime/pkg/client"
	_ "sigs.k8s.io/controller-runtime/pkg/controller"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "sigs.k8s.io/controller-runtime/pkg/manager"
)
