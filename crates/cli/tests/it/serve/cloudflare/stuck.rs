//! Processes that cannot be killed.

use penfold_testkit::{FrozenFs, FrozenFsError};
use serde_json::json;

use super::Api;
use crate::support::{Process, is_root, skip, wait_until};

fn frozen() -> Option<FrozenFs> {
    if !is_root() {
        return None;
    }
    match FrozenFs::new() {
        Ok(frozen) => Some(frozen),
        Err(FrozenFsError::Refused(why)) => {
            skip(&why);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// spec: 13.10
#[test]
fn a_kill_that_cannot_be_verified_names_what_is_left_until_it_is_gone() {
    let Some(frozen) = frozen() else { return };
    let api = Api::start();
    let command = format!("echo text > {}/file; true", frozen.path().display());
    let pid = api.process("s", "stuck", &command);
    let process = Process::find(pid).unwrap();
    wait_until("the process is in state D", || process.state() == Some('D'));
    api.process("s", "other", "sleep 1000");
    std::thread::scope(|scope| {
        let all = scope.spawn(|| api.delete("/api/process/kill-all").ok());
        // The stuck process delays no other.
        wait_until("the other process is killed", || api.status("other").0 == "killed");
        assert!(!all.is_finished());
        let told = all.join().unwrap();
        assert_eq!(
            (told["cleanedCount"].as_u64(), told["failed"][0]["processId"].as_str()),
            (Some(1), Some("stuck"))
        );
    });
    let error = api.delete("/api/process/stuck").fails(500, "PROCESS_ERROR");
    let left = error["context"]["remaining"].as_array().unwrap();
    assert!(left.iter().any(|one| one["pid"] == pid && one["state"] == "D"), "{error}");
    assert_eq!(api.status("stuck"), ("running".to_owned(), None));
    assert_eq!(api.run("s", "echo usable").ok()["stdout"], json!("usable\n"));
    frozen.thaw().unwrap();
    wait_until("the record is terminal", || api.status("stuck").0 == "killed");
    // Both signals wait for the thaw.
    assert!(matches!(api.status("stuck").1, Some(137 | 143)), "{:?}", api.status("stuck"));
    assert!(process.has_ended());
}
