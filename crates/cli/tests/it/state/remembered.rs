//! A member that could not be ended and was named once is remembered until it was seen dead: no verb, and no face, says later that the
//! sandbox is gone, whatever takes the supervisor, the record or the room on the disk away.
//!
//! The table: how the member escapes × damage × where the sandbox was started, and each verb in each of these cells. Needs root, who
//! makes the members of other users.

mod faces;
mod member;
mod verbs;

use penfold_harness::Trial;

use self::member::{Escape, Scene};
use crate::support::is_root;

/// Where the sandbox is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Foreground,
    Detached,
}

/// What is taken away once the survivor was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    Nothing,
    /// The supervisor that the sandbox has; of two, the inner one.
    SupervisorKilled,
    AllKilled,
    RecordRemoved,
    AllKilledAndRecordRemoved,
    /// Report and state say that all is gone.
    Forged,
    /// Before the end: nothing that is found then can be written.
    DiskFull,
}

impl Damage {
    const ALL: [Damage; 7] = [
        Damage::Nothing,
        Damage::SupervisorKilled,
        Damage::AllKilled,
        Damage::RecordRemoved,
        Damage::AllKilledAndRecordRemoved,
        Damage::Forged,
        Damage::DiskFull,
    ];

    fn name(self) -> &'static str {
        match self {
            Damage::Nothing => "nothing",
            Damage::SupervisorKilled => "supervisor_killed",
            Damage::AllKilled => "all_killed",
            Damage::RecordRemoved => "record_removed",
            Damage::AllKilledAndRecordRemoved => "all_killed_and_record_removed",
            Damage::Forged => "forged",
            Damage::DiskFull => "disk_full",
        }
    }

    /// Whether the sandbox has a supervisor afterwards.
    fn leaves_supervisor(self, mode: Mode) -> bool {
        match self {
            Damage::AllKilled | Damage::AllKilledAndRecordRemoved => false,
            Damage::SupervisorKilled => mode == Mode::Detached,
            Damage::Nothing | Damage::RecordRemoved | Damage::Forged | Damage::DiskFull => true,
        }
    }
}

/// The cells. The usual suite has all damages of a member of another user, and of each other escape those with which nothing but the
/// memory is left; the other cells are ignored tests, which `scripts/test-full` runs.
pub fn generated() -> Vec<Trial> {
    let mut trials = Vec::new();
    for escape in Escape::ALL {
        for damage in Damage::ALL {
            for mode in [Mode::Foreground, Mode::Detached] {
                let place = if mode == Mode::Foreground { "foreground" } else { "detached" };
                // spec: 2.7
                let name = format!("state::remembered::{}::{}::{place}", escape.name(), damage.name());
                let test = move || {
                    if is_root() {
                        cell(escape, damage, mode);
                    }
                    Ok(())
                };
                trials.push(Trial::test(name, test).with_ignored_flag(!is_usual(escape, damage, mode)));
            }
        }
    }
    trials
}

fn is_usual(escape: Escape, damage: Damage, mode: Mode) -> bool {
    match escape {
        Escape::Root => true,
        Escape::StateD => matches!(damage, Damage::Nothing | Damage::AllKilled),
        _ if mode == Mode::Foreground => matches!(damage, Damage::Nothing | Damage::AllKilled),
        _ => damage == Damage::AllKilledAndRecordRemoved,
    }
}

/// Every verb after this damage: none says that the sandbox is gone, and all do once its last member was seen dead.
fn cell(escape: Escape, damage: Damage, mode: Mode) {
    let Some(mut scene) = Scene::start(escape, damage, mode) else { return };
    scene.assert_survivors_live();
    let wrong = verbs::wrong(&scene, damage.leaves_supervisor(mode));
    scene.assert_survivors_live();
    // Counted by hand, with the binary of another version.
    println!("verbs that are wrong: {}", wrong.len());
    assert_eq!(wrong, Vec::<String>::new());
    scene.let_survivors_go();
    scene.assert_gone();
}
