// Makes a client that calls over /rpc. On Cloudflare's platform the class `Sandbox` makes it; here, a stand-in for its object does.

/** Opens a WebSocket, and answers as the platform does. */
export const open = (url) =>
  new Promise((resolve) => {
    const webSocket = new WebSocket(url);
    webSocket.accept = () => {};
    webSocket.addEventListener('open', () => resolve({ status: 101, headers: new Headers(), webSocket }));
    webSocket.addEventListener('error', () => resolve(new Response('', { status: 502 })));
  });

/** Makes the client of this version's `Sandbox`. */
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
