//! Records, logs, events and views of sandboxes.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod control;
mod events;
mod events_support;
mod log;
mod log_follow;
mod log_support;
mod log_trouble;
mod promptness;
mod records;
mod resolve;
mod view;
mod view_support;
mod wire;
