//! `penfold ps --all-users`: the sandboxes in the state roots of all users.

use penfold_control::all_users;
use penfold_state::error_chain;

use super::{ListedRow, PsArgs, list};
use crate::args::verb::Global;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::output;
use crate::sandboxes::find::Among;
use crate::text::row::UserHome;
use crate::text::{lines, template, users};

/// Lists the sandboxes of all users, the newest first.
pub(super) fn ps(global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    if global.root.is_some() {
        let sentence = "`--all-users` and `--root` cannot be used together";
        return Err(Failure::new(FailureKind::Usage, sentence));
    }
    if !rustix::process::geteuid().is_root() {
        let sentence = "only root may list the sandboxes of all users";
        return Err(Failure::new(FailureKind::NotPermitted, sentence).hint("sudo penfold ps --all-users"));
    }
    let names = users::names();
    let unread = std::cell::Cell::new(false);
    let done = list(global, args, |among| {
        let mut found = Vec::new();
        for root in all_users::find_user_roots().or_fail(FailureKind::Other, "cannot find the state roots")? {
            match all_users::list_user_sandboxes(&root, among == Among::Every) {
                Ok(views) => found.extend(views.into_iter().map(|view| {
                    let user = names.get(&root.user).cloned();
                    let home = UserHome { uid: root.user, user, root: root.path.clone() };
                    ListedRow { home: Some(home), ..view.into() }
                })),
                Err(error) => {
                    unread.set(true);
                    let (shown, why) = (root.path.display(), error_chain(&error));
                    let mut text = String::new();
                    lines::say(&mut text, &format!("cannot list the sandboxes below `{shown}`: {why}"));
                    output::message(&text);
                }
            }
        }
        found.sort_by(|one, other| {
            (one.view.started_at_ms, &one.view.id).cmp(&(other.view.started_at_ms, &other.view.id))
        });
        Ok(found)
    })?;
    Ok(if unread.get() { exit_codes::FAILURE } else { done })
}

/// The user in a table: the name, or else the number.
pub(super) fn shown(home: &UserHome) -> String {
    home.user.as_ref().map_or_else(|| home.uid.to_string(), |name| template::printable(name))
}
