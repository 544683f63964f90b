//! Views of sandboxes, and their ends.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod control;
mod promptness;
mod resolve;
mod view;
mod view_support;
