// Compares Clearlane's gRPC proxy with etcd's, and both with no proxy. Run it with benches/proxies/run.
//
// Each row starts its own cluster and its own proxies, and the three ways take turns in each round.
// A figure is the median of the rounds. All ways have the same members, the same client and the
// same load.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var (
	ours   = flag.String("clearlane", "", "our program")
	etcd   = flag.String("etcd", "", "etcd's program")
	driver = flag.String("load", "", "the program clearlane-load, for the floor of reads")
	member = flag.String("member", "clearlane", "the program of the members: clearlane or etcd")
	rounds = flag.Int("rounds", 3, "how often the three ways take turns")
	scale  = flag.Int("scale", 1, "divides the numbers of clients, watches and keys")
	only   = flag.String("rows", "", "the rows to measure, separated by commas; empty: all")
)

const value = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// The ways to a member, in the order of the columns.
var ways = []string{"direct", "etcd's proxy", "our proxy"}

type process struct {
	*exec.Cmd
	log *os.File
}

var (
	running   []*process
	directory string
)

func must(err error) {
	if err != nil {
		stopAll()
		fmt.Fprintln(os.Stderr, "benches/proxies:", err)
		os.Exit(1)
	}
}

func start(program string, arguments ...string) *process {
	log, err := os.CreateTemp(directory, "log-")
	must(err)
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = log, log
	command.Dir = directory
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(command.Start())
	started := &process{command, log}
	running = append(running, started)
	return started
}

func (p *process) stop() {
	p.Process.Signal(syscall.SIGCONT)
	p.Process.Kill()
	p.Wait()
	p.log.Close()
}

func stopAll() {
	for _, p := range running {
		p.stop()
	}
	running = nil
}

// cpu returns the processor time of the process.
func (p *process) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	must(err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// rss returns the resident memory of the process in KiB.
func (p *process) rss() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	must(err)
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	must(err)
	return float64(kib)
}

func freePort() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// A cluster with one proxy of each kind in front of it.
type world struct {
	members   []*process
	endpoints []string
	proxies   map[string]*process
	addresses map[string]string
}

func newWorld(size int, flags ...string) *world {
	var err error
	directory, err = os.MkdirTemp("", "proxies-")
	must(err)
	w := &world{proxies: map[string]*process{}, addresses: map[string]string{}}
	var cluster, peers []string
	for i := range size {
		w.endpoints = append(w.endpoints, fmt.Sprintf("127.0.0.1:%d", freePort()))
		peers = append(peers, fmt.Sprintf("http://127.0.0.1:%d", freePort()))
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	program := *ours
	if *member == "etcd" {
		program = *etcd
	}
	for i := range size {
		client := "http://" + w.endpoints[i]
		w.members = append(w.members, start(program, append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(directory, fmt.Sprintf("m%d", i)),
			"--log-level", "error", "--quota-backend-bytes", "8589934592",
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers[i],
			"--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(cluster, ",")}, flags...)...))
	}
	w.addresses["direct"] = w.endpoints[0]
	for _, endpoint := range w.endpoints {
		ready(endpoint)
	}
	for way, program := range map[string]string{"etcd's proxy": *etcd, "our proxy": *ours} {
		address := fmt.Sprintf("127.0.0.1:%d", freePort())
		w.addresses[way] = address
		w.proxies[way] = start(program, "grpc-proxy", "start", "--listen-addr", address,
			"--advertise-client-url", address, "--endpoints", strings.Join(w.endpoints, ","))
		ready(address)
	}
	return w
}

func (w *world) close() {
	stopAll()
	os.RemoveAll(directory)
}

// ready waits until a linearizable read succeeds.
func ready(address string) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		connection := dial(address)
		_, err := pb.NewKVClient(connection).Range(ctx, &pb.RangeRequest{Key: []byte("ready")})
		connection.Close()
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			must(fmt.Errorf("%s is not ready: %w", address, err))
		}
	}
}

func dial(address string) *grpc.ClientConn {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	must(err)
	return connection
}

func client(address string) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	must(err)
	return c
}

// metric returns the sum of the samples of a member's metric whose line contains all the texts.
func (w *world) metric(texts ...string) float64 {
	sum := 0.0
	for _, endpoint := range w.endpoints {
		response, err := http.Get("http://" + endpoint + "/metrics")
		must(err)
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		must(err)
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, texts[0]) && !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(line, t) }) {
				number, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
				must(err)
				sum += number
			}
		}
	}
	return sum
}

func (w *world) membersCPU() (sum time.Duration) {
	for _, m := range w.members {
		sum += m.cpu()
	}
	return sum
}

// The figures of one row: of each way, the samples of the rounds.
type figures map[string]map[string][]float64

func (f figures) add(name, way string, sample float64) {
	if f[name] == nil {
		f[name] = map[string][]float64{}
	}
	f[name][way] = append(f[name][way], sample)
}

func median(samples []float64) float64 {
	slices.Sort(samples)
	return samples[len(samples)/2]
}

// digits returns a figure with two digits after the point if it is small.
func digits(figure float64) string {
	if figure < 10 {
		return strconv.FormatFloat(figure, 'f', 2, 64)
	}
	return strconv.FormatFloat(figure, 'f', 1, 64)
}

func (f figures) print(row string) {
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("| %s: %s |", row, name)
		for _, way := range append(ways, "floor") {
			if samples := f[name][way]; len(samples) > 0 {
				fmt.Printf(" %s |", digits(median(samples)))
			} else if way != "floor" {
				fmt.Printf(" |")
			}
		}
		fmt.Println()
	}
}

// quantiles adds p50, p99 and the longest of the durations, in milliseconds.
func (f figures) quantiles(name, way string, durations []time.Duration) {
	slices.Sort(durations)
	at := func(q float64) float64 {
		return durations[min(len(durations)-1, int(q*float64(len(durations))))].Seconds() * 1000
	}
	f.add(name+", p50 ms", way, at(0.5))
	f.add(name+", p99 ms", way, at(0.99))
	f.add(name+", longest ms", way, at(1))
}

// parallel runs the function in this number of goroutines, each with its number.
func parallel(count int, run func(i int)) {
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() { run(i) })
	}
	group.Wait()
}

// latency measures puts and gets at 1,000 requests a second, half of each, over 20 connections: at a
// member, through both proxies, and through our TCP gateway as the floor.
func latency(f figures) {
	w := newWorld(1)
	defer w.close()
	address := fmt.Sprintf("127.0.0.1:%d", freePort())
	w.addresses["floor"] = address
	start(*ours, "gateway", "start", "--listen-addr", address, "--endpoints", w.endpoints[0])
	ready(address)
	for range *rounds {
		for _, way := range append(slices.Clone(ways), "floor") {
			connections := make([]pb.KVClient, 20)
			for i := range connections {
				connection := dial(w.addresses[way])
				defer connection.Close()
				connections[i] = pb.NewKVClient(connection)
			}
			durations := map[string][]time.Duration{}
			var lock sync.Mutex
			var group sync.WaitGroup
			begin := time.Now()
			for i := range 5000 {
				due := begin.Add(time.Duration(i) * time.Millisecond)
				time.Sleep(time.Until(due))
				group.Go(func() {
					key, kind := []byte(fmt.Sprintf("latency/%d", i%100)), "put"
					var err error
					if i%2 == 0 {
						_, err = connections[i%20].Put(context.Background(), &pb.PutRequest{Key: key, Value: []byte(value)})
					} else {
						kind = "get"
						_, err = connections[i%20].Range(context.Background(), &pb.RangeRequest{Key: key})
					}
					must(err)
					lock.Lock()
					defer lock.Unlock()
					durations[kind] = append(durations[kind], time.Since(due))
				})
			}
			group.Wait()
			for kind, all := range durations {
				f.quantiles(kind, way, all[len(all)/5:])
			}
		}
	}
}

// reads measures reads of one key by 200 requests in flight over 20 connections, at a member,
// through both proxies, and at a service that answers a constant.
func reads(f figures) {
	w := newWorld(1)
	defer w.close()
	port := freePort()
	stub := start(*driver, "stub", "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	w.addresses["floor"], w.proxies["floor"] = fmt.Sprintf("127.0.0.1:%d", port), stub
	time.Sleep(time.Second)
	c := client(w.endpoints[0])
	_, err := c.Put(context.Background(), "reads/key", value)
	must(err)
	c.Close()
	for range *rounds {
		for _, kind := range []string{"serializable", "linearizable"} {
			for _, way := range append(slices.Clone(ways), "floor") {
				if way == "floor" && kind == "linearizable" {
					continue
				}
				var done atomic.Int64
				request := &pb.RangeRequest{Key: []byte("reads/key"), Serializable: kind == "serializable"}
				run := func(length time.Duration) {
					deadline := time.Now().Add(length)
					parallel(20, func(int) {
						connection := dial(w.addresses[way])
						defer connection.Close()
						kv := pb.NewKVClient(connection)
						parallel(10, func(int) {
							for time.Now().Before(deadline) {
								_, err := kv.Range(context.Background(), request)
								must(err)
								done.Add(1)
							}
						})
					})
				}
				run(500 * time.Millisecond)
				server := w.proxies[way]
				if server == nil {
					server = w.members[0]
				}
				done.Store(0)
				before, membersBefore := server.cpu(), w.membersCPU()
				run(3 * time.Second)
				count := float64(done.Load())
				f.add(kind+", reads/s", way, count/3)
				f.add(kind+", µs of CPU of the proxy, member or service", way, float64((server.cpu()-before).Microseconds())/count)
				if way != "floor" {
					f.add(kind+", µs of CPU of the member", way, float64((w.membersCPU()-membersBefore).Microseconds())/count)
				}
			}
		}
	}
}

// watch opens a stream of watches, and returns it after all have been created.
func watch(connection *grpc.ClientConn, requests ...*pb.WatchCreateRequest) pb.Watch_WatchClient {
	stream, err := pb.NewWatchClient(connection).Watch(context.Background())
	must(err)
	go func() {
		for _, request := range requests {
			stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
		}
	}()
	for created := 0; created < len(requests); {
		response, err := stream.Recv()
		must(err)
		if response.Created {
			created++
		}
	}
	return stream
}

func all(prefix string) *pb.WatchCreateRequest {
	end := []byte(prefix)
	end[len(end)-1]++
	return &pb.WatchCreateRequest{Key: []byte(prefix), RangeEnd: end}
}

// watchers measures watches by 10,000 clients: what the member does for them, and the memory of the
// proxy. Each row of events has 100 puts.
func watchers(f figures) {
	many := 10000 / *scale
	shapes := map[string]func(i int) *pb.WatchCreateRequest{
		"of one range": func(int) *pb.WatchCreateRequest { return all("w/") },
		"of one key each": func(i int) *pb.WatchCreateRequest {
			return &pb.WatchCreateRequest{Key: []byte(fmt.Sprintf("w/%d", i))}
		},
		"of one range from many revisions": func(i int) *pb.WatchCreateRequest {
			request := all("w/")
			request.StartRevision = int64(2 + i%1000)
			return request
		},
	}
	for name, shape := range shapes {
		for _, way := range ways {
			w := newWorld(1)
			c := client(w.endpoints[0])
			for i := range 1000 {
				_, err := c.Put(context.Background(), "other/"+strconv.Itoa(i), value)
				must(err)
			}
			ranges := w.metric("grpc_server_started_total", `"Range"`)
			before := 0.0
			if proxy := w.proxies[way]; proxy != nil {
				before = proxy.rss()
			}
			connection := dial(w.addresses[way])
			requests := make([]*pb.WatchCreateRequest, many)
			for i := range requests {
				requests[i] = shape(i)
			}
			watch(connection, requests...)
			what := fmt.Sprintf("%d watches %s", many, name)
			f.add(what+", watches at the member", way, w.metric("etcd_debugging_mvcc_watcher_total"))
			f.add(what+", ranges at the member", way, w.metric("grpc_server_started_total", `"Range"`)-ranges)
			if proxy := w.proxies[way]; proxy != nil {
				f.add(what+", KiB for each in the proxy", way, (proxy.rss()-before)/float64(many))
			}
			connection.Close()
			c.Close()
			w.close()
		}
	}
	for _, count := range []int{1, 100, many} {
		for range *rounds {
			for _, way := range ways {
				w := newWorld(1)
				before := 0.0
				if proxy := w.proxies[way]; proxy != nil {
					before = proxy.rss()
				}
				var connections []*grpc.ClientConn
				var received atomic.Int64
				var late []time.Duration
				var lock sync.Mutex
				for i := range count {
					if i%10 == 0 {
						connections = append(connections, dial(w.addresses[way]))
					}
					stream := watch(connections[len(connections)-1], all("w/"))
					go func() {
						for {
							response, err := stream.Recv()
							if err != nil {
								return
							}
							for _, event := range response.Events {
								sent, _ := strconv.ParseInt(string(event.Kv.Value[:19]), 10, 64)
								received.Add(1)
								lock.Lock()
								late = append(late, time.Since(time.Unix(0, sent)))
								lock.Unlock()
							}
						}
					}()
				}
				what := fmt.Sprintf("%d streams", count)
				if proxy := w.proxies[way]; proxy != nil && count == many {
					f.add(what+", KiB for each in the proxy", way, (proxy.rss()-before)/float64(count))
				}
				c := client(w.endpoints[0])
				sent, used := w.metric("etcd_network_client_grpc_sent_bytes_total"), w.membersCPU()
				const puts = 50
				for i := range puts {
					_, err := c.Put(context.Background(), "w/"+strconv.Itoa(i), fmt.Sprintf("%019d%s", time.Now().UnixNano(), value))
					must(err)
					time.Sleep(100 * time.Millisecond)
				}
				deadline := time.Now().Add(10 * time.Second)
				for received.Load() < int64(puts*count) && time.Now().Before(deadline) {
					time.Sleep(10 * time.Millisecond)
				}
				f.add(what+", events lost", way, float64(int64(puts*count)-received.Load()))
				f.add(what+", KiB sent by the member", way, (w.metric("etcd_network_client_grpc_sent_bytes_total")-sent)/1024)
				f.add(what+", ms of CPU of the member", way, float64((w.membersCPU() - used).Milliseconds()))
				f.quantiles(what+", delivery", way, late)
				for _, connection := range connections {
					connection.Close()
				}
				c.Close()
				w.close()
			}
		}
	}
}

// leases keeps 10,000 leases alive, and measures the answer to a keep-alive and the life of a lease
// after its last one.
func leases(f figures) {
	many := 10000 / *scale
	for _, way := range ways {
		w := newWorld(1)
		c, direct := client(w.addresses[way]), client(w.endpoints[0])
		ids := make([]clientv3.LeaseID, many)
		parallel(50, func(i int) {
			for ; i < many; i += 50 {
				lease, err := c.Grant(context.Background(), 60)
				must(err)
				ids[i] = lease.ID
			}
		})
		streams := w.metric("grpc_server_started_total", `"LeaseKeepAlive"`)
		renewals := w.metric("grpc_server_msg_received_total", `"LeaseKeepAlive"`)
		connections := make([]pb.LeaseClient, 50)
		for i := range connections {
			connections[i] = pb.NewLeaseClient(dial(w.addresses[way]))
		}
		begin := time.Now()
		var first sync.WaitGroup
		for i := range connections {
			first.Go(func() {
				stream, err := connections[i].LeaseKeepAlive(context.Background())
				must(err)
				sent := 0
				for n := i; n < many; n += 50 {
					must(stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(ids[n])}))
					sent++
				}
				for range sent {
					_, err := stream.Recv()
					must(err)
				}
			})
		}
		first.Wait()
		what := fmt.Sprintf("%d leases", many)
		f.add(what+", s until all are renewed once", way, time.Since(begin).Seconds())
		f.add(what+", streams at the member", way, w.metric("grpc_server_started_total", `"LeaseKeepAlive"`)-streams)
		f.add(what+", renewals at the member", way, w.metric("grpc_server_msg_received_total", `"LeaseKeepAlive"`)-renewals)

		lease, err := c.Grant(context.Background(), 6)
		must(err)
		stream, err := pb.NewLeaseClient(dial(w.addresses[way])).LeaseKeepAlive(context.Background())
		must(err)
		var durations []time.Duration
		for range 10 {
			begin := time.Now()
			must(stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease.ID)}))
			_, err := stream.Recv()
			must(err)
			durations = append(durations, time.Since(begin))
		}
		f.quantiles("keep-alive of one lease", way, durations)
		last := time.Now()
		for {
			left, err := direct.TimeToLive(context.Background(), lease.ID)
			must(err)
			if left.TTL < 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		f.add("life of a lease of 6 s after the last keep-alive, s", way, time.Since(last).Seconds())
		c.Close()
		direct.Close()
		w.close()
	}
}

// memory reads a million different keys, which do not exist, and measures the memory of the proxy.
func memory(f figures) {
	many := 1000000 / *scale
	for _, way := range ways[1:] {
		w := newWorld(1)
		var after [2]float64
		for half := range 2 {
			parallel(100, func(i int) {
				connection := dial(w.addresses[way])
				defer connection.Close()
				kv := pb.NewKVClient(connection)
				begin := half * many / 10
				end := many/10 + half*(many-many/10)
				for n := begin + i; n < end; n += 100 {
					_, err := kv.Range(context.Background(), &pb.RangeRequest{Key: []byte(fmt.Sprintf("distinct/%d", n)), Serializable: true})
					must(err)
				}
			})
			after[half] = w.proxies[way].rss()
		}
		f.add("MiB after a tenth of the keys", way, after[0]/1024)
		f.add(fmt.Sprintf("MiB after %d distinct keys", many), way, after[1]/1024)
		w.close()
	}
}

// slow has a client that creates a watch and reads nothing, beside one that reads, while 200 MB of
// events are written.
func slow(f figures) {
	for _, way := range ways {
		for _, isSlow := range []bool{false, true} {
			w := newWorld(1)
			before := 0.0
			if proxy := w.proxies[way]; proxy != nil {
				before = proxy.rss()
			}
			if isSlow {
				for range 10 {
					watch(dial(w.addresses[way]), all("s/"))
				}
			}
			good := watch(dial(w.addresses[way]), all("s/"))
			var late []time.Duration
			const puts = 2000
			finished := make(chan bool)
			go func() {
				for len(late) < puts {
					response, err := good.Recv()
					must(err)
					for _, event := range response.Events {
						sent, _ := strconv.ParseInt(string(event.Kv.Value[:19]), 10, 64)
						late = append(late, time.Since(time.Unix(0, sent)))
					}
				}
				close(finished)
			}()
			c := client(w.endpoints[0])
			long := strings.Repeat(value, 1600)
			for i := range puts {
				_, err := c.Put(context.Background(), "s/"+strconv.Itoa(i%100), fmt.Sprintf("%019d%s", time.Now().UnixNano(), long))
				must(err)
			}
			<-finished
			name := "alone"
			if isSlow {
				name = "beside ten clients that read nothing"
			}
			f.quantiles("delivery "+name, way, late)
			if proxy := w.proxies[way]; proxy != nil && isSlow {
				f.add("MiB more in the proxy", way, (proxy.rss()-before)/1024)
			}
			c.Close()
			w.close()
		}
	}
}

// failover kills or stops each member of three, and measures how long a watch waits for puts that
// were acknowledged, and reads that fail.
func failover(f figures) {
	for what, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		for _, way := range ways[1:] {
			for victim := range 3 {
				w := newWorld(3)
				stream := watch(dial(w.addresses[way]), all("f/"))
				for n := range 20 {
					_, err := pb.NewKVClient(dial(w.addresses[way])).Range(context.Background(), &pb.RangeRequest{Key: []byte("f/" + strconv.Itoa(n))})
					must(err)
				}
				survivors := slices.Delete(slices.Clone(w.endpoints), victim, victim+1)
				writer, err := clientv3.New(clientv3.Config{Endpoints: survivors, Logger: zap.NewNop()})
				must(err)
				stop := make(chan bool)
				var failed atomic.Int64
				var longest, late time.Duration
				var acknowledged, arrived sync.Map
				var group sync.WaitGroup
				group.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(50 * time.Millisecond):
						}
						ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
						if done, err := writer.Put(ctx, "f/x", value); err == nil {
							acknowledged.Store(done.Header.Revision, time.Now())
						}
						cancel()
					}
				})
				group.Go(func() {
					kv := pb.NewKVClient(dial(w.addresses[way]))
					for {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
						}
						begin := time.Now()
						ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
						_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("f/x")})
						cancel()
						if err != nil {
							failed.Add(1)
						}
						longest = max(longest, time.Since(begin))
					}
				})
				go func() {
					for {
						response, err := stream.Recv()
						if err != nil {
							return
						}
						for _, event := range response.Events {
							arrived.Store(event.Kv.ModRevision, time.Now())
						}
					}
				}()
				time.Sleep(2 * time.Second)
				w.members[victim].Process.Signal(signal)
				time.Sleep(10 * time.Second)
				close(stop)
				group.Wait()
				time.Sleep(500 * time.Millisecond)
				lost := 0.0
				acknowledged.Range(func(revision, at any) bool {
					if arrival, has := arrived.Load(revision); has {
						late = max(late, arrival.(time.Time).Sub(at.(time.Time)))
					} else {
						lost++
					}
					return true
				})
				f.add("member "+what+", longest wait of a watch for an acknowledged put, s", way, late.Seconds())
				f.add("member "+what+", longest get, s", way, longest.Seconds())
				f.add("member "+what+", gets that failed, of about 500", way, float64(failed.Load()))
				f.add("member "+what+", events lost", way, lost)
				writer.Close()
				w.close()
			}
		}
	}
}

func main() {
	flag.Parse()
	rows := []struct {
		name    string
		measure func(figures)
	}{{"latency", latency}, {"reads", reads}, {"watchers", watchers}, {"leases", leases}, {"memory", memory}, {"slow", slow},
		{"failover", failover}, {"users", users}, {"codes", codes}}
	fmt.Printf("| row | direct | etcd's proxy | our proxy | floor |\n|---|---|---|---|---|\n")
	for _, row := range rows {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), row.name) {
			continue
		}
		f := figures{}
		row.measure(f)
		f.print(row.name)
	}
}
