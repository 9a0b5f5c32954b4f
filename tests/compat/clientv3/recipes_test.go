package clientv3

import (
	"fmt"
	"sync"
	"testing"

	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
)

func TestQueues(t *testing.T) {
	t.Parallel()
	c := start(t, 1)
	writer, reader := connect(t, c.urls()...), connect(t, c.urls()...)
	queue := recipe.NewQueue(writer, "queue")
	taken := make(chan string)
	go func() {
		from := recipe.NewQueue(reader, "queue")
		for range 5 {
			value, err := from.Dequeue()
			if err != nil {
				t.Error(err)
			}
			taken <- value
		}
	}()
	for n := range 5 {
		check(t, queue.Enqueue(fmt.Sprint(n)))
		equal(t, <-taken, fmt.Sprint(n))
	}
	urgent := recipe.NewPriorityQueue(writer, "urgent")
	for _, priority := range []uint16{3, 1, 2} {
		check(t, urgent.Enqueue(fmt.Sprint(priority), priority))
	}
	for _, wanted := range []string{"1", "2", "3"} {
		value, err := urgent.Dequeue()
		check(t, err)
		equal(t, value, wanted)
	}
}

func TestBarriers(t *testing.T) {
	t.Parallel()
	c := start(t, 1)
	client := connect(t, c.urls()...)
	barrier := recipe.NewBarrier(client, "barrier")
	check(t, barrier.Hold())
	equal(t, barrier.Hold() != nil, true)
	passed := make(chan error, 3)
	for range 3 {
		other := connect(t, c.urls()...)
		go func() { passed <- recipe.NewBarrier(other, "barrier").Wait() }()
	}
	check(t, barrier.Release())
	for range 3 {
		check(t, <-passed)
	}

	var inside, all sync.WaitGroup
	inside.Add(3)
	for range 3 {
		double := recipe.NewDoubleBarrier(session(t, connect(t, c.urls()...)), "double", 3)
		all.Go(func() {
			if err := double.Enter(); err != nil {
				t.Error(err)
			}
			inside.Done()
			inside.Wait()
			if err := double.Leave(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	equal(t, keys(t, client, "double"), "")
}

func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	c := start(t, 1)
	client := connect(t, c.urls()...)
	first := recipe.NewRWMutex(session(t, client), "rw")
	second := recipe.NewRWMutex(session(t, client), "rw")
	writer := recipe.NewRWMutex(session(t, client), "rw")
	check(t, first.RLock())
	check(t, second.RLock())
	written := make(chan error, 1)
	go func() { written <- writer.Lock() }()
	eventually(t, "the writer waits", func() bool {
		got, err := client.Get(soon(t), "rw/write")
		return err == nil && got.Count == 0 && len(keys(t, client, "rw/write")) > 0
	})
	select {
	case err := <-written:
		t.Fatalf("a writer came in: %v", err)
	default:
	}
	check(t, first.RUnlock())
	check(t, second.RUnlock())
	check(t, <-written)
	check(t, writer.Unlock())
}
