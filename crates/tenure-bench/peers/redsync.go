// redsync over go-redis, one server.
package main

import (
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{
		Addr:     os.Getenv("TENURE_PEER_ADDRESS"),
		Password: os.Getenv("TENURE_PEER_PASSWORD"),
		PoolSize: 64,
	})
	sync := redsync.New(goredis.NewPool(client))
	serve(func(key string) (Task, error) {
		mutex := sync.NewMutex("redsync/"+key, redsync.WithExpiry(30*time.Second), redsync.WithTries(1000000))
		return Task{
			Acquire: mutex.Lock,
			Release: func() error { _, err := mutex.Unlock(); return err },
		}, nil
	})
}
