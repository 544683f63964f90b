//! Terminals of clients from 0.13 on: recorded execs with a terminal, in the sandbox of the session `default`. They outlive the server.
//! Only calls over `/rpc` reach these routes, but that of `socket`: a WebSocket for one terminal.

mod control;
mod look;
mod routes;
mod socket;
mod start;

pub(crate) use routes::routes;
pub(crate) use socket::{PATH, socket_routes};
