//! The testkit itself: trees, guard, judge.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

mod frozen_fs;
mod guard;
mod judge;
mod killed_test;
mod trees;
mod user;
