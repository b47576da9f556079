// etcd's own concurrency.Mutex.
package main

import (
	"context"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{os.Getenv("TENURE_PEER_ADDRESS")},
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		panic(err)
	}
	shared, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		panic(err)
	}
	serve(func(key string) (Task, error) {
		session := shared
		// Mutexes of one session and one key do not exclude each other.
		if key == "hot" {
			if session, err = concurrency.NewSession(client, concurrency.WithTTL(30)); err != nil {
				return Task{}, err
			}
		}
		mutex := concurrency.NewMutex(session, "/mutex/"+key)
		return Task{
			Acquire: func() error { return mutex.Lock(context.Background()) },
			Release: func() error { return mutex.Unlock(context.Background()) },
		}, nil
	})
}
