/** A directory for the state roots and files of a test. */
export interface TestHome {
  /** The directory. */
  path: string;
  /** The directory for `penfold --root`. */
  stateRoot: string;
  /**
   * Ends what still uses the directory, and removes it.
   * @throws PenfoldError if a sandbox lived there; an error of `child_process` if something could not be ended.
   */
  close(): void;
}

/** Makes a directory below `PENFOLD_TEST_HOME_BASE`, which `penfold guard` sets, else below the temporary directory. */
export function makeTestHome(): TestHome;
