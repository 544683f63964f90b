//! The suite itself runs in sandboxes: see `.config/nextest.toml`.

use std::path::Path;

#[test]
fn each_test_of_the_guarded_profile_runs_in_a_sandbox_of_its_own() {
    if !std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "guarded") {
        return;
    }
    let sandbox = std::env::var("PENFOLD_SANDBOX").unwrap();
    let id = sandbox.rsplit(':').next().unwrap();
    let directory = std::env::temp_dir();
    assert_eq!(directory.file_name(), Path::new(&format!("penfold-{id}")).file_name());
}
