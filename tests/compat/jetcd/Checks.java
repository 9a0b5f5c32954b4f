import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Election;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.auth.Permission;
import io.etcd.jetcd.election.LeaderKey;
import io.etcd.jetcd.election.LeaderResponse;
import io.etcd.jetcd.election.NoLeaderException;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.CompactOption;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.net.ServerSocket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Checks jetcd, the client for Java, with a real server.
 *
 * <p>The variable CLEARLANE names the program of the server. It may be etcd's, so a check may expect
 * only what is true for both. One server serves all checks; each check has its own keys.
 */
public class Checks {
  interface Check {
    void run(Client client) throws Exception;
  }

  static final long PATIENCE_S = 60;
  static String url;

  public static void main(String[] arguments) throws Exception {
    Path place = Files.createTempDirectory("jetcd");
    Process server = start(place);
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put("kv", Checks::kv);
    checks.put("txn", Checks::txn);
    checks.put("watch", Checks::watch);
    checks.put("lease", Checks::lease);
    checks.put("lock", Checks::lock);
    checks.put("election", Checks::election);
    checks.put("auth", Checks::auth);
    checks.put("cluster", Checks::cluster);
    checks.put("maintenance", Checks::maintenance);
    checks.put("namespace", Checks::namespace);
    int failed = 0;
    try (Client client = Client.builder().endpoints(url).waitForReady(true).build()) {
      for (Map.Entry<String, Check> check : checks.entrySet()) {
        try {
          check.getValue().run(client);
        } catch (Throwable wrong) {
          failed++;
          System.out.println(check.getKey() + " FAILED");
          wrong.printStackTrace(System.out);
        }
      }
    } finally {
      server.destroyForcibly().waitFor();
      if (failed > 0) {
        System.out.println("what the server said:\n" + Files.readString(place.resolve("log")));
      }
      try (var files = Files.walk(place)) {
        files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
      }
    }
    System.out.println("   jetcd: " + (checks.size() - failed) + " of " + checks.size() + " checks hold");
    System.exit(failed == 0 ? 0 : 1);
  }

  /** Returns a free port below the range that the system uses for outgoing connections. */
  static int freePort(int[] last) throws Exception {
    while (true) {
      last[0] = last[0] + 1 < 32000 ? last[0] + 1 : 12000;
      try (ServerSocket tried = new ServerSocket(last[0])) {
        return last[0];
      } catch (java.io.IOException taken) {
        continue;
      }
    }
  }

  static Process start(Path place) throws Exception {
    int[] last = {(int) (12000 + ProcessHandle.current().pid() * 211 % 20000)};
    url = "http://127.0.0.1:" + freePort(last);
    String peer = "http://127.0.0.1:" + freePort(last);
    return new ProcessBuilder(
            System.getenv("CLEARLANE"),
            "--name", "m0", "--data-dir", place.resolve("data").toString(),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", "m0=" + peer)
        .redirectErrorStream(true)
        .redirectOutput(place.resolve("log").toFile())
        .start();
  }

  static ByteSequence of(String text) {
    return ByteSequence.from(text, StandardCharsets.UTF_8);
  }

  static <T> T now(CompletableFuture<T> coming) throws Exception {
    return coming.get(PATIENCE_S, TimeUnit.SECONDS);
  }

  static <T> T next(BlockingQueue<T> queue) throws Exception {
    return Objects.requireNonNull(queue.poll(PATIENCE_S, TimeUnit.SECONDS), "nothing came");
  }

  static void equal(Object is, Object should) {
    if (!Objects.equals(is, should)) {
      throw new AssertionError("is " + is + ", should be " + should);
    }
  }

  /** Returns the error of a request that must be refused. */
  static Throwable refused(CompletableFuture<?> coming) throws Exception {
    try {
      throw new AssertionError("not refused: " + now(coming));
    } catch (ExecutionException refused) {
      return refused.getCause();
    }
  }

  static String keys(List<KeyValue> found) {
    return found.stream().map(kv -> kv.getKey().toString()).collect(Collectors.joining(" "));
  }

  static String value(KV kv, String key) throws Exception {
    var found = now(kv.get(of(key))).getKvs();
    return found.isEmpty() ? "-" : found.get(0).getValue().toString();
  }

  static void kv(Client client) throws Exception {
    KV kv = client.getKVClient();
    for (String key : new String[] {"kv/b", "kv/a", "kv/c"}) {
      now(kv.put(of(key), of(key + "!")));
    }
    var previous = now(kv.put(of("kv/a"), of("2"), PutOption.builder().withPrevKV().build()));
    equal(previous.getPrevKv().getValue().toString(), "kv/a!");
    var all = GetOption.builder().isPrefix(true);
    equal(keys(now(kv.get(of("kv/"), all.build())).getKvs()), "kv/a kv/b kv/c");
    var newest = all.withSortField(GetOption.SortTarget.MOD).withSortOrder(GetOption.SortOrder.DESCEND);
    equal(keys(now(kv.get(of("kv/"), newest.build())).getKvs()), "kv/a kv/c kv/b");
    var cut = now(kv.get(of("kv/"), newest.withLimit(1).withKeysOnly(true).build()));
    equal(keys(cut.getKvs()) + cut.isMore() + cut.getCount(), "kv/atrue3");
    long revision = cut.getHeader().getRevision();
    var old = GetOption.builder().withRevision(revision - 1).withSerializable(true).build();
    equal(now(kv.get(of("kv/a"), old)).getKvs().get(0).getValue().toString(), "kv/a!");
    var gone = now(kv.delete(of("kv/"), DeleteOption.builder().isPrefix(true).withPrevKV(true).build()));
    equal(gone.getDeleted() + " " + gone.getPrevKvs().size(), "3 3");
    now(kv.compact(revision, CompactOption.builder().withCompactPhysical(true).build()));
    equal(
        refused(kv.get(of("kv/a"), old)).getMessage(),
        "OUT_OF_RANGE: etcdserver: mvcc: required revision has been compacted");
    equal(
        refused(kv.put(of(""), of(""))).getMessage(),
        "INVALID_ARGUMENT: etcdserver: key is not provided");
  }

  static void txn(Client client) throws Exception {
    KV kv = client.getKVClient();
    Op put = Op.put(of("txn"), of("1"), PutOption.DEFAULT);
    Op get = Op.get(of("txn"), GetOption.DEFAULT);
    Cmp missing = new Cmp(of("txn"), Cmp.Op.EQUAL, CmpTarget.version(0));
    var first = now(kv.txn().If(missing).Then(put, get).Else(get).commit());
    equal(first.isSucceeded(), true);
    equal(first.getGetResponses().get(0).getKvs().get(0).getValue().toString(), "1");
    var second = now(kv.txn().If(missing).Then(put).Else(get).commit());
    equal(second.isSucceeded() + " " + second.getGetResponses().get(0).getCount(), "false 1");
    Cmp[] none = {};
    Op inner = Op.txn(none, new Op[] {Op.put(of("txn"), of("2"), PutOption.DEFAULT)}, new Op[0]);
    Cmp same = new Cmp(of("txn"), Cmp.Op.EQUAL, CmpTarget.value(of("1")));
    var nested = now(kv.txn().If(same).Then(inner).commit());
    equal(nested.getTxnResponses().get(0).isSucceeded(), true);
    equal(value(kv, "txn"), "2");
  }

  static void watch(Client client) throws Exception {
    BlockingQueue<WatchEvent> heard = new LinkedBlockingQueue<>();
    KV kv = client.getKVClient();
    long revision = now(kv.put(of("watch/a"), of("1"))).getHeader().getRevision();
    var options = WatchOption.builder().isPrefix(true).withPrevKV(true).withRevision(revision);
    try (Watch.Watcher watcher =
        client
            .getWatchClient()
            .watch(of("watch/"), options.build(), answer -> heard.addAll(answer.getEvents()))) {
      now(kv.put(of("watch/a"), of("2")));
      now(kv.delete(of("watch/a")));
      equal(next(heard).getKeyValue().getValue().toString(), "1");
      equal(next(heard).getPrevKV().getValue().toString(), "1");
      WatchEvent last = next(heard);
      equal(last.getEventType(), WatchEvent.EventType.DELETE);
      equal(last.getPrevKV().getValue().toString(), "2");
    }
    BlockingQueue<Long> progress = new LinkedBlockingQueue<>();
    var created = WatchOption.builder().withCreateNotify(true).withProgressNotify(true).build();
    Watch watch = client.getWatchClient();
    try (Watch.Watcher watcher =
        watch.watch(
            of("watch/"), created, answer -> progress.add(answer.getHeader().getRevision()))) {
      equal(next(progress), revision + 2);
      watch.requestProgress();
      equal(next(progress), revision + 2);
    }
  }

  static void lease(Client client) throws Exception {
    var leases = client.getLeaseClient();
    long id = now(leases.grant(3)).getID();
    KV kv = client.getKVClient();
    now(kv.put(of("lease"), of("1"), PutOption.builder().withLeaseId(id).build()));
    var left = now(leases.timeToLive(id, LeaseOption.builder().withAttachedKeys().build()));
    equal(left.getGrantedTTL() + " " + left.getKeys(), "3 [lease]");
    equal(now(leases.keepAliveOnce(id)).getTTL(), 3L);
    BlockingQueue<Long> kept = new LinkedBlockingQueue<>();
    StreamObserver<LeaseKeepAliveResponse> observer =
        new StreamObserver<>() {
          public void onNext(LeaseKeepAliveResponse answer) {
            kept.add(answer.getTTL());
          }

          public void onError(Throwable wrong) {
            kept.add(-1L);
          }

          public void onCompleted() {
            kept.add(-2L);
          }
        };
    try (var keeping = leases.keepAlive(id, observer)) {
      // Longer than the TTL: the library sends a keep-alive after each third of it.
      for (int n = 0; n < 6; n++) {
        equal(next(kept), 3L);
      }
    }
    equal(value(kv, "lease"), "1");
    now(leases.revoke(id));
    equal(value(kv, "lease"), "-");
    equal(
        refused(leases.revoke(id)).getMessage(),
        "NOT_FOUND: etcdserver: requested lease not found");
  }

  static void lock(Client client) throws Exception {
    var locks = client.getLockClient();
    long first = now(client.getLeaseClient().grant(60)).getID();
    long second = now(client.getLeaseClient().grant(60)).getID();
    ByteSequence held = now(locks.lock(of("lock"), first)).getKey();
    equal(held.toString(), "lock/" + Long.toHexString(first));
    var waiting = locks.lock(of("lock"), second);
    equal(waiting.isDone(), false);
    now(locks.unlock(held));
    equal(now(waiting).getKey().toString(), "lock/" + Long.toHexString(second));
  }

  static void election(Client client) throws Exception {
    Election election = client.getElectionClient();
    equal(refused(election.leader(of("election"))).getClass(), NoLeaderException.class);
    BlockingQueue<String> seen = new LinkedBlockingQueue<>();
    election.observe(
        of("election"),
        new Election.Listener() {
          public void onNext(LeaderResponse leader) {
            seen.add(leader.getKv().getValue().toString());
          }

          public void onError(Throwable wrong) {
            seen.add(wrong.toString());
          }

          public void onCompleted() {
            seen.add("completed");
          }
        });
    long lease = now(client.getLeaseClient().grant(60)).getID();
    LeaderKey key = now(election.campaign(of("election"), lease, of("one"))).getLeader();
    equal(next(seen), "one");
    now(election.proclaim(key, of("uno")));
    equal(next(seen), "uno");
    equal(now(election.leader(of("election"))).getKv().getValue().toString(), "uno");
    now(election.resign(key));
    equal(refused(election.leader(of("election"))).getClass(), NoLeaderException.class);
  }

  static void auth(Client client) throws Exception {
    var auth = client.getAuthClient();
    now(auth.userAdd(of("ann"), of("secret")));
    now(auth.roleAdd(of("reader")));
    now(auth.roleGrantPermission(of("reader"), of("a"), of("b"), Permission.Type.READ));
    now(auth.userGrantRole(of("ann"), of("reader")));
    now(auth.userChangePassword(of("ann"), of("other")));
    equal(now(auth.userList()).getUsers(), List.of("ann"));
    equal(now(auth.userGet(of("ann"))).getRoles(), List.of("reader"));
    var permission = now(auth.roleGet(of("reader"))).getPermissions().get(0);
    equal(permission.getKey() + " " + permission.getRangeEnd(), "a b");
    now(auth.roleRevokePermission(of("reader"), of("a"), of("b")));
    now(auth.userRevokeRole(of("ann"), of("reader")));
    now(auth.userDelete(of("ann")));
    now(auth.roleDelete(of("reader")));
    equal(now(auth.roleList()).getRoles(), List.of());
  }

  static void cluster(Client client) throws Exception {
    var members = now(client.getClusterClient().listMember()).getMembers();
    equal(members.size(), 1);
    equal(members.get(0).getName(), "m0");
    equal(members.get(0).getClientURIs(), List.of(URI.create(url)));
    var learner = now(client.getClusterClient().addMember(List.of(URI.create("http://127.0.0.1:32105")), true));
    equal(learner.getMember().isLearner(), true);
    now(client.getClusterClient().removeMember(learner.getMember().getId()));
    equal(now(client.getClusterClient().listMember()).getMembers().size(), 1);
  }

  static void maintenance(Client client) throws Exception {
    var maintenance = client.getMaintenanceClient();
    equal(now(maintenance.listAlarms()).getAlarms().size(), 0);
    var status = now(maintenance.statusMember(url));
    equal(status.getVersion(), "3.7.1");
    equal(status.getLeader(), status.getHeader().getMemberId());
    now(maintenance.defragmentMember(url));
    equal(now(maintenance.hashKV(url, 0)).getHash() != 0, true);
    var copy = new ByteArrayOutputStream();
    equal(now(maintenance.snapshot(copy)), (long) copy.size());
    equal(copy.size() % 512, 32);
  }

  static void namespace(Client client) throws Exception {
    try (Client inside = Client.builder().endpoints(url).namespace(of("part/")).build()) {
      now(inside.getKVClient().put(of("key"), of("1")));
      equal(value(client.getKVClient(), "part/key"), "1");
      equal(value(inside.getKVClient(), "key"), "1");
      var all = GetOption.builder().isPrefix(true).build();
      equal(keys(now(inside.getKVClient().get(of(""), all)).getKvs()), "key");
    }
  }
}
