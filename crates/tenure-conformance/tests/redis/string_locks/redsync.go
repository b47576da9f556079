// redsync over go-redis, which follows the lines of a pipe; see string_locks.rs.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	pools := []pool.Pool{}
	for _, url := range strings.Fields(os.Getenv("TENURE_PEER")) {
		options, err := redis.ParseURL(url)
		if err != nil {
			panic(err)
		}
		pools = append(pools, goredis.NewPool(redis.NewClient(options)))
	}
	sync := redsync.New(pools...)
	held := map[string]*redsync.Mutex{}
	fmt.Println("peer ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		fmt.Println(words[1], obey(sync, held, words[0], words[2]))
	}
}

func obey(sync *redsync.Redsync, held map[string]*redsync.Mutex, verb, name string) string {
	mutex := sync.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1000))
	var err error
	switch verb {
	case "lock":
		err = mutex.Lock()
	case "try":
		err = mutex.TryLock()
	case "unlock":
		if _, err := held[name].Unlock(); err != nil {
			return err.Error()
		}
		return "unlocked"
	default:
		return "what is " + verb + "?"
	}
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return "busy"
	}
	if err != nil {
		return err.Error()
	}
	held[name] = mutex
	return "locked"
}
