//! What penfold tells: `ps`, `inspect`, `logs`, `events`, `metrics`, `report`, `stats`, `top`, `wait`, `doctor`.

mod bytes;
mod doctor;
mod doctor_foreign;
mod event_log;
pub mod events;
mod history;
mod ids;
mod inspect;
mod json;
pub mod logs;
pub mod metrics;
pub mod output;
mod ps;
mod readme;
mod report;
mod stats;
mod status_fd;
mod top;
mod wait;
mod width;
