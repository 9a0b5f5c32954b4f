module clearlane.example/bbolt

go 1.26

require go.etcd.io/bbolt v1.5.0

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	golang.org/x/sys v0.45.0 // indirect
)

tool go.etcd.io/bbolt/cmd/bbolt
