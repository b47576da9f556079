"""The commands of tenure-bench: see src/peer/mod.rs."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# They last from turn to turn: the time of a thread that has ended cannot be read.
THREADS = ThreadPoolExecutor(max_workers=1000)


def serve(create):
    """Obeys until the pipe is closed. `create(key)` makes a pair: acquire, release."""
    turns, hots = [], []
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        verb, first, tasks = words[0], int(words[1]), int(words[2])
        try:
            if verb == "turn":
                while len(turns) < tasks:
                    turns.append(create("python%d" % len(turns)))
                each = (first + tasks - 1) // tasks
                answer = run(turns[:tasks], False, 0, lambda done, start: done < each)
            else:
                while len(hots) < tasks:
                    hots.append(create("hot"))
                end = first / 1e3
                answer = run(hots[:tasks], True, int(words[3]) / 1e3,
                             lambda done, start: time.perf_counter() - start < end)
        except Exception as error:  # The bench shows it.
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


def run(tasks, hot, hold, go_on):
    times = [[] for _ in tasks]
    grants = [0] * len(tasks)
    errors = []
    start = time.perf_counter()

    def work(number):
        acquire, release = tasks[number]
        try:
            while go_on(len(times[number]), start):
                began = time.perf_counter()
                acquire()
                waited = time.perf_counter() - began
                # A grant after the end, when others have stopped, says nothing about fairness.
                if go_on(len(times[number]), start):
                    grants[number] += 1
                if hold:
                    time.sleep(hold)
                release()
                cycle = time.perf_counter() - began
                times[number].append((waited if hot else cycle) * 1e6)
        except Exception as error:
            errors.append(error)

    if len(tasks) == 1:
        work(0)
    else:
        list(THREADS.map(work, range(len(tasks))))
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    every = sorted(value for values in times for value in values) or [0]
    last = len(every) - 1
    return {
        "elapsed_us": elapsed * 1e6, "p50_us": every[last * 50 // 100],
        "p99_us": every[last * 99 // 100], "max_us": every[last],
        "grants": grants, "total": sum(len(values) for values in times),
    }
