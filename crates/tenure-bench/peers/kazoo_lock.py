"""The lock recipe of kazoo."""

import os

from kazoo.client import KazooClient

from protocol import serve

client = KazooClient(hosts=os.environ["TENURE_PEER_ADDRESS"])
client.start()


def create(key):
    lock = client.Lock("/kazoo/" + key)
    return lock.acquire, lock.release


serve(create)
