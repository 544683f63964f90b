// A setup file of vitest, `setupFiles: ["penfold/vitest"]`: processes that a test starts carry its name, so that `penfold guard`
// can tell which test leaked them.
import { afterEach, beforeEach } from "vitest";

const names = (task, file) => (task && task !== file ? [...names(task.suite, file), task.name] : []);

beforeEach(({ task }) => {
  process.env.PENFOLD_TEST = [task.file.name, ...names(task, task.file)].join(" > ");
});

afterEach(() => {
  delete process.env.PENFOLD_TEST;
});
