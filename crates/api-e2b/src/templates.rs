//! Templates: what a new sandbox is made of. Without a file of that name, `base` is a jail with the files of the host.

use std::collections::BTreeMap;

use penfold_request::{Jail, Profile, SandboxSpec};
use penfold_server::AppState;

use crate::user::User;

/// The label with the name of the template; only sandboxes of this API have it.
pub(crate) const TEMPLATE: &str = "e2b.template";
/// The label of sandboxes whose data plane needs an access token.
pub(crate) const SECURE: &str = "e2b.secure";
/// The label of sandboxes that a request to one of their ports lets go on; its value is the time limit then, in seconds.
pub(crate) const RESUMES: &str = "e2b.resumes";
/// The label with the name of the user.
const USER: &str = "e2b.user";
/// The name of the template that is always there.
const BASE: &str = "base";
/// The name of the user, unless the template has another.
pub(crate) const USUAL_USER: &str = "user";
/// What keeps a sandbox alive in which no command runs.
const COMMAND: [&str; 2] = ["sleep", "infinity"];

/// The user of a sandbox with these labels, as whom everything in it runs.
pub(crate) fn user_of(labels: &BTreeMap<String, String>) -> User {
    let name = labels.get(USER).map_or(USUAL_USER, String::as_str);
    User { name: name.to_owned(), home: format!("/home/{name}"), account: None }
}

/// Returns what a sandbox of this template is made of.
///
/// # Errors
/// The known names, if there is no such template.
pub(crate) fn spec_of(app: &AppState, template: &str) -> Result<SandboxSpec, Vec<String>> {
    let templates = &app.config.templates;
    let mut spec = match templates.get(template) {
        Some(spec) => spec.clone(),
        None if template == BASE => SandboxSpec::default(),
        None => {
            let mut known: Vec<String> = templates.keys().cloned().collect();
            if !templates.contains_key(BASE) {
                known.insert(0, BASE.to_owned());
            }
            return Err(known);
        }
    };
    if spec.command.is_empty() {
        spec.command = COMMAND.map(str::to_owned).to_vec();
    }
    spec.profile = Some(Profile::Jail);
    let jail = spec.jail.get_or_insert_with(Jail::default);
    let user = jail.user.get_or_insert_with(|| USUAL_USER.to_owned()).clone();
    spec.labels.insert(USER.to_owned(), user);
    spec.labels.insert(TEMPLATE.to_owned(), template.to_owned());
    Ok(spec)
}

/// Tells why a specification can be no template.
///
/// # Errors
/// A sentence.
pub fn check_template(spec: &SandboxSpec) -> Result<(), &'static str> {
    if spec.profile.is_some_and(|profile| profile != Profile::Jail) {
        return Err("a template is a jail: leave `profile` out, or say `profile = \"jail\"`");
    }
    if spec.name.is_some() {
        return Err("many sandboxes are made of a template: leave `name` out");
    }
    Ok(())
}
