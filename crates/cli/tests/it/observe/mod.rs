//! What penfold tells: `ps`, `inspect`, `logs`, `events`, `report`, `wait`, `doctor`.

mod doctor;
mod doctor_foreign;
mod events;
mod ids;
mod inspect;
mod logs;
mod ps;
mod report;
mod wait;
