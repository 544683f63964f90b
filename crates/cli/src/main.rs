//! The `penfold` binary: words in; text, JSON and exit codes out. No policy.
//!
//! Invariants: data goes to standard output and talk to standard error; every failure is one sentence with a
//! documented exit code; nothing is built that the called verb does not need, for `penfold run` is on the way
//! of every command it wraps.

#![cfg_attr(all(target_env = "gnu", not(test)), no_main)]

mod adopt;
mod args;
mod attach;
mod completions;
mod doctor;
mod events;
mod exec;
mod exit_codes;
mod extend;
mod failure;
mod foreign;
mod gc;
mod help;
mod inspect;
mod kill;
mod logs;
mod man;
mod output;
mod panic;
mod ps;
mod pump;
mod reap;
mod replace;
mod report;
mod rm;
mod run;
mod sandboxes;
mod status;
mod stop;
mod surroundings;
mod text;
mod tree;
mod value;
mod version;
mod wait;

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
    match args::parse(std::env::args_os) {
        Ok(call) => (call.verb.call)(&call.global, call.matches)
            .unwrap_or_else(|failure| failure.report(call.global.color.wanted(&io::stderr()))),
        Err(error) => args::usage::answer(&error, std::env::args_os()),
    }
}
