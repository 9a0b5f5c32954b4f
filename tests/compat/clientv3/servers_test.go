// Package clientv3 runs etcd's own library for Go, with its packages, against real servers.
//
// The environment variable CLEARLANE names the program of the servers. It may also name etcd's
// program, so a test must pass with both programs. Every test has its own servers. Their data is in
// a temporary directory of the test.
//
//	test -> start(t, 1) -> m0: a port for clients, one for members, data and log in a new directory
//	          kill(0)   -> as if the process had crashed
//	          run(0)    -> back, on the same ports and the same data
//
// No test sleeps for a fixed time: eventually repeats a check until it succeeds.
package clientv3

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// The longest time to wait for anything that must happen.
const patience = 60 * time.Second

type cluster struct {
	t       *testing.T
	place   string
	members []*member
}

type member struct {
	name    string
	client  string
	peer    string
	initial string
	process *exec.Cmd
}

var ports struct {
	sync.Mutex
	last int
}

// freePort returns every port once. The ports are below the range that the system uses for outgoing
// connections.
func freePort(t *testing.T) int {
	ports.Lock()
	defer ports.Unlock()
	const first, end = 12000, 32000
	if ports.last == 0 {
		ports.last = first + os.Getpid()*211%(end-first)
	}
	for range end - first {
		ports.last++
		if ports.last >= end {
			ports.last = first
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports.last))
		if err == nil {
			listener.Close()
			return ports.last
		}
	}
	t.Fatal("no port is free")
	return 0
}

// start starts this number of servers and waits until all of them answer.
func start(t *testing.T, count int) *cluster {
	t.Helper()
	c := &cluster{t: t, place: t.TempDir()}
	var initial []string
	for at := range count {
		m := &member{
			name:   fmt.Sprintf("m%d", at),
			client: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
			peer:   fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
		}
		c.members = append(c.members, m)
		initial = append(initial, m.name+"="+m.peer)
	}
	t.Cleanup(c.end)
	for at, m := range c.members {
		m.initial = strings.Join(initial, ",")
		c.spawn(at)
	}
	for at := range c.members {
		c.answers(at)
	}
	return c
}

func (c *cluster) log(at int) string {
	return filepath.Join(c.place, c.members[at].name+".log")
}

func (c *cluster) spawn(at int) {
	c.t.Helper()
	m := c.members[at]
	log, err := os.OpenFile(c.log(at), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(c.t, err)
	defer log.Close()
	m.process = exec.Command(os.Getenv("CLEARLANE"),
		"--name", m.name, "--data-dir", filepath.Join(c.place, m.name),
		"--listen-client-urls", m.client, "--advertise-client-urls", m.client,
		"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
		"--initial-cluster", m.initial)
	m.process.Stdout, m.process.Stderr = log, log
	check(c.t, m.process.Start())
}

// answers waits until a member answers a request that needs a leader.
func (c *cluster) answers(at int) {
	c.t.Helper()
	client := connect(c.t, c.members[at].client)
	defer client.Close()
	eventually(c.t, c.members[at].name+" answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, "ready")
		return err == nil
	})
}

func (c *cluster) run(at int) {
	c.t.Helper()
	c.spawn(at)
	c.answers(at)
}

func (c *cluster) kill(at int) {
	if m := c.members[at]; m.process != nil {
		m.process.Process.Kill()
		m.process.Wait()
		m.process = nil
	}
}

func (c *cluster) end() {
	for at, m := range c.members {
		c.kill(at)
		if c.t.Failed() {
			log, _ := os.ReadFile(c.log(at))
			lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
			lines = lines[max(0, len(lines)-20):]
			c.t.Logf("the end of what %s said:\n%s", m.name, bytes.Join(lines, []byte("\n")))
		}
	}
}

func (c *cluster) urls() []string {
	var urls []string
	for _, m := range c.members {
		urls = append(urls, m.client)
	}
	return urls
}

// leader returns the member that leads, among the running members.
func (c *cluster) leader() int {
	c.t.Helper()
	leader := -1
	eventually(c.t, "a member leads", func() bool {
		for at, m := range c.members {
			if m.process == nil {
				continue
			}
			client := connect(c.t, m.client)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(ctx, m.client)
			cancel()
			client.Close()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = at
			}
		}
		return leader >= 0
	})
	return leader
}

// one starts a server and connects to it.
func one(t *testing.T) (context.Context, *clientv3.Client) {
	t.Helper()
	t.Parallel()
	return soon(t), connect(t, start(t, 1).urls()...)
}

func connect(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(config(urls...))
	check(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func config(urls ...string) clientv3.Config {
	return clientv3.Config{Endpoints: urls, DialTimeout: patience, Logger: zap.NewNop()}
}

// soon returns a context that ends when the time of a test is up.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, is, should T) {
	t.Helper()
	if is != should {
		t.Fatalf("is %v, should be %v", is, should)
	}
}

// value returns the value of a key, or "-" if the key does not exist.
func value(t *testing.T, kv clientv3.KV, key string) string {
	t.Helper()
	got, err := kv.Get(soon(t), key)
	check(t, err)
	if len(got.Kvs) == 0 {
		return "-"
	}
	return string(got.Kvs[0].Value)
}

// keys returns the keys with a prefix, separated by spaces.
func keys(t *testing.T, kv clientv3.KV, prefix string) string {
	t.Helper()
	got, err := kv.Get(soon(t), prefix, clientv3.WithPrefix())
	check(t, err)
	var keys []string
	for _, found := range got.Kvs {
		keys = append(keys, string(found.Key))
	}
	return strings.Join(keys, " ")
}

func put(t *testing.T, kv clientv3.KV, pairs ...string) {
	t.Helper()
	for at := 0; at < len(pairs); at += 2 {
		_, err := kv.Put(soon(t), pairs[at], pairs[at+1])
		check(t, err)
	}
}
