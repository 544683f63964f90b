//! Trees of real processes, in a cgroup and below a subreaper.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod asynchronous;
mod beside;
mod dropped;
mod ends;
mod hidden;
mod promptness;
mod support;
