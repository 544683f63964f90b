//! Terminals of clients from 0.13 on: recorded execs with a terminal, in the sandbox of the session `default`. They outlive the server.
//! Only calls over `/rpc` reach these routes.

mod control;
mod look;
mod routes;
mod start;

pub(crate) use routes::routes;
