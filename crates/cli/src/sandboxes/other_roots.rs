//! The state roots that this user has in other surroundings, such as a service without a runtime directory.

use std::path::PathBuf;

use penfold_control::view;

use crate::args::verb::Global;
use crate::output;
use crate::surroundings;
use crate::text::lines;

/// The other state roots with living sandboxes, and the number of these.
///
/// A root that cannot be read is left out: it is not the root of this command.
pub(crate) fn with_living(global: &Global) -> Vec<(PathBuf, usize)> {
    let roots = surroundings::other_roots(global).into_iter();
    let counted = roots.filter_map(|root| view::count_living(&root).ok().map(|living| (root, living)));
    counted.filter(|(_, living)| *living > 0).collect()
}

/// Names the other state roots with living sandboxes on standard error, a line each.
pub(crate) fn name(global: &Global) {
    if global.quiet {
        return;
    }
    for (root, living) in with_living(global) {
        let those = lines::count(living, "sandbox lives", "sandboxes live");
        let shown = root.display();
        let words = format!(
            "{those} below another state root of this user, `{shown}`: `penfold --root {shown} ps` lists them"
        );
        let mut text = String::new();
        lines::say(&mut text, &words);
        output::message(&text);
    }
}
