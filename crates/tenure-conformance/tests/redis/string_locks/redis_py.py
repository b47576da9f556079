"""The lock of redis-py, which follows the lines of a pipe; see string_locks.rs."""

import os
import sys

import redis

client = redis.Redis.from_url(os.environ["TENURE_PEER"])
held = {}


def obey(verb, name):
    if verb == "unlock":
        held.pop(name).release()
        return "unlocked"
    lock = client.lock(name, timeout=30)
    if not lock.acquire(blocking=verb == "lock"):
        return "busy"
    held[name] = lock
    return "locked"


print("peer ready", flush=True)
for line in sys.stdin:
    verb, thread, name = line.split()
    try:
        result = obey(verb, name)
    except Exception as error:  # The test shows it.
        result = repr(error)
    print(thread, result, flush=True)
