//! `penfold run` in the foreground.

mod asked;
mod degrade;
mod dropin;
mod idle;
mod init;
mod nested;
mod records;
mod scratch;
mod signals;
mod start;
mod terminal;
mod trap;
mod usage;
