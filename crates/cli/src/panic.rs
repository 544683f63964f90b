//! The panic hook: a defect of penfold prints one sentence and sets an exit code, without a backtrace.

use crate::{exit_codes, output};

/// Makes every panic print one sentence and exit with [`exit_codes::NOT_STARTED`].
///
/// The launcher, supervisor or standby that watches this process sees its exit and ends the sandbox.
#[expect(
    clippy::disallowed_methods,
    reason = "after a panic only the hook of the binary can exit with a documented code"
)]
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
        output::message(&format!(
            "penfold: internal error{place}: {words}\nhint: please report this as a defect\n"
        ));
        std::process::exit(exit_codes::NOT_STARTED.into());
    }));
}
