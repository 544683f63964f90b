// Preview URLs have hosts below `localhost`, which not every resolver knows.
import dns from 'node:dns';
import { afterEach, expect } from 'vitest';

const { lookup } = dns;
dns.lookup = (host, ...rest) => lookup(host.endsWith('.localhost') ? '127.0.0.1' : host, ...rest);

// Some tests return at once where the platform is missing.
afterEach(({ task }) => {
  task.meta.isEmpty = expect.getState().assertionCalls === 0;
});
