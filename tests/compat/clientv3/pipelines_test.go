package clientv3

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A deep pipeline: each stream of one connection sends all its requests without waiting for a response. The connection
// must not end, so these tests count GOAWAY frames and connections: grpc-go hides both.
//
// The short form runs in every check. The long form prints a table, with etcd's figures if ETCD names its program:
//
//	CLEARLANE=... ETCD=... CLEARLANE_PIPELINES=all clientv3.test -test.run Pipelines -test.v -test.timeout 2h
//
// CLEARLANE_PIPELINES may also be a list such as "creates 20x5000 https 1GiB afterwards": the words of a row select it.
// CLEARLANE_ROUNDS repeats each row, against a new server each time.
type pipeline struct {
	keepAlives bool
	streams    int
	depth      int
	tls        bool
	// Window of the client for each stream and for the connection; 0 for the library's own.
	window int32
	// If true, the client reads nothing until it has sent everything or cannot send more.
	readsAfterwards bool
}

func (p pipeline) String() string {
	kind, scheme, window, reads := "creates", "http", "64KiB", "meanwhile"
	if p.keepAlives {
		kind = "keep-alives"
	}
	if p.tls {
		scheme = "https"
	}
	if p.window > 0 {
		window = "1GiB"
	}
	if p.readsAfterwards {
		reads = "afterwards"
	}
	return fmt.Sprintf("%s %dx%d %s %s %s", kind, p.streams, p.depth, scheme, window, reads)
}

func pipelines() []pipeline {
	var all []pipeline
	for _, size := range [][2]int{{20, 5000}, {20, 20_000}, {100, 5000}, {1000, 1000}} {
		for number := range 16 {
			p := pipeline{streams: size[0], depth: size[1]}
			p.readsAfterwards = number&8 != 0
			p.keepAlives = number&4 != 0
			p.tls = number&2 != 0
			if number&1 != 0 {
				p.window = 1 << 30
			}
			all = append(all, p)
		}
	}
	return all
}

// outcome is the result of one run of a pipeline.
type outcome struct {
	responses, events int64
	// Requests that could not be sent before the client began to read.
	unsent      int64
	goAways     int64
	connections int64
	seconds     float64
	peakMiB     int
	// The slowest put on another connection while the pipeline runs, and the 99th percentile.
	otherMax, other99 time.Duration
	err               error
}

func (o outcome) isComplete(p pipeline) bool {
	total := int64(p.streams * p.depth)
	events := total
	if p.keepAlives {
		events = 0
	}
	return o.err == nil && o.responses == total && o.events == events && o.goAways == 0 && o.connections == 1
}

func (o outcome) String() string {
	text := fmt.Sprintf("%8d %8d %7d %3d %6.1f %6d %6d %6d", o.responses, o.events, o.unsent, o.goAways, o.seconds,
		o.peakMiB, o.other99.Milliseconds(), o.otherMax.Milliseconds())
	if o.err != nil {
		text += " " + o.err.Error()
	}
	return text
}

func TestDeepPipelines(t *testing.T) {
	wanted, isLong := os.LookupEnv("CLEARLANE_PIPELINES")
	rows := pipelines()
	if isLong {
		rows = slices.DeleteFunc(rows, func(p pipeline) bool {
			row := strings.Fields(p.String())
			return wanted != "all" && !slices.ContainsFunc(strings.Split(wanted, ","), func(some string) bool {
				return !slices.ContainsFunc(strings.Fields(some), func(word string) bool { return !slices.Contains(row, word) })
			})
		})
	} else {
		t.Parallel()
		rows = []pipeline{
			{streams: 20, depth: 4000},
			{streams: 20, depth: 5000, keepAlives: true, tls: true, window: 1 << 30},
			{streams: 200, depth: 200, tls: true},
			{streams: 20, depth: 2000, keepAlives: true, readsAfterwards: true},
		}
	}
	t.Logf("%-50s %9s %8s %8s %7s %3s %6s %6s %6s %6s", "", "", "answers", "events", "unsent", "go", "s", "MiB", "p99 ms", "max ms")
	for _, p := range rows {
		for range rounds(t) {
			ours := runPipeline(t, os.Getenv("CLEARLANE"), p)
			t.Logf("%-50s %9s %v", p, "clearlane", ours)
			if !ours.isComplete(p) {
				t.Errorf("%v: not everything was answered on one connection", p)
			}
			if etcd := os.Getenv("ETCD"); etcd != "" {
				theirs := runPipeline(t, etcd, p)
				t.Logf("%-50s %9s %v", p, "etcd", theirs)
				if isLong && ours.peakMiB > theirs.peakMiB {
					t.Errorf("%v: %d MiB of memory, and etcd %d MiB", p, ours.peakMiB, theirs.peakMiB)
				}
			}
		}
	}
}

// pipelineServer is one server, with or without TLS.
type pipelineServer struct {
	address string
	process *exec.Cmd
	// nil without TLS.
	roots *x509.CertPool
}

func startPipelineServer(t *testing.T, program string, withTLS bool) *pipelineServer {
	t.Helper()
	place, err := os.MkdirTemp(t.TempDir(), "server")
	check(t, err)
	s := &pipelineServer{address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	scheme := "http"
	var flags []string
	if withTLS {
		scheme = "https"
		flags = s.makeCertificate(t, place)
	}
	client, peer := scheme+"://"+s.address, fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	s.process = exec.Command(program, append(flags, "--name", "m0", "--data-dir", filepath.Join(place, "data"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "m0="+peer)...)
	log, err := os.Create(filepath.Join(place, "log"))
	check(t, err)
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	check(t, s.process.Start())
	return s
}

func (s *pipelineServer) makeCertificate(t *testing.T, place string) []string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(place, name)
		check(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	s.roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(certificate)
	check(t, err)
	s.roots.AddCert(parsed)
	return []string{"--cert-file", write("cert", "CERTIFICATE", certificate),
		"--key-file", write("key", "PRIVATE KEY", private)}
}

func (s *pipelineServer) stop() {
	s.process.Process.Kill()
	s.process.Wait()
}

// peakMiB is the most memory that the process has had at once.
func (s *pipelineServer) peakMiB() int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		return 0
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		return 0
	}
	kib, _ := strconv.Atoi(string(found[1]))
	return kib >> 10
}

// frameCounter sees the bytes of each connection, within TLS if there is any.
type frameCounter struct {
	credentials.TransportCredentials
	connections, goAways atomic.Int64
}

func (f *frameCounter) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err == nil {
		f.connections.Add(1)
		conn = &countedConn{Conn: conn, counter: f}
	}
	return conn, info, err
}

func (f *frameCounter) Clone() credentials.TransportCredentials { return f }

type countedConn struct {
	net.Conn
	counter *frameCounter
	head    []byte
	payload int
}

func (c *countedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	for read := into[:n]; len(read) > 0; {
		skipped := min(c.payload, len(read))
		c.payload -= skipped
		read = read[skipped:]
		taken := min(9-len(c.head), len(read))
		c.head = append(c.head, read[:taken]...)
		read = read[taken:]
		if len(c.head) == 9 {
			c.payload = int(c.head[0])<<16 | int(c.head[1])<<8 | int(c.head[2])
			const goAway = 7
			if c.head[3] == goAway {
				c.counter.goAways.Add(1)
			}
			c.head = c.head[:0]
		}
	}
	return n, err
}

func (s *pipelineServer) connect(t *testing.T, window int32) (*grpc.ClientConn, *frameCounter) {
	t.Helper()
	counter := &frameCounter{TransportCredentials: insecure.NewCredentials()}
	if s.roots != nil {
		counter.TransportCredentials = credentials.NewTLS(&tls.Config{RootCAs: s.roots})
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(counter)}
	if window > 0 {
		options = append(options, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	}
	conn, err := grpc.NewClient("passthrough:///"+s.address, options...)
	check(t, err)
	return conn, counter
}

func runPipeline(t *testing.T, program string, p pipeline) outcome {
	t.Helper()
	server := startPipelineServer(t, program, p.tls)
	defer server.stop()
	other, _ := server.connect(t, 0)
	defer other.Close()
	kv := pb.NewKVClient(other)
	eventually(t, "the server answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("other")})
		return err == nil
	})
	conn, counter := server.connect(t, p.window)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	run := &pipelineRun{pipeline: p, ctx: ctx, fail: cancel}
	stopProbe := probe(kv)
	begin := time.Now()
	run.run(conn, kv)
	result := outcome{
		responses: run.responses.Load(), events: run.events.Load(), unsent: run.unsent,
		goAways: counter.goAways.Load(), connections: counter.connections.Load(),
		seconds: time.Since(begin).Seconds(), peakMiB: server.peakMiB(),
	}
	result.other99, result.otherMax = stopProbe()
	if err := run.err.Load(); err != nil {
		result.err = *err
	}
	return result
}

// probe puts a key on another connection again and again; the function that it returns ends that.
func probe(kv pb.KVClient) func() (time.Duration, time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan []time.Duration)
	go func() {
		var took []time.Duration
		for ctx.Err() == nil {
			begin := time.Now()
			if _, err := kv.Put(context.Background(), &pb.PutRequest{Key: []byte("other")}); err == nil {
				took = append(took, time.Since(begin))
			}
			time.Sleep(2 * time.Millisecond)
		}
		done <- took
	}()
	return func() (time.Duration, time.Duration) {
		cancel()
		took := <-done
		if len(took) == 0 {
			return time.Hour, time.Hour
		}
		slices.Sort(took)
		return took[len(took)*99/100], took[len(took)-1]
	}
}

type pipelineRun struct {
	pipeline
	ctx                     context.Context
	fail                    func()
	sent, responses, events atomic.Int64
	unsent                  int64
	made, reading           sync.WaitGroup
	// Closed when the streams may be read.
	mayRead chan struct{}
	err     atomic.Pointer[error]
}

var pipelineKey = []byte("watched")

func (r *pipelineRun) failed(err error) {
	if r.err.CompareAndSwap(nil, &err) {
		r.fail()
	}
}

func (r *pipelineRun) run(conn *grpc.ClientConn, kv pb.KVClient) {
	var writing sync.WaitGroup
	r.mayRead = make(chan struct{})
	if !r.readsAfterwards {
		close(r.mayRead)
	}
	var lease int64
	if r.keepAlives {
		granted, err := pb.NewLeaseClient(conn).LeaseGrant(r.ctx, &pb.LeaseGrantRequest{TTL: 3600})
		if err != nil {
			r.failed(err)
			return
		}
		lease = granted.ID
	}
	for range r.streams {
		send, receive, err := r.open(conn, lease)
		if err != nil {
			r.failed(err)
			return
		}
		r.made.Add(r.depth)
		writing.Go(func() {
			for range r.depth {
				if err := send(); err != nil {
					// The reader of the stream gets the reason.
					return
				}
				r.sent.Add(1)
			}
		})
		r.reading.Go(func() {
			<-r.mayRead
			if err := receive(); err != nil {
				r.failed(err)
			}
		})
	}
	if r.readsAfterwards {
		r.waitUntilSent()
		close(r.mayRead)
	}
	if within(r.ctx, &r.made) && !r.keepAlives {
		if _, err := kv.Put(r.ctx, &pb.PutRequest{Key: pipelineKey}); err != nil {
			r.failed(err)
		}
	}
	if !within(r.ctx, &r.reading) && r.err.Load() == nil {
		r.failed(fmt.Errorf("not within the time"))
	}
	writing.Wait()
}

// waitUntilSent returns when everything is sent, or nothing more for two seconds.
func (r *pipelineRun) waitUntilSent() {
	total, sent, last := int64(r.streams*r.depth), int64(-1), time.Now()
	for sent < total && time.Since(last) < 2*time.Second && r.ctx.Err() == nil {
		if now := r.sent.Load(); now != sent {
			sent, last = now, time.Now()
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.unsent = total - sent
}

// open makes a stream. The first function sends one request, the second reads all that is expected.
func (r *pipelineRun) open(conn *grpc.ClientConn, lease int64) (func() error, func() error, error) {
	if r.keepAlives {
		stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(r.ctx)
		if err != nil {
			return nil, nil, err
		}
		send := func() error { return stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}) }
		return send, func() error { return r.receiveKeepAlives(stream, lease) }, nil
	}
	stream, err := pb.NewWatchClient(conn).Watch(r.ctx)
	if err != nil {
		return nil, nil, err
	}
	create := &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: pipelineKey}}
	send := func() error { return stream.Send(&pb.WatchRequest{RequestUnion: create}) }
	return send, func() error { return r.receiveWatches(stream) }, nil
}

func (r *pipelineRun) receiveKeepAlives(stream pb.Lease_LeaseKeepAliveClient, lease int64) error {
	for range r.depth {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if response.ID != lease || response.TTL <= 0 {
			return fmt.Errorf("lease %d has %d s left", response.ID, response.TTL)
		}
		r.responses.Add(1)
		r.made.Done()
	}
	return nil
}

func (r *pipelineRun) receiveWatches(stream pb.Watch_WatchClient) error {
	var created int
	seen := make([]bool, r.depth)
	for events := 0; created < r.depth || events < r.depth; {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if response.Created {
			if response.WatchId != int64(created) || response.Canceled {
				return fmt.Errorf("watch %d was made in place of %d", response.WatchId, created)
			}
			created++
			r.responses.Add(1)
			r.made.Done()
		}
		for _, event := range response.Events {
			if seen[response.WatchId] || !bytes.Equal(event.Kv.Key, pipelineKey) {
				return fmt.Errorf("watch %d got a second event", response.WatchId)
			}
			seen[response.WatchId] = true
			events++
			r.events.Add(1)
		}
	}
	return nil
}
