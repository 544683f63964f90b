//! A test that runs again as another user.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Runs one test of this program again, as another user. Says why, if only root could.
///
/// The directories above this program may be closed to that user, who gets a copy.
///
/// # Panics
/// When the test fails, or there is no test of this name.
pub fn run_test_as(user: u32, name: &str) {
    if !rustix::process::geteuid().is_root() {
        return crate::skip("only root can become another user");
    }
    let place = std::env::temp_dir().join(format!("penfold-test-{}", std::process::id()));
    let done = copy(&place).and_then(|()| {
        let mut again = Command::new(place.join("test"));
        again.args(["--exact", name, "--nocapture"]).uid(user).gid(user).env_remove("TMPDIR");
        again.current_dir("/").output()
    });
    let _ = std::fs::remove_dir_all(&place);
    let done = done.unwrap_or_else(|error| panic!("cannot run `{name}` as user {user}: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

fn copy(place: &Path) -> std::io::Result<()> {
    std::fs::create_dir(place)?;
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755))?;
    // Another process writes the copy: a fork in another thread would hold the file open for writing.
    let written = Command::new("install")
        .args(["-m", "755"])
        .arg(std::env::current_exe()?)
        .arg(place.join("test"))
        .status()?;
    if written.success() { Ok(()) } else { Err(std::io::Error::other("install(1) failed")) }
}
