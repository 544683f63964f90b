// Makes clients that call over /rpc. On Cloudflare's platform the class `Sandbox` makes them; here, stand-ins for its object do.

/** Opens a WebSocket, and answers as the platform does. */
export const open = (url) =>
  new Promise((resolve) => {
    const webSocket = new WebSocket(url);
    webSocket.accept = () => {};
    webSocket.addEventListener('open', () => resolve({ status: 101, headers: new Headers(), webSocket }));
    webSocket.addEventListener('error', () => resolve(new Response('', { status: 502 })));
  });

/** Makes the client of the `Sandbox` of 0.12. */
export const rpcClient = (Sandbox, baseUrl) => {
  const logger = Object.fromEntries(['debug', 'info', 'warn', 'error'].map((level) => [level, () => {}]));
  const sandbox = {
    logger,
    ctx: { id: 'npm' },
    inflightRequests: 0,
    computeRetryTimeoutMs: () => 0,
    startContainerForRPC: async () => {},
    renewActivityTimeout: () => {},
    fetch: () => open(`${baseUrl.replace(/^http/, 'ws')}/rpc`),
  };
  return Sandbox.prototype.createClientForTransport.call(sandbox, 'rpc');
};

/** Makes a sandbox of 0.13 as the platform does: its storage is a map, and its container the server. */
export const nextSandbox = ({ Sandbox, getSandbox }, baseUrl, stored = new Map()) => {
  const storage = {
    get: async (key) => stored.get(key),
    put: async (key, value) => void stored.set(key, value),
    delete: async (key) => stored.delete(key),
    transaction: (work) => work(storage),
  };
  const fetch = () => open(`${baseUrl.replace(/^http/, 'ws')}/rpc`);
  const ctx = {
    id: 'npm',
    storage,
    container: { running: true, getTcpPort: () => ({ fetch }) },
    blockConcurrencyWhile: (work) => work(),
  };
  // On the platform, this looks for the object of the class. Here it is its own.
  return getSandbox(new Sandbox(ctx, {}), 'npm');
};
