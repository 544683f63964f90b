//! `penfold run` in the foreground.

mod asked;
mod degrade;
mod dropin;
mod front;
mod idle;
mod init;
mod nested;
mod promptness;
mod records;
mod scratch;
mod signals;
mod start;
mod terminal;
mod trap;
mod usage;
