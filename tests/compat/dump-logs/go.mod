module clearlane.example/dump-logs

go 1.26

require go.etcd.io/etcd/v3 v3.7.1
