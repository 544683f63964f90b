//! Records, logs, events and messages of sandboxes.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod events;
mod events_support;
mod log;
mod log_follow;
mod log_support;
mod log_trouble;
mod promptness;
mod records;
mod wire;
