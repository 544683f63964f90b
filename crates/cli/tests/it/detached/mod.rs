//! Detached sandboxes: their life, their clients, `exec`, `attach`, `adopt`.

mod adopt;
mod attach;
mod beside_kill;
mod clock;
mod exec;
mod exec_clients;
pub mod exec_jail;
mod exec_jail_user;
mod life;
mod modes;
mod namespaces;
pub mod pause;
mod ports;
mod promptness;
mod ready;
mod recorded;
mod replace;
pub mod restart;
mod restart_launch;
mod restart_waiting;
mod sandboxes;
mod sessions;
mod units;
mod viewers;
