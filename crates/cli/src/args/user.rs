//! `--user`: another user for a command.

use clap::Args;

/// The flag that `run` and `exec` share.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct UserArgs {
    #[arg(
        short,
        long,
        value_name = "USER[:GROUP]",
        help = "Run CMD as this user: a name or a number; for root only. HOME, USER, LOGNAME and SHELL are those of the user"
    )]
    pub(crate) user: Option<String>,
}
