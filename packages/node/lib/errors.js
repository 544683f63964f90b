/** The base of the errors that only this package makes. */
export class PenfoldError extends Error {
  constructor(message, code, properties = {}) {
    super(message);
    this.name = this.constructor.name;
    this.code = code;
    Object.assign(this, properties);
  }
}

/** penfold works on Linux only. */
export class UnsupportedPlatformError extends PenfoldError {
  constructor() {
    super(`penfold works on Linux only, and this platform is ${process.platform}`, 'ERR_PENFOLD_PLATFORM');
  }
}

/** There is no `penfold` program. */
export class BinaryNotFoundError extends PenfoldError {
  constructor(message) {
    super(message, 'ERR_PENFOLD_BINARY');
  }
}

/** penfold failed before the command started. */
export class StartError extends PenfoldError {
  constructor(message) {
    super(message, 'ERR_PENFOLD_START');
  }
}

/** The command has ended, but penfold could not verify that nothing of it is left. */
export class NotVerifiedError extends PenfoldError {
  constructor(command, report) {
    const left = report.survivors.length === 0 ? '' : `: ${JSON.stringify(report.survivors)}`;
    super(`\`${command}\` has ended, but penfold could not verify that nothing of it is left${left}`,
      'ERR_PENFOLD_NOT_VERIFIED', { report });
  }
}

/** `failOnLeak`: the command exited with 0 but left processes, which penfold ended. */
export class LeakError extends PenfoldError {
  constructor(command, report) {
    const names = report.strays.map(({ name, pid }) => `${name} (pid ${pid})`).join(', ');
    super(`\`${command}\` exited with 0 but left ${names}; penfold ended them`, 'ERR_PENFOLD_LEAK', { report });
  }
}
