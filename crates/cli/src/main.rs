//! The `penfold` binary: reads arguments, calls the libraries, prints text or JSON, and returns an exit code. No policy.
//!
//! # Invariants
//! - Standard output carries data, standard error carries messages.
//! - Every failure is one sentence and has a documented exit code.
//! - A verb builds only the definitions it needs: `penfold run` adds its start time to every command it wraps.
//!
//! # Modules
//! From the top; each module imports only modules below it: `remote` (the verbs as clients of a server); `commands` (a
//! file for each verb); `foreign`, `relay`;
//! `sandboxes`; `args`, `service_manager`, `pid_one`; `surroundings`; `config`; `failure`; `output`, `text`; `value`, `variables`, `exit_codes`.

#![cfg_attr(all(target_env = "gnu", not(test)), no_main)]

mod args;
mod commands;
mod config;
mod execute;
mod exit_codes;
mod failure;
mod foreign;
mod output;
mod outside;
mod panic;
mod pid_one;
mod relay;
mod remote;
mod sandboxes;
mod service_manager;
mod surroundings;
mod text;
mod value;
mod variables;

use std::io;

#[cfg(all(target_env = "gnu", not(test)))]
penfold_sys::entry!(call);

#[cfg(not(all(target_env = "gnu", not(test))))]
fn main() -> std::process::ExitCode {
    call().into()
}

/// Runs the verb that the command line names; returns the exit code.
fn call() -> u8 {
    panic::install();
    if let Some(code) = commands::complete() {
        return code;
    }
    match commands::parse(commands::sh::words) {
        Ok(mut call) => {
            let configured = commands::configure(&mut call);
            configured
                .and_then(|()| remote::call(call.verb, &call.global, call.matches))
                .unwrap_or_else(|failure| failure.report(call.global.color.wanted(&io::stderr())))
        }
        Err(error) => commands::answer(&error, commands::sh::words()),
    }
}
