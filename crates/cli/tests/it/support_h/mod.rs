//! A soak of detached sandboxes: clients that do random things, and a model that says what each answer may be.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

pub mod field;
pub mod harm;
pub mod judge;
pub mod model;
pub mod plan;
