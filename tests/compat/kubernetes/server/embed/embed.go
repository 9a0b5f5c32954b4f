// Package embed has the part of etcd's package embed that Kubernetes' tests use. A server is a
// process of the program that the environment variable CLEARLANE names. It may also name etcd's
// program.
package embed

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.uber.org/zap"
)

// Config has the settings that tests change. UnsafeNoFsync and ZapLoggerBuilder have no effect.
type Config struct {
	Name, Dir, InitialCluster         string
	ListenPeerUrls, AdvertisePeerUrls []url.URL
	ListenClientUrls                  []url.URL
	AdvertiseClientUrls               []url.URL
	ClientTLSInfo                     transport.TLSInfo
	WatchProgressNotifyInterval       time.Duration
	QuotaBackendBytes                 int64
	UnsafeNoFsync                     bool
	ZapLoggerBuilder                  func(*Config) error
}

func NewConfig() *Config {
	return &Config{Name: "default"}
}

func NewZapLoggerBuilder(*zap.Logger) func(*Config) error {
	return func(*Config) error { return nil }
}

func (c *Config) InitialClusterFromName(name string) string {
	return fmt.Sprintf("%s=%s", name, texts(c.AdvertisePeerUrls))
}

func texts(urls []url.URL) string {
	var all []string
	for _, one := range urls {
		all = append(all, one.String())
	}
	return strings.Join(all, ",")
}

// Etcd is a running server.
type Etcd struct {
	Server  *Server
	process *exec.Cmd
	// Receives the reason if the process ends before Close.
	failed   chan error
	ended    chan struct{}
	stopping sync.Once
	stopped  chan struct{}
}

// Server shows the addresses of the process, and reports when it is ready.
type Server struct {
	config *Config
	etcd   *Etcd
	ready  chan struct{}
}

func StartEtcd(c *Config) (*Etcd, error) {
	arguments := []string{
		"--name", c.Name, "--data-dir", filepath.Join(c.Dir, "data"), "--initial-cluster", c.InitialCluster,
		"--listen-client-urls", texts(c.ListenClientUrls), "--advertise-client-urls", texts(c.AdvertiseClientUrls),
		"--listen-peer-urls", texts(c.ListenPeerUrls), "--initial-advertise-peer-urls", texts(c.AdvertisePeerUrls),
	}
	if c.WatchProgressNotifyInterval != 0 {
		arguments = append(arguments, "--watch-progress-notify-interval", c.WatchProgressNotifyInterval.String())
	}
	if c.QuotaBackendBytes != 0 {
		arguments = append(arguments, "--quota-backend-bytes", fmt.Sprint(c.QuotaBackendBytes))
	}
	if c.ClientTLSInfo.CertFile != "" {
		arguments = append(arguments, "--cert-file", c.ClientTLSInfo.CertFile, "--key-file", c.ClientTLSInfo.KeyFile)
	}
	if c.ClientTLSInfo.TrustedCAFile != "" {
		arguments = append(arguments, "--trusted-ca-file", c.ClientTLSInfo.TrustedCAFile)
	}
	if c.ClientTLSInfo.ClientCertAuth {
		arguments = append(arguments, "--client-cert-auth")
	}
	log := filepath.Join(c.Dir, "log")
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	process := exec.Command(os.Getenv("CLEARLANE"), arguments...)
	process.Stdout, process.Stderr = file, file
	if err := process.Start(); err != nil {
		return nil, err
	}
	etcd := &Etcd{process: process, failed: make(chan error, 1), ended: make(chan struct{}), stopped: make(chan struct{})}
	etcd.Server = &Server{config: c, etcd: etcd, ready: make(chan struct{})}
	go etcd.await(log)
	go etcd.Server.notify(log)
	return etcd, nil
}

// await waits for the end of the process.
func (e *Etcd) await(log string) {
	err := e.process.Wait()
	select {
	case <-e.stopped:
	default:
		said, _ := os.ReadFile(log)
		e.failed <- fmt.Errorf("the server has ended: %v\n%s", err, said)
	}
	close(e.failed)
	close(e.ended)
}

func (s *Server) notify(log string) {
	for {
		said, _ := os.ReadFile(log)
		if bytes.Contains(said, []byte("ready to serve client requests")) {
			close(s.ready)
			return
		}
		select {
		case <-s.etcd.ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Close stops the process and waits for its end.
func (e *Etcd) Close() {
	e.stopping.Do(func() {
		close(e.stopped)
		e.process.Process.Signal(syscall.SIGTERM)
	})
	<-e.ended
}

func (e *Etcd) Err() <-chan error {
	return e.failed
}

func (s *Server) Stop() {
	s.etcd.Close()
}

func (s *Server) ReadyNotify() <-chan struct{} {
	return s.ready
}

func (s *Server) Cluster() *Server {
	return s
}

func (s *Server) ClientURLs() []string {
	return strings.Split(texts(s.config.AdvertiseClientUrls), ",")
}
