// The commands of tenure-bench: see src/peer/mod.rs.

import { createInterface } from "node:readline";

// Obeys until the pipe is closed. `create(key)` makes an object with `acquire` and `release`.
export async function serve(create) {
  const turns = [];
  const hots = [];
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...numbers] = line.split(" ");
    const [first, tasks, hold] = numbers.map(Number);
    let answer;
    try {
      if (verb === "turn") {
        while (turns.length < tasks) turns.push(create(`node${turns.length}`));
        const each = Math.ceil(first / tasks);
        answer = await run(turns.slice(0, tasks), false, 0, (done) => done < each);
      } else {
        while (hots.length < tasks) hots.push(create("hot"));
        const goOn = (_, start) => performance.now() - start < first;
        answer = await run(hots.slice(0, tasks), true, hold, goOn);
      }
    } catch (error) {
      answer = { error: String(error) };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}

async function run(tasks, hot, hold, goOn) {
  const times = tasks.map(() => []);
  const grants = tasks.map(() => 0);
  const start = performance.now();
  await Promise.all(tasks.map(async (task, n) => {
    while (goOn(times[n].length, start)) {
      const began = performance.now();
      await task.acquire();
      const waited = performance.now() - began;
      // A grant after the end, when others have stopped, says nothing about fairness.
      if (goOn(times[n].length, start)) grants[n] += 1;
      if (hold > 0) await new Promise((done) => setTimeout(done, hold));
      await task.release();
      times[n].push((hot ? waited : performance.now() - began) * 1e3);
    }
  }));
  const elapsed = performance.now() - start;
  const all = times.flat().sort((a, b) => a - b);
  const last = all.length - 1;
  const at = (percent) => all[Math.floor((last * percent) / 100)] ?? 0;
  return {
    elapsed_us: elapsed * 1e3, p50_us: at(50), p99_us: at(99), max_us: at(100),
    grants, total: all.length,
  };
}
