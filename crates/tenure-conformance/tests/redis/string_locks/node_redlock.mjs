// node-redlock over ioredis, which follows the lines of a pipe; see string_locks.rs.

import { createInterface } from "node:readline";

import Client from "ioredis";
import Redlock, { ResourceLockedError } from "redlock";

const locks = new Redlock(process.env.TENURE_PEER.split(" ").map((url) => new Client(url)));
const held = new Map();

// Whether enough servers said that another holds it.
async function isLocked(error) {
  const last = await error.attempts?.at(-1);
  const refusals = [...(last?.votesAgainst.values() ?? [])];
  return refusals.length >= (last?.quorumSize ?? 1)
    && refusals.every((refusal) => refusal instanceof ResourceLockedError);
}

async function obey(verb, name) {
  if (verb === "unlock") {
    await held.get(name).release();
    return "unlocked";
  }
  try {
    held.set(name, await locks.acquire([name], 30000, { retryCount: verb === "lock" ? -1 : 0 }));
    return "locked";
  } catch (error) {
    return await isLocked(error) ? "busy" : String(error);
  }
}

console.log("peer ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, thread, name] = line.split(" ");
  console.log(thread, await obey(verb, name));
}
process.exit(0);
