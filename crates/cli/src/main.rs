//! The `penfold` binary: words in; text, JSON and exit codes out. No policy.
//!
//! Invariants: data goes to standard output and talk to standard error; every failure is one sentence with a
//! documented exit code; nothing is built that the called verb does not need, for `penfold run` is on the way
//! of every command it wraps.
//!
//! Rooms, from the top; each imports only those below: `commands` (a file for each verb); `foreign`, `relay`; `sandboxes`;
//! `args`, `surroundings`; `failure`; `output`, `text`; `value`, `exit_codes`.

#![cfg_attr(all(target_env = "gnu", not(test)), no_main)]

mod args;
mod commands;
mod exit_codes;
mod failure;
mod foreign;
mod output;
mod panic;
mod relay;
mod sandboxes;
mod surroundings;
mod text;
mod value;

use std::io;

#[cfg(all(target_env = "gnu", not(test)))]
penfold_sys::entry!(call);

#[cfg(not(all(target_env = "gnu", not(test))))]
fn main() -> std::process::ExitCode {
    call().into()
}

/// Does what the command line says; gives the exit code.
fn call() -> u8 {
    panic::install();
    match commands::parse(std::env::args_os) {
        Ok(call) => (call.verb.call)(&call.global, call.matches)
            .unwrap_or_else(|failure| failure.report(call.global.color.wanted(&io::stderr()))),
        Err(error) => commands::answer(&error, std::env::args_os()),
    }
}
