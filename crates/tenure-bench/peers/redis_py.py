"""The lock of redis-py."""

import os

import redis

from protocol import serve

host, port = os.environ["TENURE_PEER_ADDRESS"].rsplit(":", 1)
client = redis.Redis(host=host, port=int(port), password=os.environ["TENURE_PEER_PASSWORD"] or None)


def create(key):
    lock = client.lock("py/" + key, timeout=30)
    return lock.acquire, lock.release


serve(create)
