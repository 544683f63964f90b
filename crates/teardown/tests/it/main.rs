//! The driver against a model and against real trees.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

mod model;
mod search;
mod support;
