//! SIGKILL at each step that makes or releases a resource: the next command finds and releases everything.

use penfold_harness::Trial;

use super::{PLANNED, assert_none_there, can_make, flags};
use crate::state::crash::{self, await_inaction, begin_case, clean_up, crashing};
use crate::support::{Running, TestEnv, entries};

/// The crash points of resources; a test compares them with the sources.
pub const POINTS: [&str; 20] = [
    "directory-cleared",
    "directory-found",
    "directory-made",
    "directory-marked",
    "directory-named",
    "link-deleted",
    "mount-bound",
    "mount-made",
    "mount-unmounted",
    "netns-file-made",
    "netns-made",
    "netns-numbered",
    "netns-unnamed",
    "resource-made",
    "tap-kept",
    "tap-made",
    "veth-made",
    "veth-marked",
    "veth-moved",
    "veth-up",
];

/// A test for each point.
pub fn generated() -> Vec<Trial> {
    // spec: 18.6
    let trial = |point: &'static str| {
        let name = format!("resources::crash::killed_at::{}", point.replace('-', "_"));
        Trial::test(name, move || {
            if can_make() && crash::can_crash() {
                let env = TestEnv::new();
                let passes =
                    (1..=PLANNED).take_while(|pass| crashes(&env, &format!("{point}:{pass}"))).count();
                assert!(passes > 0, "no process comes by this point");
                assert!(point != "resource-made" || passes == PLANNED, "{passes}");
            }
            Ok(())
        })
    };
    POINTS.into_iter().map(trial).collect()
}

/// Runs a command with a resource of each kind, and collects what a crash leaves. Says whether a process crashed.
fn crashes(env: &TestEnv, point: &str) -> bool {
    begin_case(&point);
    let mut words = flags(env);
    words.extend(
        ["--", "sh", "-c", "echo $PENFOLD_SANDBOX > ../id; echo > made; setsid sleep 1000 &"]
            .map(str::to_owned),
    );
    let mut command = crashing(env.run_command(&words), point);
    let done = Running::start(&mut command).finish();
    await_inaction(env);
    let mut ids: Vec<String> = entries(&env.path("root/sandboxes"))
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    ids.extend(std::fs::read_to_string(env.path("work/id")).ok().map(|id| id.trim_end().to_owned()));
    env.call(["gc", "-f"]).with_code(0);
    clean_up(env);
    for id in &ids {
        assert_none_there(env, id);
    }
    assert_none_there(env, "-");
    let _ = std::fs::remove_file(env.path("work/id"));
    done.code() != Some(0)
}
