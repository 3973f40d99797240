// The interface of npm's memjs, which speaks the binary protocol and whose own tests talk to no
// server. `suites/binary` runs it with SUITE_PORTS and, if the server has the user testuser,
// SUITE_SASL_PORT.

import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import memjs from "memjs";

const [first, second] = process.env.SUITE_PORTS.split(" ").map(Number);
const saslPort = process.env.SUITE_SASL_PORT;
const quiet = { log() {} };

function connect(servers, options = {}) {
  return memjs.Client.create(servers, { logger: quiet, retries: 1, timeout: 5, ...options });
}

function define(what, body, servers = `127.0.0.1:${first}`) {
  test(what, async () => {
    const client = connect(servers);
    try {
      await client.flush();
      await body(client);
    } finally {
      client.close();
    }
  });
}

const text = async (client, key) => {
  const { value } = await client.get(key);
  return value === null ? null : value.toString();
};

define("a value comes back with its flags", async (client) => {
  assert.equal(await client.set("a", "one", {}), true);
  const { value, flags } = await client.get("a");
  assert.equal(value.toString(), "one");
  assert.deepEqual([...flags], [0, 0, 0, 0]);
});

define("a missing key has no value", async (client) => {
  assert.equal(await text(client, "missing"), null);
});

define("bytes of every value come back", async (client) => {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, at) => at));
  await client.set("bytes", bytes, {});
  assert.deepEqual((await client.get("bytes")).value, bytes);
});

define("an empty value is not a miss", async (client) => {
  await client.set("empty", "", {});
  assert.equal(await text(client, "empty"), "");
});

define("half a megabyte comes back", async (client) => {
  const value = "0123456789".repeat(50000);
  await client.set("big", value, {});
  assert.equal(await text(client, "big"), value);
});

define("a value that is too large is refused, and the connection goes on", async (client) => {
  await assert.rejects(client.set("big", Buffer.alloc(2 << 20), {}));
  assert.equal(await client.set("a", "1", {}), true);
  assert.equal(await text(client, "a"), "1");
});

define("keys of 250 bytes, with spaces and of other alphabets", async (client) => {
  for (const key of ["k".repeat(250), "with space", "ключ", "a\tb"]) {
    await client.set(key, key, {});
    assert.equal(await text(client, key), key);
  }
  await assert.rejects(client.set("k".repeat(251), "1", {}));
});

define("add stores only a missing key", async (client) => {
  assert.equal(await client.add("a", "1", {}), true);
  assert.equal(await client.add("a", "2", {}), false);
  assert.equal(await text(client, "a"), "1");
});

define("replace stores only an existing key", async (client) => {
  assert.equal(await client.replace("a", "1", {}), false);
  await client.set("a", "1", {});
  assert.equal(await client.replace("a", "2", {}), true);
  assert.equal(await text(client, "a"), "2");
});

define("delete removes a key once", async (client) => {
  await client.set("a", "1", {});
  assert.equal(await client.delete("a"), true);
  assert.equal(await client.delete("a"), false);
  assert.equal(await text(client, "a"), null);
});

define("counters start at their initial value", async (client) => {
  assert.deepEqual(await client.increment("n", 5, { initial: 10 }), { success: true, value: 10 });
  assert.deepEqual(await client.increment("n", 5, {}), { success: true, value: 15 });
  assert.deepEqual(await client.decrement("n", 3, {}), { success: true, value: 12 });
  assert.deepEqual(await client.decrement("n", 100, {}), { success: true, value: 0 });
});

define("what is not a number is not incremented", async (client) => {
  await client.set("a", "one", {});
  await assert.rejects(client.increment("a", 1, {}));
  assert.equal(await text(client, "a"), "one");
});

define("append extends an existing key", async (client) => {
  await assert.rejects(client.append("a", "1"));
  await client.set("a", "1", {});
  assert.equal(await client.append("a", "2"), true);
  assert.equal(await text(client, "a"), "12");
});

define("prepend, which memjs sends as append", async (client) => {
  await client.set("a", "1", {});
  assert.equal(await client.prepend("a", "0"), true);
  assert.equal(await text(client, "a"), "10");
});

define("times to live end", async (client) => {
  await client.set("short", "1", { expires: 1 });
  await client.set("long", "1", { expires: 100 });
  await client.set("touched", "1", { expires: 1 });
  assert.equal(await client.touch("touched", 100), true);
  assert.equal(await client.touch("missing", 100), false);
  await sleep(2100);
  assert.equal(await text(client, "short"), null);
  assert.equal(await text(client, "long"), "1");
  assert.equal(await text(client, "touched"), "1");
});

define("stats are listed, also of a group", async (client) => {
  const stats = (key) =>
    new Promise((resolve, reject) =>
      client.statsWithKey(key, (error, _, found) => (error ? reject(error) : resolve(found)))
    );
  const general = await stats("");
  assert.ok(Number(general.pid) > 0);
  assert.ok(general.version.length > 0);
  assert.ok(Number((await stats("settings")).maxbytes) > 0);
  await stats("reset");
  assert.equal((await stats("")).cmd_set, "0");
});

define("a thousand commands at once are answered in order", async (client) => {
  const keys = Array.from({ length: 1000 }, (_, at) => `key:${at}`);
  await Promise.all(keys.map((key) => client.set(key, key, {})));
  const values = await Promise.all(keys.map((key) => text(client, key)));
  assert.deepEqual(values, keys);
});

define(
  "keys are spread over two servers",
  async (client) => {
    const keys = Array.from({ length: 100 }, (_, at) => `key:${at}`);
    await Promise.all(keys.map((key) => client.set(key, key, {})));
    let found = 0;
    for (const port of [first, second]) {
      const one = connect(`127.0.0.1:${port}`);
      const values = await Promise.all(keys.map((key) => text(one, key)));
      const count = values.filter((value) => value !== null).length;
      assert.ok(count > 0 && count < 100, `${count}`);
      found += count;
      one.close();
    }
    assert.equal(found, 100);
  },
  `127.0.0.1:${first},127.0.0.1:${second}`
);

test("quit ends the connection", async () => {
  const client = connect(`127.0.0.1:${first}`);
  await client.set("a", "1", {});
  const closed = new Promise((resolve) => client.servers[0]._socket.on("close", resolve));
  client.quit();
  await closed;
});

test("a user logs in with SASL", { skip: saslPort === undefined }, async () => {
  const client = connect(`testuser:testtest@127.0.0.1:${saslPort}`);
  try {
    assert.equal(await client.set("a", "1", {}), true);
    assert.equal(await text(client, "a"), "1");
  } finally {
    client.close();
  }
});

test("a wrong password is refused", { skip: saslPort === undefined }, async () => {
  for (const user of ["testuser:wrong@", ""]) {
    const client = connect(`${user}127.0.0.1:${saslPort}`);
    try {
      await assert.rejects(client.set("a", "1", {}));
    } finally {
      client.close();
    }
  }
});
