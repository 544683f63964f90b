// Prints for each test file how many tests passed, failed and were skipped, and the names of those that failed.
import { basename } from 'node:path';

const sum = { passed: 0, failed: 0, skipped: 0 };
const line = ({ passed, failed, skipped }) => `${passed} passed, ${failed} failed, ${skipped} skipped`;
const firstLine = (errors) => String(errors[0]?.message ?? '').split('\n')[0].slice(0, 200);

/** The errors of a hook before a test. Its tests count as failed. */
const hookErrors = (test) => {
  for (let suite = test.parent; suite; suite = suite.parent) {
    const errors = suite.errors();
    if (errors.length) return errors;
    if (suite.type === 'module') return [];
  }
  return [];
};

export default class {
  onTestModuleEnd(module) {
    const counts = { passed: 0, failed: 0, skipped: 0 };
    const lines = [];
    for (const test of module.children.allTests()) {
      const { state, errors = [] } = test.result();
      const asked = ['skip', 'todo'].includes(test.options.mode);
      const before = state === 'skipped' && !asked ? hookErrors(test) : [];
      // A test that checked nothing proves nothing.
      const left = state === 'passed' && test.meta().isEmpty ? 'skipped' : state;
      const outcome = before.length ? 'failed' : left;
      counts[outcome] += 1;
      if (outcome === 'failed') lines.push(`    failed: ${test.fullName}: ${firstLine(before.length ? before : errors)}`);
    }
    const broken = module.errors();
    if (broken.length && !lines.length) {
      counts.failed += 1;
      lines.push(`    failed: the file: ${firstLine(broken)}`);
    }
    for (const outcome of Object.keys(sum)) sum[outcome] += counts[outcome];
    const seconds = Math.round(module.diagnostic().duration / 1000);
    console.log([`${basename(module.moduleId)}: ${line(counts)} (${seconds} s)`, ...lines].join('\n'));
  }
  onTestRunEnd(_, errors) {
    for (const error of errors) console.log(`error: ${firstLine([error])}`);
    console.log(line(sum));
  }
}
