//! The server on real sockets, with dialects of the tests.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod dialects;
