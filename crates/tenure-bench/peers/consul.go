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
		// Each Lock leaves a request open that watches the key, until that sees the release. The
		// server refuses more than 200 connections of a client.
		watching := []<-chan struct{}{}
		return Task{
			Acquire: func() error {
				lost, err := lock.Lock(nil)
				watching = append(watching, lost)
				return err
			},
			Release: func() error {
				if err := lock.Unlock(); err != nil {
					return err
				}
				if len(watching) > 1 {
					<-watching[0]
					watching = watching[1:]
				}
				return nil
			},
		}, nil
	})
}
