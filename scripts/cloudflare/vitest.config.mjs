// Runs upstream's test files one after the other: their servers listen on fixed ports.
import { join } from 'node:path';

const work = process.env.PENFOLD_TEST_WORK;

export default {
  root: work,
  cacheDir: join(work, 'cache'),
  resolve: { alias: { '@repo/shared': join(work, 'packages/shared/src/index.ts') } },
  test: {
    globals: true,
    environment: 'node',
    include: ['tests/e2e/*.test.ts'],
    globalSetup: ['tests/e2e/global-setup.ts'],
    setupFiles: [join(import.meta.dirname, 'setup.mjs')],
    testTimeout: 120_000,
    hookTimeout: 60_000,
    pool: 'threads',
    fileParallelism: false,
    reporters: [join(import.meta.dirname, 'reporter.mjs')],
    silent: true,
  },
};
