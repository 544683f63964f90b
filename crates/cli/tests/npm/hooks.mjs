// Lets the client run in plain Node: the modules that only exist on Cloudflare's platform become inert.
import { register } from 'node:module';

const inert = `
  export class Container {
    constructor(ctx, env) {
      this.ctx = ctx;
      this.env = env;
    }
    renewActivityTimeout() {}
  }
  export class ContainerProxy {}
  export class RpcTarget {}
  export class WorkerEntrypoint {}
  export class DurableObject {}
  export const getContainer = (container) => container;
  export const switchPort = (request) => request;
  export const env = {};
  export const tracing = undefined;
`;
const hook = `
  const inert = ${JSON.stringify(`data:text/javascript,${encodeURIComponent(inert)}`)};
  export const resolve = (specifier, context, next) =>
    specifier === '@cloudflare/containers' || specifier === 'cloudflare:workers'
      ? { url: inert, shortCircuit: true }
      : next(specifier, context);
`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
