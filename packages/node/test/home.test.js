// The homes of tests.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { findBinary } from "penfold";
import { makeTestHome } from "penfold/test-home";
import { Tree, waitUntil } from "./tree.js";

test("what uses the home of a test ends with it, and a sandbox is an error", async (t) => {
  const base = mkdtempSync(path.join(tmpdir(), "penfold-homes-"));
  t.after(() => rmSync(base, { recursive: true }));
  const outer = process.env.PENFOLD_TEST_HOME_BASE;
  process.env.PENFOLD_TEST_HOME_BASE = base;
  t.after(() => {
    if (outer === undefined) delete process.env.PENFOLD_TEST_HOME_BASE;
    else process.env.PENFOLD_TEST_HOME_BASE = outer;
  });
  const tree = new Tree();

  const home = makeTestHome();
  assert.equal(path.dirname(home.path), base);
  spawn("sleep", ["1001"], { cwd: home.path, env: tree.env, stdio: "ignore" });
  await waitUntil("it runs", () => tree.names().includes("sleep"));
  home.close();
  await waitUntil("it has ended", () => tree.names().length === 0);
  assert.ok(!existsSync(home.path));

  const other = makeTestHome();
  const run = ["--root", other.stateRoot, "run", "-d", "sleep", "1002"];
  const started = spawnSync(findBinary(), run, { env: tree.env, encoding: "utf8" });
  assert.equal(started.status, 0, started.stderr);
  assert.ok(tree.names().includes("sleep"));
  assert.throws(() => other.close(), { code: "ERR_PENFOLD_LEAK", message: new RegExp(started.stdout.trim()) });
  assert.deepEqual(tree.names(), []);
  assert.deepEqual(readdirSync(base), []);
});
