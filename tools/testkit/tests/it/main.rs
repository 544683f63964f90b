//! The testkit itself: trees, guard, judge.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

mod frozen_fs;
mod guard;
mod guarded;
mod judge;
mod killed_test;
mod reap_on_drop;
mod test_home;
mod trees;
mod user;
