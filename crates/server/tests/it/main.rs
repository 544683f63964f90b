//! The server on real sockets.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod bodies;
mod slow;
