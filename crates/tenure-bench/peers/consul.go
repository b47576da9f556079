// Consul's own api.Lock, with one session for each task.
package main

import (
	"os"

	"github.com/hashicorp/consul/api"
)

func main() {
	config := api.DefaultConfig()
	config.Address = os.Getenv("TENURE_PEER_ADDRESS")
	client, err := api.NewClient(config)
	if err != nil {
		panic(err)
	}
	serve(func(key string) (Task, error) {
		session, _, err := client.Session().CreateNoChecks(&api.SessionEntry{LockDelay: 1}, nil)
		if err != nil {
			return Task{}, err
		}
		lock, err := client.LockOpts(&api.LockOptions{Key: "peer/" + key, Session: session})
		if err != nil {
			return Task{}, err
		}
		return Task{
			Acquire: func() error { _, err := lock.Lock(nil); return err },
			Release: lock.Unlock,
		}, nil
	})
}
