// Program bbolt opens a file with go.etcd.io/bbolt and executes the lines of its input. The tests
// of the bolt engine use it to check the files that they have written, and to change them.
//
//	check                  bbolt's own check of the whole file
//	sum BUCKET             prints the number of records, and a crc32c of all keys and values
//	buckets                prints the names of the buckets
//	put BUCKET KEY VALUE   in hex; the bucket is made if it is not there. VALUE "-" is empty, and
//	                       "*N:BYTE" is the byte N times
//	delete BUCKET KEY
//	drop BUCKET            removes a bucket with all that is in it
//	commit                 ends a write transaction; the next change begins another
//
//	pages                  prints the number of pages below the high-water mark
//	sequence BUCKET N      sets the sequence number of a bucket, which is made if it is not there
//	tree                   prints path, sequence number, number of records and sum of each bucket
//
// For `put`, `delete` and `sequence`, BUCKET may be a path: the names of nested buckets with slashes
// between them.
//
// usage: bbolt FILE PAGESIZE [freelist]. A new file has pages of PAGESIZE bytes. With freelist,
// each commit writes a list of free pages, as bbolt's own tools do and etcd does not.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
)

// session is an open file, with its open write transaction if there is one.
type session struct {
	db  *bbolt.DB
	txn *bbolt.Tx
}

func main() {
	log.SetFlags(0)
	options := *bbolt.DefaultOptions
	options.Timeout = 10 * time.Second
	pageSize, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	options.PageSize = pageSize
	options.NoFreelistSync = len(os.Args) < 4 || os.Args[3] != "freelist"
	options.FreelistType = bbolt.FreelistMapType
	db, err := bbolt.Open(os.Args[1], 0o600, &options)
	if err != nil {
		log.Fatal(err)
	}
	current := session{db: db}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if err := current.run(strings.Fields(lines.Text())); err != nil {
			log.Fatalf("%.200s: %v", lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	if current.txn != nil {
		log.Fatal("the last transaction was not committed")
	}
	if err := db.Close(); err != nil {
		log.Fatal(err)
	}
}

func (s *session) run(words []string) error {
	switch words[0] {
	case "check":
		return s.db.View(check)
	case "sum":
		return s.db.View(func(tx *bbolt.Tx) error { return sum(tx, words[1]) })
	case "pages":
		return s.db.View(func(tx *bbolt.Tx) error {
			_, err := fmt.Println(tx.Size() / int64(s.db.Info().PageSize))
			return err
		})
	case "buckets":
		return s.db.View(buckets)
	case "tree":
		return s.db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
				return tree(string(name), bucket)
			})
		})
	case "commit":
		if s.txn == nil {
			return nil
		}
		txn := s.txn
		s.txn = nil
		return txn.Commit()
	}
	if s.txn == nil {
		txn, err := s.db.Begin(true)
		if err != nil {
			return err
		}
		s.txn = txn
	}
	return change(s.txn, words)
}

func check(tx *bbolt.Tx) error {
	var found []string
	for err := range tx.Check() {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		return fmt.Errorf("check: %s", strings.Join(found, "; "))
	}
	fmt.Println("ok")
	return nil
}

func sum(tx *bbolt.Tx, name string) error {
	count, sum := 0, uint32(0)
	if bucket := tx.Bucket([]byte(name)); bucket != nil {
		var err error
		if count, sum, err = sumOf(bucket); err != nil {
			return err
		}
	}
	fmt.Printf("%s %d %08x\n", name, count, sum)
	return nil
}

// sumOf returns the number and the checksum of the records. A nested bucket counts as a record
// without a value.
func sumOf(bucket *bbolt.Bucket) (count int, sum uint32, err error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	err = bucket.ForEach(func(key, value []byte) error {
		for _, part := range [][]byte{key, value} {
			length := binary.LittleEndian.AppendUint32(nil, uint32(len(part)))
			sum = crc32.Update(crc32.Update(sum, table, length), table, part)
		}
		count++
		return nil
	})
	return count, sum, err
}

func tree(path string, bucket *bbolt.Bucket) error {
	count, sum, err := sumOf(bucket)
	if err != nil {
		return err
	}
	fmt.Printf("%s %d %d %08x\n", path, bucket.Sequence(), count, sum)
	return bucket.ForEachBucket(func(name []byte) error {
		return tree(path+"/"+string(name), bucket.Bucket(name))
	})
}

func buckets(tx *bbolt.Tx) error {
	var names []string
	err := tx.ForEach(func(name []byte, _ *bbolt.Bucket) error {
		names = append(names, string(name))
		return nil
	})
	fmt.Println(strings.Join(names, " "))
	return err
}

func change(tx *bbolt.Tx, words []string) error {
	names := strings.Split(words[1], "/")
	if words[0] == "drop" {
		return tx.DeleteBucket([]byte(names[0]))
	}
	bucket, err := tx.CreateBucketIfNotExists([]byte(names[0]))
	for _, name := range names[1:] {
		if err == nil {
			bucket, err = bucket.CreateBucketIfNotExists([]byte(name))
		}
	}
	if err != nil {
		return err
	}
	if words[0] == "sequence" {
		number, err := strconv.ParseUint(words[2], 10, 64)
		if err != nil {
			return err
		}
		return bucket.SetSequence(number)
	}
	if words[1] == "key" {
		// etcd uses this value for its bucket `key`.
		bucket.FillPercent = 0.9
	}
	key, err := hex.DecodeString(words[2])
	if err != nil {
		return err
	}
	if words[0] == "delete" {
		return bucket.Delete(key)
	}
	value, err := parseValue(words[3])
	if err != nil {
		return err
	}
	return bucket.Put(key, value)
}

func parseValue(text string) ([]byte, error) {
	if text == "-" {
		return nil, nil
	}
	count, fill, isRepeated := strings.Cut(text, ":")
	if !isRepeated {
		return hex.DecodeString(text)
	}
	length, err := strconv.Atoi(strings.TrimPrefix(count, "*"))
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(fill)
	return bytes.Repeat([]byte{byte(number)}, length), err
}
