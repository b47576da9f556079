// node-redlock over ioredis, one server.

import Client from "ioredis";
import redlock from "redlock";

import { serve } from "./protocol.mjs";

const Redlock = redlock.default ?? redlock;
const url = new URL(`redis://${process.env.TENURE_PEER_ADDRESS}`);
const client = new Client({
  host: url.hostname, port: Number(url.port), password: process.env.TENURE_PEER_PASSWORD || undefined,
});
const locks = new Redlock([client], { retryCount: -1 });

await serve((key) => {
  let held;
  return {
    acquire: async () => { held = await locks.acquire([`redlock/${key}`], 30000); },
    release: () => held.release(),
  };
});
