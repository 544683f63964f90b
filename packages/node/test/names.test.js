// The names of tests for `penfold guard`, with stand-ins for vitest and jest. Both were tried with the real ones, too.
import assert from "node:assert/strict";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

// The package itself, in its sources and where it is installed.
const own = createRequire(import.meta.url);

// Copies a file of the package beside a module that stands in for the runner.
function beside(t, file, name, text) {
  const dir = mkdtempSync(path.join(tmpdir(), "penfold-names-"));
  t.after(() => rmSync(dir, { recursive: true }));
  cpSync(own.resolve(`penfold/${file.replace(/\.c?js$/, "")}`), path.join(dir, file));
  writeFileSync(path.join(dir, "package.json"), '{ "type": "module" }');
  const module = path.join(dir, "node_modules", name);
  mkdirSync(module, { recursive: true });
  writeFileSync(path.join(module, "index.cjs"), text);
  writeFileSync(path.join(module, "package.json"), '{ "main": "index.cjs" }');
  return path.join(dir, file);
}

test("vitest: the name of the file, the suites and the test", async (t) => {
  const stub = "exports.beforeEach = (f) => { globalThis.stubBefore = f; }; exports.afterEach = (f) => { globalThis.stubAfter = f; };";
  await import(pathToFileURL(beside(t, "vitest.js", "vitest", stub)));
  const file = { name: "a.test.js" };
  globalThis.stubBefore({ task: { name: "works", file, suite: { name: "suite", suite: file } } });
  assert.equal(process.env.PENFOLD_TEST, "a.test.js > suite > works");
  globalThis.stubAfter();
  assert.equal(process.env.PENFOLD_TEST, undefined);
});

test("jest: the environment of the runner has the name, not the copy of the tests", async (t) => {
  const stub = "exports.TestEnvironment = class {};";
  const file = beside(t, "jest-environment.cjs", "jest-environment-node", stub);
  const Environment = own(file);
  const environment = new Environment({}, { testPath: path.resolve("j/a.test.js") });
  const parent = { name: "suite", parent: { name: "ROOT_DESCRIBE_BLOCK" } };
  await environment.handleTestEvent({ name: "test_start", test: { name: "works", parent } });
  assert.equal(process.env.PENFOLD_TEST, `${path.join("j", "a.test.js")} > suite > works`);
  await environment.handleTestEvent({ name: "test_done", test: { name: "works", parent } });
  assert.equal(process.env.PENFOLD_TEST, undefined);
});
