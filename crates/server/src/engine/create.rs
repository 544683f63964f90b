//! A sandbox that a caller wants, as the request and the environment for penfold.

use std::ffi::OsString;

use penfold_request::{SandboxSpec, StartRequest, USUAL_VARIABLES};

/// The prefix of penfold's own variables. A command gets the marker of the enclosing sandboxes.
const OWN: &str = "PENFOLD_";

/// The variables of a login.
const LOGIN: [&str; 4] = ["HOME", "USER", "LOGNAME", "SHELL"];

/// A sandbox to be started.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// What is asked for.
    pub spec: SandboxSpec,
}

impl NewSandbox {
    /// Makes a sandbox for this command.
    pub fn new(command: Vec<String>) -> NewSandbox {
        NewSandbox { spec: SandboxSpec { command, ..SandboxSpec::default() } }
    }

    /// What penfold is asked for. The variables are in [`NewSandbox::environment`]. Those that take precedence over the ones of a login
    /// are here: there, nothing tells them from the server's.
    pub(super) fn into_request(self) -> StartRequest {
        let mut env = self.spec.env.clone();
        env.retain(|key, _| self.spec.jail_user().is_some() && LOGIN.contains(&key.as_str()));
        let spec = SandboxSpec { env, inherit_env: None, ..self.spec };
        StartRequest { spec, ..StartRequest::default() }
    }

    fn inherits_environment(&self) -> bool {
        self.spec.inherit_env.unwrap_or(false)
    }

    /// A text that differs for different sandboxes, and is the same in every version of the server.
    pub fn fingerprint(&self) -> String {
        // A spec has only what was given, so a newer field changes no older text.
        serde_json::to_string(&self.spec).unwrap_or_default()
    }

    /// The environment of `penfold run`, made from the server's.
    pub(super) fn environment(&self, server: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
        let wanted = |key: &OsString| {
            self.inherits_environment()
                || key
                    .to_str()
                    .is_some_and(|key| USUAL_VARIABLES.contains(&key) || key == penfold_teardown::MARKER)
        };
        let mut environment: Vec<(OsString, OsString)> =
            server.iter().filter(|(key, _)| wanted(key)).cloned().collect();
        // penfold makes the scratch directory below its own TMPDIR, and then sets the command's.
        let given = self.spec.env.iter().filter(|(key, _)| !(self.spec.has_scratch() && *key == "TMPDIR"));
        for (key, value) in given {
            environment.retain(|(other, _)| other != key.as_str());
            environment.push((key.into(), value.into()));
        }
        environment
    }
}

/// Tells whether a caller may set this variable: the name can be a variable's, and is none of penfold's own.
pub fn is_settable(key: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0']) && !key.starts_with(OWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_few_variables_of_the_server() {
        let server: Vec<(OsString, OsString)> =
            [("PATH", "/bin"), ("SECRET", "x"), ("PENFOLD_SANDBOX", "a"), ("PENFOLD_TOKEN", "y")]
                .map(|(key, value)| (key.into(), value.into()))
                .to_vec();
        let mut sandbox = NewSandbox::default();
        sandbox.spec.env.insert("PATH".to_owned(), "/x".to_owned());
        let environment = sandbox.environment(&server);
        let expected =
            [("PENFOLD_SANDBOX", "a"), ("PATH", "/x")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(environment, expected);
        assert!(
            !is_settable("PENFOLD_SANDBOX") && !is_settable("") && !is_settable("A=B") && is_settable("A")
        );
    }
}
