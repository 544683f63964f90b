//! A defect of penfold is a sentence and an exit code, never a backtrace in a user's terminal.

use crate::{exit_codes, output};

/// Makes every panic end the process with one sentence and [`exit_codes::NOT_STARTED`].
///
/// The processes of ours that watch each other see an ordinary death and end the sandbox.
#[expect(clippy::disallowed_methods, reason = "the hook of the binary is where a defect ends the process")]
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let words = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message")
            .replace(char::is_control, " ");
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        output::talk(&format!(
            "penfold: internal error{place}: {words}\nhint: please report this as a defect\n"
        ));
        std::process::exit(exit_codes::NOT_STARTED.into());
    }));
}
