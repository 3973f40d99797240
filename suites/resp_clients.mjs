// The commands that caches need, through npm's ioredis and redis (node-redis), whose packages have
// no tests. `suites/resp` runs it with SUITE_PORT.

import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";

const port = Number(process.env.SUITE_PORT);

// Each adapter has the same methods over its client's own ones.
const ioredis = {
  name: "ioredis",
  async connect(options = {}) {
    const client = new Redis({ port, host: "127.0.0.1", lazyConnect: true, ...options });
    client.on("error", () => {});
    await client.connect();
    return client;
  },
  call: (client, ...words) => client.call(...words.map(String)),
  close: (client) => client.disconnect(),
};
const nodeRedis = {
  name: "node-redis",
  async connect(options = {}) {
    const client = createClient({ socket: { port, host: "127.0.0.1" }, ...options });
    client.on("error", () => {});
    return client.connect();
  },
  call: (client, ...words) => client.sendCommand(words.map(String)),
  close: (client) => client.destroy(),
};

function define(adapter, what, body) {
  test(`${adapter.name}: ${what}`, async () => {
    const client = await adapter.connect();
    try {
      await adapter.call(client, "FLUSHALL");
      await body(client);
    } finally {
      adapter.close(client);
    }
  });
}

for (const adapter of [ioredis, nodeRedis]) {
  const call = adapter.call;
  define(adapter, "any command is passed on", async (client) => {
    assert.equal(await call(client, "SET", "a", "x", "PX", 100000), "OK");
    assert.equal(await call(client, "GET", "a"), "x");
    assert.equal(await call(client, "GET", "missing"), null);
    const ttl = await call(client, "PTTL", "a");
    assert.ok(ttl > 90000 && ttl <= 100000, `${ttl}`);
    await assert.rejects(call(client, "GET"), /wrong number of arguments/);
    await assert.rejects(call(client, "NOSUCH", "a"), /unknown command/);
  });
  define(adapter, "a million bytes come back", async (client) => {
    const value = "0123456789".repeat(100000);
    await call(client, "SET", "big", value);
    assert.equal(await call(client, "GET", "big"), value);
    assert.equal(await call(client, "STRLEN", "big"), value.length);
  });
  define(adapter, "a thousand commands at once are answered in order", async (client) => {
    const answers = await Promise.all(
      Array.from({ length: 1000 }, (_, at) => call(client, "INCRBY", "n", at % 7)),
    );
    let sum = 0;
    answers.forEach((answer, at) => assert.equal(answer, (sum += at % 7)));
  });
  define(adapter, "keys expire in milliseconds", async (client) => {
    await call(client, "SET", "a", "x", "PX", 50);
    assert.equal(await call(client, "EXISTS", "a"), 1);
    await sleep(120);
    assert.equal(await call(client, "EXISTS", "a"), 0);
  });
}

define(ioredis, "strings and counters", async (client) => {
  assert.equal(await client.setex("a", 100, "1"), "OK");
  assert.equal(await client.incr("a"), 2);
  assert.equal(await client.incrbyfloat("a", 0.5), "2.5");
  assert.deepEqual(await client.mget("a", "missing"), ["2.5", null]);
  assert.equal(await client.getdel("a"), "2.5");
  assert.equal(await client.set("a", "x", "NX"), "OK");
  assert.equal(await client.set("a", "y", "NX"), null);
  assert.deepEqual(await client.getBuffer("a"), Buffer.from("x"));
});
define(ioredis, "hashes", async (client) => {
  assert.equal(await client.hset("h", { f: "1", g: "2" }), 2);
  assert.equal(await client.hincrby("h", "f", 5), 6);
  assert.deepEqual(await client.hgetall("h"), { f: "6", g: "2" });
  assert.deepEqual(await client.hmget("h", "g", "x"), ["2", null]);
});
define(ioredis, "pipelines, transactions and watches", async (client) => {
  const piped = await client.pipeline().set("a", 1).incr("a").get("a").exec();
  assert.deepEqual(piped, [[null, "OK"], [null, 2], [null, "2"]]);
  const executed = await client.multi().incr("a").hget("a", "f").exec();
  assert.equal(executed[0][1], 3);
  assert.match(executed[1][0].message, /WRONGTYPE/);
  await client.watch("a");
  const other = await ioredis.connect();
  await other.set("a", 9);
  ioredis.close(other);
  assert.equal(await client.multi().incr("a").exec(), null);
});
define(ioredis, "a scan finds every key once", async (client) => {
  await client.mset(Object.fromEntries(Array.from({ length: 500 }, (_, at) => [`k${at}`, at])));
  const found = new Set();
  for await (const keys of client.scanStream({ match: "k*", count: 50 })) {
    keys.forEach((key) => found.add(key));
  }
  assert.equal(found.size, 500);
});
define(ioredis, "automatic pipelines", async () => {
  const client = await ioredis.connect({ enableAutoPipelining: true });
  await client.set("a", 1);
  const answers = await Promise.all(Array.from({ length: 100 }, () => client.incr("a")));
  assert.deepEqual(answers, Array.from({ length: 100 }, (_, at) => at + 2));
  ioredis.close(client);
});

define(nodeRedis, "strings and counters", async (client) => {
  assert.equal(await client.set("a", "1", { EX: 100 }), "OK");
  assert.equal(await client.incr("a"), 2);
  assert.equal(await client.incrByFloat("a", 0.5), "2.5");
  assert.deepEqual(await client.mGet(["a", "missing"]), ["2.5", null]);
  assert.equal(await client.getDel("a"), "2.5");
  assert.equal(await client.set("a", "x", { NX: true }), "OK");
  assert.equal(await client.set("a", "y", { NX: true }), null);
});
define(nodeRedis, "hashes", async (client) => {
  assert.equal(await client.hSet("h", { f: "1", g: "2" }), 2);
  assert.equal(await client.hIncrBy("h", "f", 5), 6);
  assert.deepEqual({ ...(await client.hGetAll("h")) }, { f: "6", g: "2" });
  assert.deepEqual(await client.hmGet("h", ["g", "x"]), ["2", null]);
});
define(nodeRedis, "transactions and watches", async (client) => {
  assert.deepEqual(await client.multi().set("a", "1").incr("a").exec(), ["OK", 2]);
  await client.watch("a");
  const other = await nodeRedis.connect();
  await other.set("a", "9");
  nodeRedis.close(other);
  await assert.rejects(client.multi().incr("a").exec(), /watched keys/i);
});
define(nodeRedis, "a scan finds every key once", async (client) => {
  await client.mSet(Array.from({ length: 500 }, (_, at) => [`k${at}`, `${at}`]));
  const found = new Set();
  for await (const keys of client.scanIterator({ MATCH: "k*", COUNT: 50 })) {
    keys.forEach((key) => found.add(key));
  }
  assert.equal(found.size, 500);
});
for (const RESP of [2, 3]) {
  define(nodeRedis, `a connection in RESP${RESP}`, async () => {
    const client = await nodeRedis.connect({ RESP });
    await client.hSet("h", { f: "1" });
    assert.deepEqual({ ...(await client.hGetAll("h")) }, { f: "1" });
    assert.equal(await client.get("missing"), null);
    nodeRedis.close(client);
  });
}
