//! The `penfold` binary: reads arguments, calls the libraries, prints text or JSON, and returns an exit code. No policy.
//!
//! # Invariants
//! - Standard output carries data, standard error carries messages.
//! - Every failure is one sentence and has a documented exit code.
//! - Without the feature `full` it is penfold-init: no verb that needs a server, a live view, MCP, the settings of agents, completions or
//!   manual pages, no HTTP and no D-Bus. [`commands`] knows the names of these verbs.
//! - A verb builds only the definitions it needs: `penfold run` adds its start time to every command it wraps.
//!
//! # Modules
//! From the top; each module imports only modules below it: `remote` (the verbs as clients of a server); `commands` (a
//! file for each verb); `foreign`, `relay`;
//! `sandboxes`; `args`, `service_manager`, `pid_one`; `surroundings`; `config`; `failure`; `output`, `text`; `value`, `variables`, `exit_codes`.

#![cfg_attr(not(feature = "full"), allow(dead_code, reason = "what only verbs of the whole penfold use"))]
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
mod place;
mod relay;
mod remote;
mod sandboxes;
mod service_manager;
mod ssh;
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
    #[cfg(feature = "full")]
    if let Some(code) = commands::complete() {
        return code;
    }
    if let Some(words) = commands::oci::words() {
        return commands::oci::call(&words);
    }
    match ssh::far::verb_words() {
        Some(words) => {
            let program = std::ffi::OsString::from("penfold");
            run(|| std::iter::once(program.clone()).chain(words.iter().cloned()), true)
        }
        None => run(commands::sh::words, false),
    }
}

/// Runs the verb of a command line; `here` means on this host, whatever the command line says.
fn run<W: Iterator<Item = std::ffi::OsString>>(words: impl Fn() -> W, here: bool) -> u8 {
    match commands::parse(&words) {
        Ok(mut call) => {
            let done = commands::configure(&mut call).and_then(|()| {
                if here {
                    call.global.host.clear();
                    return remote::call_here(call.verb, &call.global, call.matches);
                }
                remote::call(call.verb, &call.global, call.matches)
            });
            done.unwrap_or_else(|failure| failure.report(call.global.color.wanted(&io::stderr())))
        }
        Err(error) => commands::answer(&error, words()),
    }
}
