//! The code interpreter. A context is a python3 or node of the host that keeps the state of the code that it has run: a recorded exec
//! in the sandbox of a session, so it outlives the server and ends with the session.
//!
//! - `language`: the languages, their programs and drivers; `driver.py` and `driver.js` run in the contexts.
//! - `frames`: what goes into a context and comes out of it; marks divide the output of one run from others.
//! - `contexts`: finds contexts by their labels; `start` makes them, `end` ends them.
//! - `input`: sends requests to contexts; `hello` waits until a new one can run code.
//! - `run`: runs code, and answers with its output and results.

mod contexts;
mod end;
mod frames;
mod hello;
mod input;
mod language;
mod routes;
mod run;
mod start;

pub(crate) use routes::routes;
