//! What is left after an end, for an answer.

use penfold_teardown::Survivor;
use serde_json::{Value, json};

/// The survivors for programs.
pub fn list_survivors(survivors: &[Survivor]) -> Value {
    survivors.iter().map(one).collect()
}

fn one(survivor: &Survivor) -> Value {
    match survivor {
        Survivor::Process { pid, name, state, wait_channel, reason, .. } => {
            json!({ "pid": pid, "name": name, "state": state, "wchan": wait_channel, "reason": reason })
        }
        Survivor::Resource { what, reason } => json!({ "resource": what, "reason": reason }),
        Survivor::Unknown { reason } => json!({ "reason": reason }),
    }
}

/// The survivors for people.
pub fn survivors_sentence(survivors: &[Survivor]) -> String {
    let all: Vec<String> = survivors.iter().take(8).map(ToString::to_string).collect();
    if all.is_empty() { "its end could not be observed".to_owned() } else { all.join("; ") }
}
