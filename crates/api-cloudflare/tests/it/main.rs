//! The server on real sockets, with this API and the native one.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod bodies;
mod slow;
