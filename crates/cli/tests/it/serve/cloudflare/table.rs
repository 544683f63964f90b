//! The table of the session's commands, through HTTP.

#[path = "../../../../../session/tests/it/table.rs"]
mod commands;

use serde_json::Value;

use self::commands::{Case, TABLE};
use super::Api;

/// Runs all cases this often in one session. Only some rounds have the case with large output.
fn check(rounds: usize, is_in_full: bool) {
    let api = Api::start();
    for round in 0..rounds {
        for (index, case) in TABLE.iter().enumerate() {
            if case.out.1 > 1 && round > 0 && !is_in_full {
                continue;
            }
            let place = format!("round {round}, case {index}: {:?}", case.text);
            check_case(&api, case, &place);
            let next = api.run("s", "echo usable").ok();
            let said = (&next["exitCode"], &next["stdout"], &next["stderr"]);
            assert_eq!(said, (&0.into(), &"usable\n".into(), &"".into()), "after {place}");
        }
    }
}

fn check_case(api: &Api, case: &Case, place: &str) {
    let told = api.run("s", case.text);
    if case.ends_shell {
        let context = &told.fails(410, "SESSION_TERMINATED")["context"];
        let said = (&context["sessionId"], &context["exitCode"]);
        assert_eq!(said, (&"s".into(), &case.code.into()), "{place}");
        return;
    }
    let told = told.ok();
    assert_eq!(told["stdout"].as_str().unwrap().len(), case.out().len(), "{place}");
    assert!(told["stdout"] == case.out(), "{place}: {:.200}", told["stdout"]);
    let err = told["stderr"].as_str().unwrap();
    assert!(case.fits(err), "{place}: {err}");
    let said = (&told["exitCode"], &told["success"], &told["truncated"]);
    assert_eq!(said, (&case.code.into(), &(case.code == 0).into(), &Value::Null), "{place}");
}

/// spec: 13.15
#[test]
fn table_of_commands_holds() {
    check(2, false);
}

/// spec: 13.15
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn table_of_commands_holds_fifty_times_in_full() {
    check(50, true);
}

/// spec: 13.15
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn table_of_commands_holds_fifty_times_more_in_full() {
    check(50, true);
}
