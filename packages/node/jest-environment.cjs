// The environment `node` of jest, `testEnvironment: "penfold/jest-environment"`: processes that a test starts carry its name, so that
// `penfold guard` can tell which test leaked them. A setup file cannot do that: tests have a copy of the environment, and
// `child_process` takes the original.
"use strict";
const path = require("node:path");
const { TestEnvironment } = require("jest-environment-node");

const names = (block) => (block && block.parent ? [...names(block.parent), block.name] : []);

module.exports = class PenfoldEnvironment extends TestEnvironment {
  constructor(config, context) {
    super(config, context);
    this.penfoldFile = path.relative(process.cwd(), context.testPath);
  }

  async handleTestEvent(event) {
    if (event.name === "test_start") {
      process.env.PENFOLD_TEST = [this.penfoldFile, ...names(event.test.parent), event.test.name].join(" > ");
    } else if (event.name === "test_done") {
      delete process.env.PENFOLD_TEST;
    }
  }
};
